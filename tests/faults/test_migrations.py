"""A file that an earlier version wrote: this one opens it, and the earlier one can go on beside it.

`tests/frozen` keeps each shipped schema and the statements that ran on it. A script that was shipped is never
changed; a new one joins these tests by a copy there.
"""

from __future__ import annotations

import json
import re
import time
from importlib import resources
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.backends.views import LabelState
from reverie.base.clock import SystemClock
from reverie.memory.interface import Application
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.settings import load_settings
from reverie.storage.queries import load_migrations, load_queries
from reverie.storage.sqlite import Database

FROZEN = Path(__file__).parents[1] / "frozen"
ROOMS = {"queue": "reverie.backends.sqlite", "memory": "reverie.memory.sqlite"}
VERSIONS = sorted(int(path.stem[-4:]) for path in FROZEN.glob("queue_????.sql"))
BESIDE = sorted(int(path.name[6:10]) for path in FROZEN.glob("queue_*_statements.sql"))
"""The versions that may still run beside this one."""
HOUR = 3_600_000
NOW = time.time_ns() // 1_000_000
MESSAGE = """
INSERT INTO pending_messages (
  user_id, id, message_type, project_id, payload, status, created_at_epoch, updated_at_epoch, lane, level,
  place, due_at_epoch, claim_id, worker, lease_until_epoch, processed_at_epoch, error_message,
  expires_at_epoch,
  fingerprint, task_id, timestamp_epoch
) VALUES (
  'ann', :id, 'note', :cube, :id, :status, :now, :now, :lane, 2, :place,
  :due, :claim, :claim, :lease, :ended, :error, :expires, 'none', 'task', :now
)
"""
ROWS: dict[str, dict[str, Any]] = {
    "ready": {"status": "pending", "place": 1},
    "second": {"status": "pending", "place": 2},
    "due": {"status": "pending", "due": NOW - 1},
    "later": {"status": "pending", "due": NOW + HOUR},
    "lost": {"status": "processing", "place": 3, "claim": "dead", "lease": NOW - 1},
    "held": {"status": "processing", "place": 4, "claim": "alive", "lease": NOW + HOUR},
    "completed": {"status": "completed", "place": 5, "ended": NOW, "expires": NOW + HOUR},
    "forgotten": {"status": "completed", "place": 6, "ended": NOW - HOUR, "expires": NOW - 1},
    "failed": {"status": "failed", "place": 7, "ended": NOW, "error": "bug"},
    "cancelled": {"status": "failed", "place": 8, "ended": NOW, "error": "cancelled", "expires": NOW + HOUR},
}
"""One row in every state; each that is or was claimed has a lane of its own."""


def build(path: Path, version: int) -> None:
    """A file as that version of Reverie left it, by plain SQL."""
    file = apsw.Connection(str(path))
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("CREATE TABLE schema_versions (room TEXT PRIMARY KEY, version INTEGER)")
    for room in ROOMS:
        scripts = [FROZEN / f"{room}_{number:04}.sql" for number in range(1, version + 1)]
        found = [script.read_text(encoding="utf-8") for script in scripts if script.exists()]
        file.execute("\n".join(found))
        file.execute("INSERT INTO schema_versions VALUES (?, ?)", (room, len(found)))
    for lane, (name, row) in enumerate(ROWS.items(), 10):
        waiting = row["status"] == "pending"
        lane_of = 1 if waiting else lane
        cube = "ann" if waiting else name
        file.execute(
            "INSERT INTO lanes (lane, user_id, project_id, message_type, level, turn, running) "
            "VALUES (?, 'ann', ?, 'note', 2, ?, ?) ON CONFLICT DO NOTHING",
            (lane_of, cube, 1 if waiting else None, int(row["status"] == "processing")),
        )
        empty = dict.fromkeys(("place", "due", "claim", "lease", "ended", "error", "expires"))
        file.execute(MESSAGE, {**empty, **row, "id": name, "cube": cube, "lane": lane_of, "now": NOW - HOUR})
    file.execute("UPDATE queue_counters SET place = 8, turn = 1")
    file.execute(
        "INSERT INTO memory_items (seq, user_id, id, project_id, kind, tier, text, tags, sources, "
        "created_at_epoch, updated_at_epoch) "
        "VALUES (1, 'ann', 'm', 'ann', 'fact', 'long_term', 'moved to Lisbon', '[]', '[]', 1, 1)"
    )
    file.execute("INSERT INTO memory_words (rowid, words) VALUES (1, 'moved to Lisbon')")
    file.execute(
        "INSERT INTO inbox (user_id, item_id, fingerprint, closed, losses, follow_ups, applied_at_epoch) "
        "VALUES ('ann', 'completed', 'none', 0, 0, '[]', 1)"
    )
    file.close()


@pytest.fixture(params=VERSIONS)
def old_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "reverie.db"
    build(path, request.param)
    return path


def scheduler_on(path: Path) -> Scheduler:
    scheduler = Scheduler(
        settings=load_settings(data_dir=path.parent, queue={"url": f"sqlite:///{path}"}), clock=None
    )

    @scheduler.handler("note")
    def note(message: Message) -> Done:
        return Done(effects=[Remember(memory_id=f"note-{message.item_id}", text=message.content)])

    return scheduler


def test_a_shipped_script_is_never_changed() -> None:
    for room, package in ROOMS.items():
        shipped = {
            entry.name[:4]: entry.read_text(encoding="utf-8")
            for entry in resources.files(package).joinpath("migrations").iterdir()
            if entry.name.endswith(".sql")
        }
        frozen = {
            path.stem[-4:]: path.read_text(encoding="utf-8") for path in FROZEN.glob(f"{room}_????.sql")
        }
        assert frozen
        assert {number: shipped[number] for number in frozen} == frozen
        assert sorted(shipped) == [f"{number:04}" for number in range(1, len(shipped) + 1)]


def test_the_work_of_an_earlier_version_is_shown_and_done(old_file: Path) -> None:
    scheduler = scheduler_on(old_file)
    with scheduler.used():
        shown = {item.item_id: str(item.status) for item in scheduler.status("ann")}
        assert shown == {
            **dict.fromkeys(("ready", "second", "due", "later"), "waiting"),
            **dict.fromkeys(("lost", "held"), "in_progress"),
            **dict.fromkeys(("completed", "forgotten"), "completed"),
            "failed": "failed",
            "cancelled": "cancelled",
        }
        assert len(scheduler.status("ann", "task")) == len(ROWS)
        assert scheduler.control.labels() == [counted_rows()]
        assert [hit.item.id for hit in scheduler.memory.search("Lisbon", user_id="ann")] == ["m"]
    with scheduler:
        for name in ("ready", "second", "due", "lost"):
            assert scheduler.wait(name, user_id="ann").status == "completed"
        assert scheduler.submit("note", user_id="ann", item_id="new", content="new").status == "accepted"
        assert scheduler.wait("new", user_id="ann").status == "completed"
        shown = {item.item_id: (str(item.status), item.losses) for item in scheduler.status("ann")}
    assert shown["lost"] == ("completed", 1)
    assert shown["held"] == ("in_progress", 0)
    assert shown["later"] == ("waiting", 0)
    assert "forgotten" not in shown
    file = apsw.Connection(str(old_file))
    versions = dict(file.execute("SELECT room, version FROM schema_versions"))
    assert versions == {room: len(load_migrations(package)) for room, package in ROOMS.items()}
    assert file.execute("SELECT count(*) FROM memory_items").get == 6
    file.close()


@pytest.mark.parametrize(
    ("accepted_after_ms", "state"),
    [
        (-HOUR, "already"),
        (23 * HOUR, "already"),
        (7 * 24 * HOUR, "applied"),
    ],  # the clocks may differ by a day
)
async def test_the_inbox_of_an_earlier_version_tells_one_acceptance_from_the_next(
    old_file: Path, accepted_after_ms: int, state: str
) -> None:
    message = Message(user_id="ann", label="note", item_id="applied")
    file = apsw.Connection(str(old_file))
    file.execute(
        "INSERT INTO inbox (user_id, item_id, fingerprint, closed, losses, follow_ups, applied_at_epoch) "
        "VALUES ('ann', 'applied', ?, 0, 0, '[]', ?)",
        (message.fingerprint(), NOW),
    )
    file.close()
    store = SqliteMemoryStore(Database(str(old_file)), SystemClock())
    await store.open()
    for expected in (state, "already"):
        application = Application(
            message=message,
            submitted_at=NOW + accepted_after_ms,
            effects=(Remember(memory_id="new", text="new"),),
        )
        (applied,) = await store.apply([application])
        assert applied.state == expected
    assert (await store.get("ann", "new") is None) == (state == "already")
    await store.close()


class OldProgram:
    """The statements of an earlier version, on a connection of their own; knows which were never run."""

    def __init__(self, path: Path, version: int) -> None:
        self._statements = load_queries("frozen", f"queue_{version:04}_statements.sql")
        self._connection = apsw.Connection(str(path))
        self.unused = set(self._statements)

    def run(self, name: str, *positional: Any, **named: Any) -> list[tuple[Any, ...]]:
        self.unused.discard(name)
        return self._connection.execute(self._statements[name], positional or named).fetchall()

    def changes(self) -> int:
        return self._connection.changes()

    def close(self) -> None:
        self._connection.close()

    def submit(self, item: str, *, place: int | None, due: int | None = None) -> int:
        ((lane,),) = self.run("upsert_lane", user_id="ann", project_id="old", message_type="old", level=2)
        assert self.run(
            "insert_message", user_id="ann", id=item, message_type="old", memory_session_id=None,
            project_id="old", payload=item, now=NOW, lane=lane, level=2, place=place, due=due,
            fingerprint="old", task_id="old", trace_id=None, user_name=None, info=None, timestamp=NOW,
        ) == [(1,)]  # fmt: skip
        return lane

    def claim(self, lane: int, claim_id: str, lease_until: int) -> list[tuple[Any, ...]]:
        rows = self.run(
            "claim_messages", lanes=json.dumps([lane]), take=10, claim_id=claim_id, worker="old",
            lease_until=lease_until, now=NOW,
        )  # fmt: skip
        self.run("mark_served", len(rows), 1, 0, lane)
        return sorted(rows)


@pytest.mark.parametrize("version", BESIDE)
def test_the_statements_of_an_earlier_version_work_on_this_schema(tmp_path: Path, version: int) -> None:
    path = tmp_path / "reverie.db"
    build(path, version)
    with scheduler_on(path).used() as scheduler:
        scheduler.open()  # migrates
        old = OldProgram(path, version)
        ((last, turn),) = old.run("take_numbers", places=2)
        lane = old.submit("a", place=last - 1)
        old.submit("b", place=last)
        old.submit("c", place=None, due=NOW - 1)
        assert old.run("fingerprint", user_id="ann", id="a") == [("old",)]
        assert old.run("wake_lanes", lanes=json.dumps([lane]), turn=turn) == [("old",)]
        assert old.run("ready_lanes", label="old", lanes=5) == [(lane,)]
        rows = old.claim(lane, "first", NOW + HOUR)
        assert [row[5] for row in rows] == ["a", "b"]
        (a, b) = (row[0] for row in rows)
        assert old.run("renew", NOW + 2 * HOUR, a, "ann", "a", "first") == [(a, "first")]
        ended = ("completed", 1, None, NOW, NOW - 1, NOW)
        assert old.run("end_claim", *ended, a, "ann", "a", "first") == [(1,)]
        assert old.run("end_claim", *ended, a, "ann", "a", "first") == []
        old.run("end_claims", *ended[:4], NOW + HOUR, NOW, json.dumps([[b, "ann", "b", "first"]]))
        assert old.changes() == 1
        assert old.run("release_lane", 2, 5, NOW, lane) == [(NOW + 5,)]
        assert (lane,) in old.run("end_rests", now=NOW + 5, limit=10)
        ((c,),) = [row for row in old.run("due_messages", now=NOW, limit=10) if row[0] > b]
        old.run("postpone", row=c, due=NOW - 1)
        assert old.run("stage", row=c, place=last + 1, now=NOW) == [(lane,)]
        assert [row[5] for row in old.claim(lane, "second", NOW)] == ["c"]
        assert (lane,) in old.run("reap", now=NOW, limit=10, max_losses=5)
        assert old.run("expire", now=NOW, limit=10) == [(1,), (1,)]  # a, and the one of the file
        assert old.run("next_due")[0][0] is not None
        assert old.run("read_item", user_id="ann", item_id="b", limit=1)[0][5] == "completed"
        assert len(old.run("read_task", user_id="ann", task_id="old", limit=9)) == 2
        assert len(old.run("read_user", user_id="ann", limit=99)) == len(ROWS) - 1 + 2
        assert old.unused == set()
        shown = {item.item_id: (str(item.status), item.losses) for item in scheduler.status("ann", "old")}
        assert shown == {"b": ("completed", 0), "c": ("waiting", 1)}
        scheduler.submit("old", user_id="bob", item_id="d")  # by this version, for the earlier one
        ((theirs,),) = old.run("ready_lanes", label="old", lanes=5)
        assert [row[5] for row in old.claim(theirs, "third", NOW + HOUR)] == ["d"]
        old.close()
        assert scheduler.status("bob", "d")[0].status == "in_progress"
    with scheduler_on(path).used() as scheduler:  # what the earlier one has moved is counted now
        counts = {state.label: state for state in scheduler.control.labels()}
    assert counts["old"] == LabelState(label="old", waiting=1, in_progress=1, completed=1, completed_ever=1)
    assert counts["note"] == msgspec.structs.replace(
        counted_rows(), waiting=5, in_progress=1, completed=1
    )  # one was lost, one forgotten


def counted_rows() -> LabelState:
    """How the rows of an old file are counted."""
    return LabelState(
        label="note",
        waiting=4,
        in_progress=2,
        completed=2,
        failed=1,
        cancelled=1,
        completed_ever=2,
        failed_ever=1,
    )


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the scripts of a room; its package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "some_room" / "migrations"
    folder.mkdir(parents=True)

    def write(*scripts: str) -> str:
        for number, script in enumerate(scripts, 1):
            (folder / f"{number:04}_script.sql").write_text(script)
        return "some_room"

    return write


def test_a_script_that_fails_half_way_changes_nothing(tmp_path: Path, room) -> None:
    database = Database(str(tmp_path / "r.db"))
    database.open()
    database.migrate("room", room("CREATE TABLE a (n); INSERT INTO a VALUES (1);"))
    schema = (
        "SELECT group_concat(name), (SELECT version FROM schema_versions) FROM sqlite_schema WHERE name < 's'"
    )
    before = database.submit(lambda c: c.execute(schema).fetchall()).result()
    bad = room(
        "CREATE TABLE a (n); INSERT INTO a VALUES (1);",
        "CREATE TABLE b (n);",
        "ALTER TABLE a ADD COLUMN m; UPDATE a SET n = 2; INSERT INTO nowhere VALUES (1);",
    )
    for _ in range(2):
        with pytest.raises(apsw.SQLError, match=re.escape("no such table: nowhere")):
            database.migrate("room", bad)
        assert database.submit(lambda c: c.execute(schema).fetchall()).result() == before
    assert database.submit(lambda c: c.execute("SELECT * FROM a").fetchall()).result() == [(1,)]
    database.migrate(
        "room", room("", "CREATE TABLE b (n);", "ALTER TABLE a ADD COLUMN m; UPDATE a SET n = 2;")
    )
    assert database.submit(lambda c: c.execute("SELECT * FROM a").fetchall()).result() == [(2, None)]
    database.close()
