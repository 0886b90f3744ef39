"""The table of states, walked: every state there is, and everything that can happen to it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.conftest import Bench, message
from reverie.backends.control import CancelItems, DeleteItems, RequeueItems
from reverie.backends.moves import Claim, Move, Settlement, Status
from reverie.backends.states import STORED_AS, TIMED_TASK, TRANSITIONS, Cause
from reverie.base.clock import from_epoch_ms

MOVES = {
    Cause.COMPLETE: Move.COMPLETE,
    Cause.RETRY: Move.RETRY,
    Cause.RELEASE: Move.RELEASE,
    Cause.LOSE: Move.LOSE,
    Cause.LOSE_LAST: Move.LOSE,
    Cause.BURY: Move.BURY,
}
LEASE_MS = 10_000_000


class Walk:
    """One message on its way. It has a parent and a deadline only where something is to come of them."""

    def __init__(self, bench: Bench, cause: Cause) -> None:
        self.bench = bench
        self.claim: Claim | None = None
        fields = {}
        if cause is Cause.DEADLINE:
            fields = {"deadline": from_epoch_ms(bench.clock.now()) + timedelta(seconds=10)}
        if cause is Cause.PARENT_FAILS:
            fields = {"depends_on": ("parent",)}
        self.message = message("1", **fields)
        self.parent: Claim | None = None

    async def reach(self, status: Status | None) -> None:
        if self.message.depends_on:
            await self.bench.submit(message("parent", label="parent"))
            (self.parent,) = await self.bench.claim("parent", lease_ms=LEASE_MS)
        if status is None:
            return
        await self.bench.submit(self.message)
        if status is Status.WAITING:
            return
        if self.message.depends_on:
            await self.bench.queue.settle([Settlement(claim=self.parent, move=Move.COMPLETE)])
        await self.take()
        if status is not Status.IN_PROGRESS:
            ends = {Status.COMPLETED: Move.COMPLETE, Status.FAILED: Move.BURY, Status.CANCELLED: Move.CANCEL}
            await self.settle(ends[status])

    async def take(self) -> None:
        claims = await self.bench.claim(lease_ms=LEASE_MS)
        self.claim = claims[0] if claims else self.claim

    async def settle(self, move: Move) -> None:
        if self.claim is not None:
            await self.bench.queue.settle([Settlement(claim=self.claim, move=move, error="no")])

    async def suffer(self, cause: Cause) -> None:
        match cause:
            case Cause.SUBMIT:
                await self.bench.submit(self.message)
            case Cause.CLAIM:
                await self.take()
            case Cause.LOSE_LAST:
                for _ in range(3):
                    await self.settle(Move.LOSE)
                    if self.claim is not None:
                        await self.take()
            case Cause.CANCEL:
                await self.bench.control(CancelItems, user_id="ann", item_ids=("1",))
                await self.settle(Move.CANCEL)
            case Cause.DEADLINE:
                await self.bench.advance(20)
            case Cause.PARENT_FAILS:
                if self.parent is not None:
                    await self.bench.queue.settle([Settlement(claim=self.parent, move=Move.BURY, error="no")])
            case Cause.REQUEUE:
                await self.bench.control(RequeueItems, user_id="ann", item_ids=("1",))
            case Cause.DELETE:
                await self.bench.control(DeleteItems, user_id="ann", item_ids=("1",))
            case Cause.EXPIRE:
                await self.bench.advance(61)
            case _:
                await self.settle(MOVES[cause])

    async def status(self) -> Status | None:
        row = await self.bench.status(self.message)
        return None if row is None else row.status


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("status", [None, *Status])
async def test_every_state_and_all_that_can_happen_to_it(
    bench: Bench, status: Status | None, cause: Cause
) -> None:
    walk = Walk(bench, cause)
    await walk.reach(status)
    assert await walk.status() == status
    await walk.suffer(cause)
    assert await walk.status() == TRANSITIONS.get((status, cause), status)


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == {None, *Status}
    assert {status for status, _ in TRANSITIONS} == {None, *Status}
    assert set(STORED_AS) == set(TIMED_TASK) == set(Status)
    assert set(STORED_AS.values()) == {"pending", "processing", "completed", "failed"}
    assert set(TIMED_TASK.values()) == {"pending", "running", "completed", "failed"}
