"""The queue on SQLite: each move is one job of the file's single writer, and one transaction."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reverie.backends.sqlite import advance, claim, control, prune, settle, submit
from reverie.backends.sqlite.outbox import Outbox
from reverie.backends.sqlite.step import Step
from reverie.backends.wakeup import CANCELLED, Wakeup
from reverie.storage.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import Unpack

    import apsw

    from reverie.backends.control import Command, ControlResult
    from reverie.backends.moves import (
        Advance,
        Claim,
        ClaimRequest,
        EndedMessage,
        Presence,
        Pruned,
        QueueLimits,
        Renewal,
        Settled,
        Settlement,
        Submitted,
    )
    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.base.clock import Clock
    from reverie.message import Message
    from reverie.storage.peers import News
    from reverie.storage.sqlite import Database
    from reverie.storage.writer import WriteOptions

__all__ = ["SqliteQueue"]

T = TypeVar("T")

TAKES_IN_S = 1.0
"""How long after a submit more are expected."""
LOOK_AGAIN_MS = 2000
"""How often a worker looks for work by itself, because news from other processes can be lost."""


class SqliteQueue:
    """See `reverie.backends.interface.Queue`."""

    def __init__(
        self, database: Database, clock: Clock, limits: QueueLimits, apply_effects: ApplyEffects | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._apply_effects = apply_effects
        self._known_labels: set[str] = set()
        self._wakeup = Wakeup(clock)
        self._peers = Peers(database.path)
        self._overdue: list[EndedMessage] = []
        self._outbox = Outbox(partial(self._write, intake=True))
        self._taken_in_at = -TAKES_IN_S
        """When the last messages were submitted here, by the monotonic clock."""

    @property
    def takes_in(self) -> bool:
        """See `TakesIn.takes_in`."""
        return time.monotonic() - self._taken_in_at < TAKES_IN_S or self._database.intake_waits

    async def submit(self, messages: Sequence[Message]) -> list[Submitted]:
        """See `Queue.submit`."""
        self._taken_in_at = time.monotonic()
        return await self._outbox.put(messages)

    def submit_here(self, messages: Sequence[Message]) -> list[Submitted]:
        """See `SubmitsHere.submit_here`."""
        self._taken_in_at = time.monotonic()
        if not self._database.idle:
            return self._outbox.put_and_wait(messages)
        steps: list[Step] = []
        job = partial(self._run, steps, partial(submit.submit, messages=messages))
        answers = self._database.run_here(job)
        self._tell(steps[-1])
        return answers

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """See `Queue.claim`."""
        # A power cut ends the worker, too: it does not matter if the claim is forgotten with it.
        claimed = await self.written(partial(claim.claim, request=request), durable=False)
        self._overdue += claimed.overdue  # the next `advance` reports them
        return claimed.read()

    async def renew(
        self, claims: Sequence[Claim], lease_ms: int, presence: Presence | None = None
    ) -> Renewal:
        """See `Queue.renew`."""
        renew = partial(claim.renew, claims=claims, lease_ms=lease_ms, presence=presence)
        return await self.written(renew, durable=False, urgent=True)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See `Queue.settle`."""
        # A power cut undoes settlements whole, with their effects: the messages run again.
        return await self.written(partial(settle.settle, settlements=settlements), durable=False)

    async def save_memo(self, claim_: Claim, step: str, value: str) -> bool:
        """See `Queue.save_memo`."""
        return await self.written(
            partial(claim.save_memo, claim=claim_, name=step, value=value), patient=True
        )

    async def load_memos(self, claim_: Claim) -> dict[str, str]:
        """See `Queue.load_memos`."""
        return await self._database.read(partial(claim.load_memos, key=claim_.key))

    async def control(self, command: Command) -> ControlResult:
        """See `Queue.control`."""
        return await self.written(partial(control.control, command=command), urgent=True)

    async def advance(self, limit: int) -> Advance:
        """See `Queue.advance`."""
        done = await self.written(partial(advance.advance, limit=limit), durable=False)
        overdue, self._overdue = self._overdue, []
        return msgspec.structs.replace(done, ended=[*overdue, *done.ended])

    async def prune(self, limit: int, after: str | None = None) -> Pruned:
        """See `Queue.prune`."""
        return await self.written(partial(prune.prune, limit=limit, after=after), durable=False)

    async def wait(self, labels: Sequence[str], until: int | None) -> list[Claim]:
        """See `Queue.wait`."""
        if not self._peers.listens:
            self._peers.listen(self._hear)
        if tuple(labels) != (CANCELLED,):  # lost news of a cancellation comes with the next renewal
            look_again = self._clock.now() + LOOK_AGAIN_MS
            until = look_again if until is None else min(until, look_again)
        await self._wakeup.wait(labels, until)
        return []

    def close(self) -> None:
        """Stop listening to other processes."""
        self._peers.close()

    def _hear(self, news: News) -> None:
        self._wakeup.notify(news.labels)
        self._wakeup.expect(news.due)

    async def written(self, job: Callable[[Step], T], **options: Unpack[WriteOptions]) -> T:
        """Run one step in the next write transaction, and wait until it is committed."""
        return await asyncio.wrap_future(self._write(job, **options))

    def _write(self, job: Callable[[Step], T], **options: Unpack[WriteOptions]) -> Future[T]:
        """Run one step in the next write transaction; after the commit, wake the waits that it concerns."""
        steps: list[Step] = []

        def committed(future: Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._tell(steps[-1])

        future = self._database.submit(partial(self._run, steps, job), **options)
        future.add_done_callback(committed)
        return future

    def _run(self, steps: list[Step], job: Callable[[Step], T], connection: apsw.Connection) -> T:
        """Run a job in a new step, and add the step to `steps`: a job that runs again has several."""
        step = Step(connection, self._clock.now(), self._limits, self._apply_effects, self._known_labels)
        steps.append(step)
        answer = job(step)
        step.close()
        return answer

    def _tell(self, step: Step) -> None:
        """Wake the waits, also in other processes, that a step has given work or an earlier due time."""
        if step.woken or step.earliest is not None:
            self._wakeup.notify(step.woken)
            self._wakeup.expect(step.earliest)
            self._peers.tell(step.woken, step.earliest)
