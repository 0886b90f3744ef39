"""A run whose effects met another version of an item: handed back at once, counted, without what it read."""

from __future__ import annotations

import msgspec
import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie.backends.control import CancelItems, RequeueItems
from reverie.backends.moves import OF_MEMORY, Claim, Move, Settlement, Status
from reverie.backends.views import StatusQuery
from reverie.message import Key

ONE = message("1")


def conflict(claim: Claim, error: str | None = "memory 'm' has version 2") -> Settlement:
    return Settlement(claim=claim, move=Move.RELEASE, attempt=False, error=error, conflict=True)


async def conflicts(bench: Bench) -> int:
    return (await bench.status(ONE)).conflicts


async def claim_after_conflicts(bench: Bench, count: int = 1) -> Claim:
    """The next claim of a message, which has met this number of conflicts."""
    await bench.submit(ONE)
    for _ in range(count):
        await settle(bench, conflict((await bench.claim())[0]))
    (claim,) = await bench.claim()
    assert claim.message.conflicts == count
    return claim


@pytest.mark.parametrize("ordered", [True, False])
async def test_it_comes_again_at_once_in_its_place(bench: Bench, ordered: bool) -> None:
    await bench.submit(ONE, message("2"))
    (first,) = await bench.claim(slots=1, per_slot=1, ordered=ordered)
    assert await settle(bench, conflict(first)) == ["applied"]
    status = await bench.status(ONE)
    assert (status.status, status.attempts, status.losses, status.conflicts) == (Status.WAITING, 0, 0, 1)
    assert status.error == "memory 'm' has version 2"
    again = await bench.claim(ordered=ordered)
    assert ids(again) == ["1", "2"]
    assert [claim.message.conflicts for claim in again] == [1, 0]


async def test_conflicts_in_a_row_are_counted(bench: Bench) -> None:
    claim = await claim_after_conflicts(bench, 3)
    await settle(bench, Settlement(claim=claim, move=Move.RELEASE, attempt=False))
    assert await conflicts(bench) == 3
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.LOSE))
    assert await conflicts(bench) == 3
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.RETRY, error="no"))
    assert await conflicts(bench) == 0
    (claim,) = await bench.claim()
    assert (claim.message.conflicts, claim.message.attempts, claim.message.losses) == (0, 1, 1)
    await settle(bench, conflict(claim))
    assert await conflicts(bench) == 1


@pytest.mark.parametrize("move", [Move.COMPLETE, Move.BURY])
async def test_the_end_keeps_the_count(bench: Bench, move: Move) -> None:
    claim = await claim_after_conflicts(bench)
    assert await settle(bench, Settlement(claim=claim, move=move)) == ["applied"]
    status = await bench.status(ONE)
    assert (status.status.ended, status.conflicts, status.attempts) == (True, 1, 1)


async def test_a_new_and_a_requeued_message_begin_without(bench: Bench) -> None:
    await bench.submit(msgspec.structs.replace(ONE, conflicts=7, level=3))
    (claim,) = await bench.claim()
    assert claim.message.conflicts == 0
    await settle(bench, conflict(claim))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    query = StatusQuery(user_id="ann", item_id="1", with_message=True)
    (row,) = (await bench.views.read(query)).rows
    assert (row.conflicts, row.message.conflicts) == (1, 1)
    await bench.control(RequeueItems, user_id="ann")
    assert await conflicts(bench) == 0
    assert [claim.message.conflicts for claim in await bench.claim()] == [0]


async def test_what_was_read_from_memory_is_dropped(bench: Bench) -> None:
    await bench.submit(ONE)
    for _ in range(2):
        (claim,) = await bench.claim()
        for step in (f"{OF_MEMORY}items", f"{OF_MEMORY}links", "ask", "about memory:"):
            assert await bench.queue.save_memo(claim, step, "1")
        await settle(bench, conflict(claim))
        (claim,) = await bench.claim()
        assert await bench.queue.load_memos(claim) == {"ask": "1", "about memory:": "1"}
        await settle(bench, Settlement(claim=claim, move=Move.RELEASE, attempt=False))


async def test_a_run_that_kept_nothing_else_leaves_nothing(bench: Bench) -> None:
    await bench.submit(ONE)
    (claim,) = await bench.claim()
    await bench.queue.save_memo(claim, f"{OF_MEMORY}items", "1")
    await settle(bench, conflict(claim))
    (claim,) = await bench.claim()
    assert await bench.queue.load_memos(claim) == {}
    await bench.queue.save_memo(claim, "ask", "1")
    await settle(bench, done(claim))
    assert await bench.queue.load_memos(claim) == {}


@pytest.mark.parametrize("move", [Move.RETRY, Move.RELEASE, Move.LOSE])
async def test_only_a_conflict_that_is_heard_drops_anything(bench: Bench, move: Move) -> None:
    await bench.submit(ONE)
    (claim,) = await bench.claim()
    await bench.queue.save_memo(claim, f"{OF_MEMORY}items", "1")
    await settle(bench, Settlement(claim=claim, move=move))
    assert await settle(bench, conflict(claim)) == ["stale"]
    (again,) = await bench.claim()
    assert await bench.queue.load_memos(again) == {f"{OF_MEMORY}items": "1"}
    assert again.message.conflicts == 0


async def test_the_history_says_why(bench: Bench) -> None:
    claim = await claim_after_conflicts(bench)
    await settle(bench, conflict(claim, None), conflict(claim, None))
    runs = await bench.views.history(Key("ann", "1"))
    assert [(run.outcome, run.error) for run in runs] == [("handed_back", "memory 'm' has version 2")]


async def test_what_was_to_be_cancelled_is_cancelled(bench: Bench) -> None:
    claim = await claim_after_conflicts(bench)
    await bench.control(CancelItems, user_id="ann")
    assert await settle(bench, conflict(claim)) == ["applied"]
    status = await bench.status(ONE)
    assert (status.status, status.conflicts) == (Status.CANCELLED, 2)
