"""Running handlers: the interface, and the executor of this process (threads and the event loop)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reverie.dispatch.answers import Failed, concerns_all, read_answer, read_batch_answer
from reverie.dispatch.failures import Failure
from reverie.failpoints import failpoint
from reverie.failures import FailureKind
from reverie.outcome import Retry, Snooze
from reverie.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.context import Context
    from reverie.dispatch.registry import Handler
    from reverie.message import Lane, Message
    from reverie.outcome import Outcome

__all__ = ["Batch", "Executor", "LocalExecutor"]

LONGEST_BATCH_S = 0.1
"""A plain handler's batch hands the rest back after this; batches are formed to take less."""
TIMED_OUT = Failure(kind=FailureKind.TRANSIENT, cause="timeout")


@dataclass(frozen=True, slots=True)
class Batch:
    """Claims of one label that run together: prefixes of one lane or of several."""

    batch_id: int
    handler: Handler
    claims: Sequence[Claim]

    @property
    def label(self) -> str:
        """The label of its messages."""
        return self.handler.label

    @property
    def messages(self) -> list[Message]:
        """What is to be run, in its order."""
        return [claim.message for claim in self.claims]


class Executor(Protocol):
    """A place where handlers run."""

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """Run a batch; answer one outcome for each of its claims, in their order. Never raises.

        None means that the message was not run: one before it in its lane must be retried, the batch took
        longer than expected, or it was abandoned. `timeout_s` is for one call of the handler; a longer one
        counts as failed.
        """
        ...

    async def abandon(self, batch_id: int) -> None:
        """Give a running batch up: what has no outcome yet is answered as not run."""
        ...

    async def close(self) -> None:
        """Let go of threads and processes. Idempotent."""
        ...


class LocalExecutor:
    """Async handlers on the event loop, sync handlers on threads of their label."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPool] = {}
        self._running: dict[int, tuple[_Call, asyncio.Event]] = {}
        self.abandoned = 0
        """Threads that were given up while their handler hung."""

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        call, give_up = _Call(batch, context), asyncio.Event()
        self._running[batch.batch_id] = (call, give_up)
        try:
            if batch.handler.is_async:
                await self._guard(asyncio.ensure_future(call.run_async()), call, give_up, timeout_s)
            else:
                pool = self._pool(batch.handler)
                await self._guard(asyncio.wrap_future(pool.submit(call.run_sync)), call, give_up, timeout_s)
                if call.given_up:
                    self.abandoned += 1
                    pool.replace_one()
        finally:
            del self._running[batch.batch_id]
        return [call.outcomes.get(index) for index in range(len(batch.claims))]

    async def abandon(self, batch_id: int) -> None:
        """See `Executor.abandon`."""
        if batch_id in self._running:
            self._running[batch_id][1].set()

    async def close(self) -> None:
        """See `Executor.close`."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, handler: Handler) -> ThreadPool:
        if handler.label not in self._pools:
            self._pools[handler.label] = ThreadPool(handler.concurrency, f"reverie-{handler.label}")
        return self._pools[handler.label]

    async def _guard(
        self, work: asyncio.Future[None], call: _Call, give_up: asyncio.Event, timeout_s: float
    ) -> None:
        """Wait for the work, unless one call of the handler takes too long or the batch is given up."""
        giving_up = asyncio.ensure_future(give_up.wait())
        both: set[asyncio.Future[Any]] = {work, giving_up}
        try:
            while not work.done():
                left = timeout_s if call.began is None else call.began + timeout_s - time.monotonic()
                if give_up.is_set():
                    call.give_up(None)
                elif left <= 0:
                    call.give_up(Failed(TIMED_OUT, f"timeout: one call took longer than {timeout_s:g} s"))
                if call.given_up:
                    return
                await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            work.result()
        finally:
            giving_up.cancel()
            work.cancel()


class _Call:
    """One batch on its way through its handler, and how far it has come.

    `_plan` decides what to call next and reads the answers; `run_sync` and `run_async` only do the calling,
    so that both kinds of handler follow one set of rules.
    """

    def __init__(self, batch: Batch, context: Context) -> None:
        self._handler = batch.handler
        self._messages = [claim.message for claim in batch.claims]
        self._context = context
        self._current: Sequence[int] = ()
        self.outcomes: dict[int, Outcome] = {}
        self.began: float | None = None
        self.given_up = False

    def run_sync(self) -> None:
        """Follow the plan on this thread."""
        plan = self._plan()
        arguments = next(plan, None)
        while arguments is not None:
            try:
                answer = self._handler.function(*arguments)
            except BaseException as error:  # noqa: BLE001  an answer like any other
                answer = error
            arguments = _next(plan, answer)

    async def run_async(self) -> None:
        """Follow the plan on the event loop."""
        plan = self._plan()
        arguments = next(plan, None)
        while arguments is not None:
            try:
                answer = await self._handler.function(*arguments)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                answer = error  # cancelled by something of its own, not by us
            except BaseException as error:  # noqa: BLE001  an answer like any other
                answer = error
            arguments = _next(plan, answer)

    def give_up(self, outcome: Outcome | None) -> None:
        """Hear no further answers; what is being called now ends as `outcome`."""
        self.given_up = True
        if outcome is not None:
            self.outcomes.update(dict.fromkeys(self._current, outcome))

    def _plan(self) -> Generator[tuple[Any, ...], Any, None]:
        """Yield the arguments of each call, be sent its answer."""
        everything = range(len(self._messages))
        if self._handler.is_batch:
            answer = yield self._arguments(everything)
            one_credential = not callable(self._handler.credential)
            poisoned = isinstance(answer, BaseException) and not concerns_all(
                answer, one_credential=one_credential
            )
            if not (poisoned and len(everything) > 1):
                self._record(everything, answer)
                return
        stopped: set[Lane] = set()  # lanes in which a message must come again before those after it
        first = time.monotonic()
        for index in everything:
            lane = self._messages[index].lane
            if lane in stopped:
                continue
            if index and time.monotonic() - first > LONGEST_BATCH_S:
                return  # slower than it was: others may have room for the rest
            answer = yield self._arguments([index])
            self._record([index], answer)
            if self.given_up:
                return
            if self._handler.ordered and isinstance(self.outcomes.get(index), (Retry, Snooze)):
                stopped.add(lane)

    def _arguments(self, indexes: Sequence[int]) -> tuple[Any, ...]:
        self._current = indexes
        self.began = time.monotonic()
        messages = [self._messages[index] for index in indexes]
        first: Message | list[Message] = messages if self._handler.is_batch else messages[0]
        return (first, self._context) if self._handler.wants_context else (first,)

    def _record(self, indexes: Sequence[int], answer: Any) -> None:
        failpoint("in_handler")
        if self.given_up:
            return
        if self._handler.is_batch:
            outcomes = read_batch_answer([self._messages[index] for index in indexes], answer)
        else:
            outcomes = [read_answer(answer)]
        self.outcomes.update(zip(indexes, outcomes, strict=True))


def _next(plan: Generator[tuple[Any, ...], Any, None], answer: Any) -> tuple[Any, ...] | None:
    try:
        return plan.send(answer)
    except StopIteration:
        return None
