"""What the views of the SQLite backend owe to the way it keeps its counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.sqlite.views import LOOK_AT
from reverie.backends.views import LabelState
from reverie.base.clock import from_epoch_ms
from reverie.message import Key, Message
from reverie.storage.sqlite import Database

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
