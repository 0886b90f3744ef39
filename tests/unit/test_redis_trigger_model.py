"""The same random steps with triggers in memory and on Redis: what anyone can ask is answered the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from reverie.backends.control import CancelItems, Selection
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, QueueLimits, Settlement, Want
from reverie.backends.triggers import (
    GLOBAL_KEY,
    Activity,
    CancelTrigger,
    Definition,
    Firing,
    RunTrigger,
    SwitchType,
)
from reverie.message import Message
from reverie.testing import ManualClock
from support.redis_bench import NOW, Bench, open_bench

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reverie.backends.moves import Claim
    from reverie.backends.triggers import DueTrigger

DEPENDS_ON = {"a": (), "b": ("a",), "c": ("b", "a"), "p": (), "q": ("p",)}
"""Types of users, and two of nobody."""
USERS = ("u", "v", "w")
LIMITS = QueueLimits(max_losses=2, retention_ms=10**10)
STEPS = 100


class Twins:
    """Two backends that are told the same."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock, self.bench = ManualClock(start_ms=NOW), bench
        self.backends = (MemoryBackend(self.clock, LIMITS), bench.backend)
        self.held: list[tuple[Claim, Claim]] = []
        self.runs = 0

    async def ask(self, question: Callable[..., Awaitable]):
        """Ask both; the answer."""
        model, found = [await question(backend) for backend in self.backends]
        assert found == model
        return model

    def activity(self) -> Activity:
        choose = self.random.choice
        user = choose(USERS)
        return Activity(
            task_type=choose("abc"),
            user_key=f"{user}:phone",
            user_id=user,
            device_id=choose([None, "phone"]),
            interval_ms=choose([1000, 2500, 10_000]),
            debounce=choose([True, False]),
            max_wait_ms=choose([None, 4000]),
        )

    def firing(self, task: DueTrigger) -> Firing:
        self.runs += 1
        next_at = None if task.user_key else task.anchor + 3000
        made = Message(
            user_id=task.user_id or "_system",
            label=task.task_type,
            item_id=f"run {self.runs}",
            level=3,
            user_key=task.user_key,
        )
        skipped = next_at is not None and self.random.random() < 0.2
        return Firing(trigger=task, message=None if skipped else made, next_at=next_at, next_anchor=next_at)

    async def put(self) -> None:
        choose = self.random.choice
        name = choose("abcpq")
        first_due = self.clock.now() + 2000 if name in "pq" else None
        one = Definition(
            name=name,
            fields={"interval": choose("12")},
            enabled=choose([True, True, False]),
            version=choose([1, 2, 3]),
            first_due=first_due,
        )
        await self.ask(lambda backend: backend.triggers.put([one], whole=False))

    async def touch(self) -> None:
        batch = [self.activity() for _ in range(3)]
        await self.ask(lambda backend: backend.triggers.touch(batch))

    async def pass_time(self) -> None:
        seconds = self.random.choice([0.001, 0.5, 1, 3, 10])
        self.clock.advance(seconds)
        self.bench.clock.advance(seconds)

    async def fire(self) -> None:
        names = self.random.sample(sorted(DEPENDS_ON), self.random.randint(1, 5))
        limit = self.random.choice([0, 1, 2, 100])
        types = {name: DEPENDS_ON[name] for name in names}
        due = await self.ask(lambda backend: backend.triggers.due(types, limit))
        firings = [self.firing(task) for task in due.triggers]
        for _ in range(2):  # the second time it is too late
            await self.ask(lambda backend: backend.triggers.fire(firings))

    async def settle(self) -> None:
        wants = {name: Want(slots=9, per_slot=9, ordered=False) for name in DEPENDS_ON}
        request = ClaimRequest(worker="w", wants=wants, lease_ms=10**9)
        claimed = [
            {claim.message.item_id: claim for claim in await backend.queue.claim(request)}
            for backend in self.backends
        ]
        assert claimed[0].keys() == claimed[1].keys()
        self.held += [(claimed[0][item_id], claimed[1][item_id]) for item_id in sorted(claimed[0])]
        self.random.shuffle(self.held)
        rows = [
            (pair, self.random.choice([Move.COMPLETE, *Move]))
            for pair in [self.held.pop() for _ in range(self.random.randint(0, len(self.held)))]
        ]
        for place, backend in enumerate(self.backends):
            answers = await backend.queue.settle([_settlement(pair[place], move) for pair, move in rows])
            assert {answer.state for answer in answers} <= {"applied"}

    async def control(self) -> None:
        choose, one = self.random.choice, self.activity()
        command = choose(
            [
                RunTrigger(one),
                RunTrigger(msgspec.structs.replace(one, task_type=choose("pq"), user_key=GLOBAL_KEY)),
                CancelTrigger(one.task_type, one.user_key),
                SwitchType(choose("abcpqx"), enabled=choose([True, True, False])),
            ]
        )
        await self.ask(lambda backend: backend.triggers.control(command))

    async def cancel_run(self) -> None:
        which = Selection(user_id=self.random.choice([*USERS, "_system"]), limit=1)
        await self.ask(lambda backend: backend.queue.control(CancelItems(which)))

    async def compare(self) -> None:
        for name in DEPENDS_ON:
            await self.ask(lambda backend, name=name: backend.triggers.states(name))
        await self.ask(lambda backend: backend.triggers.statistics())
        await self.ask(lambda backend: backend.triggers.types())


def _settlement(claim: Claim, move: Move) -> Settlement:
    counts = move not in {Move.RELEASE, Move.LOSE}
    error = "no" if move in {Move.RETRY, Move.BURY} else None
    return Settlement(claim=claim, move=move, attempt=counts, error=error)


@pytest.mark.parametrize("seed", range(6))
async def test_triggers_are_what_they_are_in_memory(redis_url: str, seed: int) -> None:
    async with open_bench(redis_url, LIMITS) as bench:
        twins = Twins(bench, seed)
        users = [Definition(name=name, fields={"interval": "1"}, enabled=True, version=1) for name in "abc"]
        await twins.ask(lambda backend: backend.triggers.put(users))
        often = [twins.touch, twins.pass_time, twins.fire, twins.settle]
        seldom = [twins.put, twins.control, twins.cancel_run]
        for _ in range(STEPS):
            await twins.random.choice([*often, *often, *seldom])()
            await twins.compare()
