"""What the views of the SQLite backend owe to the way it keeps its counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie import Retry, Scheduler
from reverie.backends.moves import ClaimRequest, Move, QueueLimits, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.sqlite.views import LOOK_AT
from reverie.backends.views import LabelState
from reverie.base.clock import from_epoch_ms
from reverie.message import Key, Message
from reverie.settings import load_settings
from reverie.storage.sqlite import Database
from reverie.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.backends.moves import Claim
    from reverie.testing import ManualClock


@pytest.fixture
async def backend(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(Database(str(tmp_path / "q.db"), "normal"), clock)
    await backend.open()
    yield backend
    await backend.close()


def message(item_id: str, **fields) -> Message:
    return Message(**{"user_id": "ann", "item_id": item_id, "label": "work", **fields})


async def claim(backend: SqliteBackend) -> Claim:
    request = ClaimRequest(worker="w", wants={"work": Want(slots=1)})
    (claimed,) = await backend.queue.claim(request)
    return claimed


async def test_what_a_rejected_settlement_had_counted_is_taken_back(backend: SqliteBackend) -> None:
    """Its first follow-up cancels a message, its second cannot be written."""
    held = message("held", label="next", unique_key="x")
    await backend.queue.submit([message("1"), held])
    follow_ups = (
        message("new", label="next", unique_key="x", unique_policy="replace"),
        message("bad", label="next", content="\ud800"),
    )
    settlement = Settlement(claim=await claim(backend), move=Move.COMPLETE, follow_ups=follow_ups)
    (answer,) = await backend.queue.settle([settlement])
    assert answer.state == "rejected"
    expected = [LabelState(label="next", waiting=1), LabelState(label="work", in_progress=1)]
    assert await backend.views.labels() == expected
    assert await backend.views.history(held.key) == []


async def test_the_oldest_is_found_behind_very_many_that_are_put_off(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    due = from_epoch_ms(clock.now()) + timedelta(days=1)
    await backend.queue.submit([message(str(n), due=due) for n in range(LOOK_AT)])
    assert (await backend.views.health()).oldest_waiting_at is None
    clock.advance(1)
    await backend.queue.submit([message("ready", user_id="bob"), message("other", label="other")])
    ready_at = clock.now()
    clock.advance(1)
    await backend.queue.submit([message("later", user_id="bob")])
    assert (await backend.views.health()).oldest_waiting_at == ready_at


async def test_what_waits_while_its_lane_rests_could_not_run(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    await backend.queue.submit([message("1")])
    settlement = Settlement(claim=await claim(backend), move=Move.RETRY, error="no", delay_ms=5000)
    await backend.queue.settle([settlement])
    assert (await backend.views.health()).oldest_waiting_at is None
    put_back = clock.now()
    clock.advance(5)
    assert (await backend.views.health()).oldest_waiting_at == put_back


async def test_the_history_of_another_message_of_the_same_id_is_not_shown(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    """A process that does not know of histories has removed the first."""
    await backend.queue.submit([message("1")])
    await backend.queue.settle([Settlement(claim=await claim(backend), move=Move.BURY, error="no")])
    await backend._database.write(lambda connection: connection.execute("DELETE FROM pending_messages"))
    clock.advance(1)
    await backend.queue.submit([message("1")])
    assert await backend.views.history(Key("ann", "1")) == []


def test_the_table_counts_retries_against_the_retries_of_the_label(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "r.db"
    settings = load_settings(
        queue={"url": f"sqlite:///{path}", "durability": "normal"},
        worker={"max_attempts": 4},
        labels={"named": {"max_attempts": 2}},
    )
    scheduler = Scheduler(settings=settings, clock=clock)
    retries = {"at once": 0, "later": 2}
    for label, options in {"plain": {}, "named": {}, "own": {"max_attempts": 5}}.items():
        scheduler.handler(label, **options)(
            lambda message: None if message.attempts >= retries.get(message.content, 9) else Retry(after=0)
        )

    def rows() -> dict[str, tuple[str, int, int]]:
        file = apsw.Connection(str(path))
        found = file.execute("SELECT id, status, retry_count, max_retries FROM pending_messages").fetchall()
        file.close()
        return {item_id: tuple(rest) for item_id, *rest in found}

    with scheduler.used():
        for label, content in (("plain", "at once"), ("own", "later"), ("named", "never")):
            scheduler.submit(label, user_id="ann", item_id=label, content=content)
        assert rows()["plain"] == ("pending", 0, 4)
        assert rows()["named"] == ("pending", 0, 2)
        drain(scheduler)
        assert rows() == {
            "plain": ("completed", 0, 4),
            "own": ("completed", 2, 5),
            "named": ("failed", 2, 2),
        }
        attempts = {item.item_id: item.attempts for item in scheduler.status("ann")}
    assert attempts == {"plain": 1, "own": 3, "named": 2}


def test_a_completed_message_of_an_earlier_version_keeps_its_attempts(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    scheduler = Scheduler(f"sqlite:///{path}")
    scheduler.handler("work")(lambda message: None)
    with scheduler.used():
        scheduler.submit("work", user_id="ann", item_id="1")
        drain(scheduler)
    file = apsw.Connection(str(path))
    file.execute("UPDATE pending_messages SET retry_count = 1")  # as version 8 wrote it
    file.execute("DROP INDEX idx_pending_messages_dead")
    file.execute("DROP TABLE records")
    file.execute("DROP TABLE audit_log")
    file.execute("UPDATE schema_versions SET version = 8 WHERE room = 'queue'")
    file.close()
    with Scheduler(f"sqlite:///{path}").used() as scheduler:
        assert scheduler.status("ann", "1")[0].attempts == 1


async def test_a_retention_that_is_set_later_takes_the_dead_letters_that_there_are(
    tmp_path: Path, backend: SqliteBackend, clock: ManualClock
) -> None:
    await backend.queue.submit([message("1")])
    await backend.queue.settle([Settlement(claim=await claim(backend), move=Move.BURY, error="x")])
    clock.advance(100)
    assert (await backend.queue.advance(10)).expired == 0
    limits = QueueLimits(dead_retention_ms=100_000)
    other = SqliteBackend(Database(str(tmp_path / "q.db"), "normal"), clock, limits)
    await other.open()
    assert (await other.queue.advance(10)).expired == 1
    await other.close()
    assert await backend.views.labels() == [LabelState(label="work", failed_ever=1)]
