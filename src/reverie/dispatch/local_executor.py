"""Running handlers: the interface, and the executor of this process (threads and the event loop)."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from reverie.base.clock import to_epoch_ms
from reverie.base.failpoints import failpoint
from reverie.base.threads import ThreadPool
from reverie.dispatch.answers import TIMED_OUT, Failed, concerns_all, read_answer, read_batch_answer
from reverie.observe.tracing import current_trace_id
from reverie.outcome import Bury, Cancel, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence
    from concurrent.futures import Future

    from reverie.backends.moves import Claim
    from reverie.dispatch.context import Context
    from reverie.dispatch.registry import Handler
    from reverie.message import Key, Lane, Message
    from reverie.outcome import Outcome

__all__ = ["Batch", "Executor", "LocalExecutor"]

LONGEST_BATCH_S = 0.1
"""A plain handler's batch hands the rest back after this; batches are formed to take less."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Claims of one label that run together: prefixes of one lane or of several."""

    batch_id: int
    handler: Handler
    claims: Sequence[Claim]
    seconds: dict[int, float] | None = None
    """How long the handler took for each claim it was called for, by the claim's `id`; a batch's call counts
    for all. None: nobody wants to know."""

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

    def cancel(self, keys: Collection[Key]) -> None:
        """Someone wants these messages cancelled: end their running calls, as far as that is possible.

        `ctx.cancelled` says so to a handler that looks, and what has not begun does not begin.
        """
        ...

    async def close(self) -> None:
        """Let go of threads and processes. Idempotent."""
        ...


class LocalExecutor:
    """Async handlers on the event loop, sync handlers on threads of their label."""

    def __init__(self, on_return: Callable[[], None] = lambda: None) -> None:
        """`on_return` hears when the thread of a handler that was given up comes back."""
        self._pools: dict[str, ThreadPool] = {}
        self._running: dict[int, tuple[_Call, asyncio.Future[None]]] = {}
        """With each call what is done when it is given up."""
        self._on_return = on_return
        self._hung: set[Future[None]] = set()

    @property
    def abandoned(self) -> int:
        """Threads that were given up and still hang."""
        return len(self._hung)

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        call, give_up = _Call(batch, context, timeout_s), asyncio.get_running_loop().create_future()
        self._running[batch.batch_id] = (call, give_up)
        try:
            if batch.handler.is_async:
                await self._guard(asyncio.ensure_future(call.run_async()), call, give_up, timeout_s)
            else:
                pool = self._pool(batch.handler)
                thread = pool.submit(call.run_sync)
                await self._guard(asyncio.wrap_future(thread), call, give_up, timeout_s)
                if call.given_up:
                    pool.replace_one()
                    self._count_until_back(thread)
        finally:
            del self._running[batch.batch_id]
        return [call.outcomes.get(index) for index in range(len(batch.claims))]

    async def abandon(self, batch_id: int) -> None:
        """See `Executor.abandon`."""
        if batch_id in self._running and not self._running[batch_id][1].done():
            self._running[batch_id][1].set_result(None)

    def cancel(self, keys: Collection[Key]) -> None:
        """See `Executor.cancel`."""
        for call, _ in self._running.values():
            call.cancel(keys)

    async def close(self) -> None:
        """See `Executor.close`."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, handler: Handler) -> ThreadPool:
        if handler.label not in self._pools:
            self._pools[handler.label] = ThreadPool(handler.concurrency, f"reverie-{handler.label}")
        return self._pools[handler.label]

    def _count_until_back(self, thread: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._hung.add(thread)

        def back() -> None:
            self._hung.discard(thread)
            self._on_return()

        def tell(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(back)

        thread.add_done_callback(tell)

    async def _guard(
        self, work: asyncio.Future[None], call: _Call, give_up: asyncio.Future[None], timeout_s: float
    ) -> None:
        """Wait for the work, unless one call of the handler takes too long or the batch is given up."""
        try:
            while not work.done():
                left = timeout_s if call.ends is None else call.ends - time.monotonic()
                if give_up.done():
                    call.give_up({})
                elif left <= 0:
                    call.give_up(call.too_late)
                if call.given_up:
                    return
                nap = min(left, call.next_deadline_s())
                await asyncio.wait((work, give_up), timeout=nap, return_when=asyncio.FIRST_COMPLETED)
            work.result()
        finally:
            work.cancel()


class _Call:
    """One batch on its way through its handler, and how far it has come.

    `_plan` decides what to call next and reads the answers; `run_sync` and `run_async` only do the calling,
    so that both kinds of handler follow one set of rules.
    """

    def __init__(self, batch: Batch, context: Context, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._handler = batch.handler
        self._seconds = batch.seconds
        self._began = 0.0
        self._messages = [claim.message for claim in batch.claims]
        self._claims = tuple(batch.claims)
        self._context = context
        self._current: Sequence[int] = ()
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = False
        self.outcomes: dict[int, Outcome] = {}
        self.ends: float | None = None
        """When the time of the present call is over, by the monotonic clock."""
        self._deadlines = [
            math.inf if m.deadline is None else to_epoch_ms(m.deadline) for m in self._messages
        ]
        self._has_deadlines = any(deadline != math.inf for deadline in self._deadlines)
        self._deadline: float | None = None
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
        self._task = asyncio.current_task()
        plan = self._plan()
        arguments = next(plan, None)
        while arguments is not None:
            try:
                answer = await self._handler.function(*arguments)
            except asyncio.CancelledError as error:
                answer = self._cancelled(error)
            except BaseException as error:  # noqa: BLE001  an answer like any other
                answer = error
            self._stop_cancelling()  # a handler may have ended without heeding it
            arguments = _next(plan, answer)

    def _stop_cancelling(self) -> None:
        if self._cancelling and self._task is not None:
            self._cancelling = False
            self._task.uncancel()

    def cancel(self, keys: Collection[Key]) -> None:
        """End the present call, if it can be and all its messages are to be cancelled."""
        current = [self._claims[index].key for index in self._current]
        if self._task is None or self._cancelling or not current:
            return
        if all(key in keys for key in current):
            self._cancelling = True
            self._task.cancel()

    def _cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """What it means that an async handler was interrupted."""
        if self._cancelling:
            self._stop_cancelling()
            return Cancel()
        if self._task is None or self._task.cancelling():
            raise error
        return error  # cancelled by something of its own, not by us

    def give_up(self, outcomes: dict[int, Outcome]) -> None:
        """Hear no further answers; what is being called now ends so."""
        self.given_up = True
        self.outcomes.update(outcomes)

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
            if stopped and self._messages[index].lane in stopped:
                continue
            if self._is_cancelled(index):
                self.outcomes[index] = Cancel()
                continue
            if self._is_late(index):
                self.outcomes[index] = Bury("deadline")
                continue
            if index and time.monotonic() - first > LONGEST_BATCH_S:
                return  # slower than it was: others may have room for the rest
            answer = yield self._arguments([index])
            self._record([index], answer)
            if self.given_up:
                return
            if self._handler.ordered and isinstance(self.outcomes.get(index), (Retry, Snooze)):
                stopped.add(self._messages[index].lane)

    def _is_late(self, index: int) -> bool:
        desk = self._context.desk
        return self._has_deadlines and desk is not None and self._deadlines[index] <= desk.clock.now()

    def _is_cancelled(self, index: int) -> bool:
        desk = self._context.desk
        return desk is not None and bool(desk.cancelled) and self._claims[index].key in desk.cancelled

    def _arguments(self, indexes: Sequence[int]) -> tuple[Any, ...]:
        messages = [self._messages[index] for index in indexes]
        self._set_time(indexes)
        self._current = indexes
        trace_id = messages[0].trace_id
        if len(messages) > 1 and any(message.trace_id != trace_id for message in messages):
            trace_id = None
        current_trace_id.set(trace_id)
        first: Message | list[Message] = messages if self._handler.is_batch else messages[0]
        if not self._handler.wants_context:
            return (first,)
        claims = tuple(self._claims[index] for index in indexes)
        return (first, replace(self._context, claims=claims, is_async=self._handler.is_async))

    def _set_time(self, indexes: Sequence[int]) -> None:
        """How long the next call may take: the handler's time limit, or until a deadline before that."""
        seconds, self._deadline = self._timeout_s, None
        desk = self._context.desk
        if self._has_deadlines and desk is not None:
            first = min(self._deadlines[index] for index in indexes)
            left = (first - desk.clock.now()) / 1000
            if left < seconds:
                seconds, self._deadline = max(0.0, left), first
        self._began = time.monotonic()
        self.ends = self._began + seconds

    @property
    def too_late(self) -> dict[int, Outcome]:
        """What becomes of the present call when its time is over; of messages that are not here, nothing."""
        if self._deadline is None:
            timeout = Failed(TIMED_OUT, f"timeout: one call took longer than {self._timeout_s:g} s")
            return dict.fromkeys(self._current, timeout)
        late = [index for index in self._current if self._deadlines[index] == self._deadline]
        return dict.fromkeys(late, Bury("deadline"))

    def next_deadline_s(self) -> float:
        """Seconds until the next deadline of a message of this batch: then it is worth looking again."""
        desk = self._context.desk
        if desk is None or not self._has_deadlines:
            return math.inf
        now = desk.clock.now()
        return min(((d - now) / 1000 for d in self._deadlines if d > now), default=math.inf)

    def _record(self, indexes: Sequence[int], answer: Any) -> None:
        failpoint("in_handler")
        if self.given_up:
            return
        if self._handler.is_batch:
            outcomes = read_batch_answer([self._messages[index] for index in indexes], answer)
        else:
            outcomes = [read_answer(answer)]
        self.outcomes.update(zip(indexes, outcomes, strict=True))
        if self._seconds is not None:
            took = time.monotonic() - self._began
            for index in indexes:
                self._seconds[id(self._claims[index])] = took


def _next(plan: Generator[tuple[Any, ...], Any, None], answer: Any) -> tuple[Any, ...] | None:
    try:
        return plan.send(answer)
    except StopIteration:
        return None
