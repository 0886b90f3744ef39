"""No statement of the daily work reads all messages, or all tasks of triggers, however many there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.sqlite.rows import load_statements
from reverie.backends.sqlite.views import READS
from reverie.backends.triggers import Activity, Definition, Firing
from reverie.message import Message
from reverie.storage.many_rows import statement_of
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie.testing import ManualClock

FILES = ("claim", "settle", "advance", "submit", "lanes", "views", "attempts", "trigger_rows", "triggers")
PARTS = {"add_lanes", "fill_lanes", "insert_messages", "filter", *READS}
"""What is no whole statement; `statements` has what is made of them."""
ALLOWED = {
    "claim.running": "counts what runs, with a limit of all that runs, which bounds it",
    "claim.look": "asks whether there is any entry in a small index of what was lost",
    "triggers.put_back": "reads what is put aside, after the settings have changed",
    "views.dead": "shows dead letters, in pages",
    "views.oldest_waiting": "stops after LOOK_AT rows",
    "views.oldest_in_progress": "stops after LOOK_AT rows",
}


def statements() -> Iterator[tuple[str, str]]:
    for file in FILES:
        for name, text in load_statements(f"{file}.sql").items():
            if name not in PARTS and name.removesuffix("_end") not in PARTS:
                yield f"{file}.{name}", text
    submit = load_statements("submit.sql")
    for name, columns in (("add_lanes", 4), ("fill_lanes", 7), ("insert_messages", 22)):
        yield f"submit.{name}", statement_of(submit[name], submit[f"{name}_end"], columns, 2)
    for name, text in READS.items():
        yield f"views.{name}", text


STATEMENTS = dict(statements())


@pytest.fixture
async def file(tmp_path: Path, clock: ManualClock) -> Iterator[apsw.Connection]:
    """A file with messages in every state, of which SQLite has taken its statistics."""
    path = tmp_path / "q.db"
    backend = SqliteBackend(Database(str(path), "normal"), clock)
    await backend.open()
    messages = [
        Message(user_id=f"user-{n % 100}", item_id=str(n), label="work", task_id="t") for n in range(2000)
    ]
    await backend.queue.submit(messages)
    wants = {"work": Want(slots=1000, quantum=10)}
    claims = await backend.queue.claim(ClaimRequest(worker="w", wants=wants))
    moves = [Move.COMPLETE] * 4 + [Move.BURY, Move.CANCEL, Move.RETRY, Move.RELEASE, Move.LOSE]
    await backend.queue.settle(
        [
            Settlement(claim=claim, move=moves[n % len(moves)], error="no")
            for n, claim in enumerate(claims[:900])
        ]
    )
    await backend.triggers.put([Definition(name="work", fields={}, enabled=True)])
    await backend.triggers.touch(
        [Activity(task_type="work", user_key=str(n), user_id=str(n), interval_ms=n * 10) for n in range(2000)]
    )
    clock.advance(10)
    due = await backend.triggers.due({"work": ()}, 500)
    await backend.triggers.fire(
        [
            Firing(trigger=task, message=Message(user_id="u", label="work", user_key=task.user_key))
            for task in due.triggers
        ]
    )
    await backend.close()
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)  # the readers of the backend close a little later than its writer
    yield connection
    connection.close()


def plan(connection: apsw.Connection, statement: str) -> list[str]:
    names = set(re.findall(r":([a-z_]+)", statement))
    places = len(set(re.findall(r"\?\d+", statement))) or statement.count("?")
    bindings = dict.fromkeys(names) if names else (None,) * places
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)]


def costly(statement: str, steps: list[str]) -> list[str]:
    """The steps that read all messages, or all of one status; or all tasks, or all of one type."""
    names = {
        name
        for table in ("pending_messages", "trigger_tasks")
        for name in (table, *re.findall(rf"{table} AS (\w+)", statement))
    }
    costly = re.compile(
        rf"SCAN ({'|'.join(names)})\b|SEARCH ({'|'.join(names)})($| .*\(task_type=\?\)$)"
        r"|.*idx_pending_messages_status"
    )
    return [step for step in steps if costly.match(step)]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_no_statement_reads_all_messages(file: apsw.Connection, analyzed: bool) -> None:
    if analyzed:
        file.execute("ANALYZE")
    found = {name: costly(text, plan(file, text)) for name, text in STATEMENTS.items()}
    assert {name: steps for name, steps in found.items() if steps and name not in ALLOWED} == {}
    assert {name for name in ALLOWED if not found[name]} == set()


async def test_a_statement_that_reads_all_messages_is_found(file: apsw.Connection) -> None:
    for statement in (
        "SELECT max(updated_at_epoch) FROM pending_messages",
        "SELECT count(*) FROM pending_messages AS m WHERE m.status = 'completed'",
        "SELECT 1 FROM pending_messages AS m JOIN lanes AS l ON l.lane = m.lane WHERE m.payload = ?",
        "SELECT count(*) FROM trigger_tasks WHERE fired_at_epoch IS NOT NULL",
        "SELECT 1 FROM trigger_tasks AS t WHERE t.task_type = ? AND t.item_id = ?",
    ):
        assert costly(statement, plan(file, statement))
