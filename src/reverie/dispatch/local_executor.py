"""Run handlers in the worker's own process: async handlers on the event loop, others on threads."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reverie.base.clock import to_epoch_ms
from reverie.base.failpoints import failpoint
from reverie.base.threads import ThreadPool
from reverie.dispatch.answers import OUTCOMES, TIMED_OUT, Failed, concerns_all, read_answer, read_batch_answer
from reverie.observe.tracing import current_trace_id
from reverie.outcome import Bury, Cancel, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence
    from concurrent.futures import Future

    from reverie.base.clock import Clock
    from reverie.dispatch.context import Context
    from reverie.dispatch.interface import Batch
    from reverie.dispatch.registry import Handler
    from reverie.message import Key, Lane, Message
    from reverie.outcome import Outcome

__all__ = ["Call", "LocalExecutor"]

LONGEST_BATCH_S = 0.1
"""Seconds after which a plain handler's batch hands back its rest; batches are formed to take less."""


class LocalExecutor:
    """The places `loop` and `thread`. See `reverie.dispatch.interface.Executor`."""

    def __init__(self, on_abandoned: Callable[[int], None] = lambda _: None) -> None:
        """`on_abandoned` is told how many threads hang, each time that a thread is given up or comes back."""
        self._pools: dict[str, ThreadPool] = {}
        self._running: dict[int, tuple[Call, asyncio.Future[None]]] = {}
        """batch id → (its call, the future that is done when the call is given up)."""
        self._on_abandoned = on_abandoned
        self._hung: set[Future[None]] = set()

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        call = Call(batch, context, timeout_s, getattr(context.line, "clock", None))
        give_up = asyncio.get_running_loop().create_future()
        self._running[batch.batch_id] = (call, give_up)
        try:
            if batch.handler.place == "loop":
                await self._guard(asyncio.ensure_future(call.run_async()), call, give_up, timeout_s)
            else:
                pool = self._pools.get(batch.handler.label) or self._new_pool(batch.handler)
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

    def _new_pool(self, handler: Handler) -> ThreadPool:
        pool = self._pools[handler.label] = ThreadPool(handler.concurrency, f"reverie-{handler.label}")
        return pool

    def _count_until_back(self, thread: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._hung.add(thread)
        self._on_abandoned(len(self._hung))

        def back() -> None:
            self._hung.discard(thread)
            self._on_abandoned(len(self._hung))

        def tell(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(back)

        thread.add_done_callback(tell)

    async def _guard(
        self, work: asyncio.Future[None], call: Call, give_up: asyncio.Future[None], timeout_s: float
    ) -> None:
        """Wait until the work is done, one call of the handler takes too long, or the batch is given up."""
        try:
            while not work.done():
                left = timeout_s if call.ends is None else call.ends - time.monotonic()
                if give_up.done():
                    call.give_up({})
                elif left <= 0:
                    call.give_up(call.too_late)
                if call.given_up:
                    return
                nap = min(left, call.next_deadline_s()) if call.has_deadlines else left
                await asyncio.wait((work, give_up), timeout=nap, return_when=asyncio.FIRST_COMPLETED)
            work.result()
        finally:
            work.cancel()


class Call:
    """One batch on its way through its handler, and how far it has come.

    `_plan` decides what to call next and reads the answers. `run_sync` and `run_async` only call the handler:
    sync and async handlers follow the same rules.
    """

    def __init__(self, batch: Batch, context: Context, timeout_s: float, clock: Clock | None) -> None:
        """Without a clock, deadlines are ignored: in a child process, the worker watches them."""
        self._timeout_s = timeout_s
        self._handler = batch.handler
        self._seconds = batch.seconds
        self._calls = batch.calls
        self._began = 0.0
        self._claims = tuple(batch.claims)
        self._messages = [claim.message for claim in self._claims]
        self._context = context
        self._clock = clock
        self._answer: Any = None
        self._current: Sequence[int] = ()
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = False
        self.outcomes: dict[int, Outcome] = {}
        self.ends: float | None = None
        """When the present call times out, by the monotonic clock."""
        self._deadlines = [
            math.inf if clock is None or message.deadline is None else to_epoch_ms(message.deadline)
            for message in self._messages
        ]
        self.has_deadlines = any(deadline != math.inf for deadline in self._deadlines)
        self._deadline: float | None = None
        self.given_up = False

    def run_sync(self) -> None:
        """Follow the plan on this thread."""
        for arguments in self._plan(is_async=False):
            try:
                self._answer = self._handler.function(*arguments)
            except BaseException as error:  # noqa: BLE001  an answer like any other
                self._answer = error

    async def run_async(self) -> None:
        """Follow the plan on the event loop."""
        self._task = asyncio.current_task()
        for arguments in self._plan(is_async=True):
            try:
                self._answer = await self._handler.function(*arguments)
            except asyncio.CancelledError as error:
                self._answer = self._cancelled(error)
            except BaseException as error:  # noqa: BLE001  an answer like any other
                self._answer = error
            if self._cancelling:
                self._stop_cancelling()  # the handler ended without noticing the cancellation

    def _stop_cancelling(self) -> None:
        assert self._task is not None
        self._cancelling = False
        self._task.uncancel()

    def cancel(self, keys: Collection[Key]) -> None:
        """End the present call, if it is async and all its messages are to be cancelled."""
        current = [self._claims[index].key for index in self._current]
        if self._task is None or self._cancelling or not current:
            return
        if all(key in keys for key in current):
            self._cancelling = True
            self._task.cancel()

    def _cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """The answer of an async handler that was cancelled; raises if the whole batch is being ended."""
        if self._cancelling:
            self._stop_cancelling()
            return Cancel()
        if self._task is None or self._task.cancelling():
            raise error
        return error  # the handler itself has raised it

    def give_up(self, outcomes: dict[int, Outcome]) -> None:
        """Ignore all further answers; the present call ends with these outcomes."""
        self.given_up = True
        self.outcomes.update(outcomes)

    def _plan(self, *, is_async: bool) -> Generator[tuple[Any, ...], None, None]:
        """Yield the arguments of each call; the caller puts the answer into `_answer` before it continues."""
        everything = range(len(self._messages))
        if self._handler.is_batch:
            yield self._arguments(everything, is_async=is_async)
            answer = self._answer
            one_credential = not callable(self._handler.credential)
            poisoned = isinstance(answer, BaseException) and not concerns_all(
                answer, one_credential=one_credential
            )
            if not (poisoned and len(everything) > 1):
                self._record(everything, answer)
                return
        stopped: set[Lane] = set()  # lanes with a message that must run again before the next
        line, first = self._context.line, time.monotonic()
        for index in everything:
            if stopped and self._messages[index].lane in stopped:
                continue
            if line is not None and line.is_cancelled(self._messages[index].key):
                self.outcomes[index] = Cancel()
                continue
            if self.has_deadlines and self._clock and self._deadlines[index] <= self._clock.now():
                self.outcomes[index] = Bury("deadline")
                continue
            if index and time.monotonic() - first > LONGEST_BATCH_S:
                return  # slower than expected: other slots may take the rest
            yield self._arguments([index], is_async=is_async)
            self._record([index], self._answer)
            if self.given_up:
                return
            if self._handler.ordered and isinstance(self.outcomes.get(index), (Retry, Snooze)):
                stopped.add(self._messages[index].lane)

    def _arguments(self, indexes: Sequence[int], *, is_async: bool) -> tuple[Any, ...]:
        """The arguments of the next call. Its timeout starts now."""
        messages = [self._messages[index] for index in indexes]
        seconds, self._deadline = self._timeout_s, None
        if self.has_deadlines and self._clock is not None:
            earliest = min(self._deadlines[index] for index in indexes)
            left = (earliest - self._clock.now()) / 1000
            if left < seconds:
                seconds, self._deadline = max(0.0, left), earliest
        self._began = time.monotonic()
        self.ends = self._began + seconds
        self._current = indexes
        trace_id = messages[0].trace_id
        if len(messages) > 1 and any(message.trace_id != trace_id for message in messages):
            trace_id = None
        current_trace_id.set(trace_id)
        first: Message | list[Message] = messages if self._handler.is_batch else messages[0]
        if not self._handler.wants_context:
            return (first,)
        claims = tuple(self._claims[index] for index in indexes)
        return (first, self._context.for_call(claims, is_async=is_async))

    @property
    def too_late(self) -> dict[int, Outcome]:
        """The outcomes of the present call when it times out; at a deadline, of the messages that have it."""
        if self._deadline is None:
            timeout = Failed(TIMED_OUT, f"timeout: one call took longer than {self._timeout_s:g} s")
            return dict.fromkeys(self._current, timeout)
        late = [index for index in self._current if self._deadlines[index] == self._deadline]
        return dict.fromkeys(late, Bury("deadline"))

    def next_deadline_s(self) -> float:
        """Seconds until the next deadline of a message of this batch."""
        now = math.inf if self._clock is None else self._clock.now()
        return min(((d - now) / 1000 for d in self._deadlines if d > now), default=math.inf)

    def _record(self, indexes: Sequence[int], answer: Any) -> None:
        failpoint("in_handler")
        if self.given_up:
            return
        if self._handler.is_batch:
            outcomes = read_batch_answer([self._messages[index] for index in indexes], answer)
        else:
            outcomes = [answer if isinstance(answer, OUTCOMES) else read_answer(answer)]
        self.outcomes.update(zip(indexes, outcomes, strict=True))
        took = time.monotonic() - self._began
        self._calls.append(took)
        if self._seconds is not None:
            for index in indexes:
                self._seconds[id(self._claims[index])] = took
