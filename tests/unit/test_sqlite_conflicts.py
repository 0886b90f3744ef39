"""Queue and memory in one file: effects that meet another version of an item, and the rest of their lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie.backends.moves import ClaimRequest, Move, Settled, Settlement, Status, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.views import StatusQuery
from reverie.effect import Remember
from reverie.errors import VersionConflictError
from reverie.message import Message
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.backends.moves import Claim
    from reverie.testing import ManualClock

CONFLICT = VersionConflictError("changed", 1, 2)
MET = Settled(state="conflict", error=str(CONFLICT))
BEHIND = Settled(state="conflict")
APPLIED = Settled(state="applied")
REQUEST = ClaimRequest(worker="w", wants={"work": Want(slots=100, per_slot=10)})


def apply(connection, messages, now) -> None:
    """Write a row for each effect; one of the memory `changed` meets another version of it."""
    for message, effects, _ in messages:
        for effect in effects:
            connection.execute("INSERT INTO written VALUES (?, ?)", (message.item_id, effect.memory_id))
            if effect.memory_id == "changed":
                raise CONFLICT


class Bench:
    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database = database
        self.backend = SqliteBackend(database, clock, apply_effects=apply)
        self.queue = self.backend.queue

    async def claim(self, *items: str) -> list[Claim]:
        """Submit messages and claim them; `b1` and `b2` are of user b."""
        messages = [Message(user_id=item[0], item_id=item, label="work") for item in items]
        await self.queue.submit(messages)
        claims = await self.queue.claim(REQUEST)
        assert [claim.message.item_id for claim in claims] == list(items)
        return claims

    async def written(self) -> list[str]:
        rows = await self.database.read(lambda c: c.execute("SELECT item_id FROM written").fetchall())
        return [item for (item,) in rows]

    async def statuses(self, user: str) -> list[Status]:
        return [row.status for row in (await self.backend.views.read(StatusQuery(user_id=user))).rows]


@pytest.fixture
async def bench(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    bench = Bench(Database(str(tmp_path / "q.db"), "normal"), clock)
    await bench.backend.open()
    await bench.database.write(lambda c: c.execute("CREATE TABLE written (item_id, memory_id)"))
    yield bench
    await bench.backend.close()


def done(claim: Claim, *memories: str, **fields) -> Settlement:
    effects = tuple(Remember(memory_id=memory, text="words") for memory in memories)
    return Settlement(claim=claim, move=Move.COMPLETE, effects=effects, **fields)


async def test_nothing_of_it_takes_hold_and_the_claim_still_holds(bench: Bench) -> None:
    (claim,) = await bench.claim("a1")
    child = Message(user_id="a", item_id="a2", label="next")
    assert await bench.queue.settle([done(claim, "new", "changed", follow_ups=(child,))]) == [MET]
    assert await bench.written() == []
    assert await bench.statuses("a") == [Status.IN_PROGRESS]
    assert await bench.backend.views.history(claim.key) == []
    assert (await bench.queue.renew([claim], 30_000)).lost == []
    assert await bench.queue.settle([done(claim, "new")]) == [APPLIED]


async def test_the_rest_of_its_lane_is_left_and_other_lanes_are_not(bench: Bench) -> None:
    a1, a2, a3, a4, b1, b2 = await bench.claim("a1", "a2", "a3", "a4", "b1", "b2")
    answers = await bench.queue.settle(
        [
            done(a1, "one"),
            done(b1),
            done(a2, "changed"),
            done(a3),
            Settlement(claim=a4, move=Move.RETRY, error="no"),
            done(b2, "two"),
        ]
    )
    assert answers == [APPLIED, APPLIED, MET, BEHIND, BEHIND, APPLIED]
    assert await bench.written() == ["a1", "b2"]
    assert await bench.statuses("a") == [Status.COMPLETED, *[Status.IN_PROGRESS] * 3]
    assert await bench.statuses("b") == [Status.COMPLETED] * 2
    claims = [a2, a3, a4]
    back = [Settlement(claim=claim, move=Move.RELEASE, attempt=False, conflict=True) for claim in claims]
    assert await bench.queue.settle(back) == [APPLIED] * 3
    again = await bench.queue.claim(REQUEST)
    assert [(claim.message.item_id, claim.message.attempts) for claim in again] == [
        ("a2", 0),
        ("a3", 0),
        ("a4", 0),
    ]


async def test_a_completion_before_the_conflict_is_kept(bench: Bench) -> None:
    a1, a2 = await bench.claim("a1", "a2")
    assert await bench.queue.settle([done(a1), done(a2, "changed")]) == [APPLIED, MET]
    assert await bench.statuses("a") == [Status.COMPLETED, Status.IN_PROGRESS]


async def test_the_next_call_settles_the_lane_again(bench: Bench) -> None:
    a1, a2 = await bench.claim("a1", "a2")
    assert await bench.queue.settle([done(a1, "changed")]) == [MET]
    assert await bench.queue.settle([done(a1, "new"), done(a2)]) == [APPLIED, APPLIED]


def test_the_error_says_what_was_expected_and_found() -> None:
    assert (CONFLICT.memory_id, CONFLICT.expected, CONFLICT.found) == ("changed", 1, 2)
    assert str(CONFLICT) == "memory 'changed' has version 2, but the change is based on version 1"
    gone = str(VersionConflictError("changed", 1, None))
    assert gone == "memory 'changed' is gone, but the change is based on version 1"
