"""The public face: `AsyncScheduler`, and `Scheduler` for code that blocks. Both only delegate."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack

from reverie.backends.moves import Submitted
from reverie.backends.views import StatusQuery
from reverie.base.bridge import Bridge, blocking, run_here
from reverie.base.failpoints import failpoint
from reverie.capture.intake import add_message
from reverie.errors import BackendUnavailableError, UnknownItemError, WaitTimeoutError
from reverie.face.control import AsyncControl, Control
from reverie.face.observation import AsyncObservation, Observation
from reverie.face.registration import Registration
from reverie.face.triggers import AsyncTimedTasks, TimedTasks
from reverie.memory.interface import SearchQuery
from reverie.message import Key, Message, content_text, new_item_id
from reverie.observe.status import ALL_ITEMS
from reverie.runtime import Runtime
from reverie.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from reverie.backends.views import ItemStatus
    from reverie.base.clock import Clock
    from reverie.dispatch.middleware import Middleware
    from reverie.memory.interface import Hit, MemoryItem
    from reverie.turn import Turn

__all__ = ["AsyncMemory", "AsyncScheduler", "Memory", "Scheduler"]

R = TypeVar("R")
P = ParamSpec("P")
Inner = TypeVar("Inner")
F = TypeVar("F", bound="Callable[..., Any] | str")
M = TypeVar("M", bound="Middleware")

POLL_S = 0.5
"""How often `wait` looks again when another process does the work; this process's own is heard at once."""


class SubmitOptions(TypedDict, total=False):
    """When a message runs, and in which company; see `Message`."""

    due: datetime | None
    deadline: datetime | None
    depends_on: tuple[str, ...]
    if_dependency_fails: Literal["fail", "run"]
    unique_key: str | None
    unique_window_s: float
    unique_policy: Literal["skip", "replace", "extend"]


class MessageFields(SubmitOptions, total=False):
    """What `submit` takes beside a label and a user."""

    content: Any
    mem_cube_id: str
    item_id: str | None
    session_id: str | None
    task_id: str | None
    trace_id: str | None
    user_name: str | None
    info: dict[str, Any] | None


class AsyncScheduler(Registration):
    """Takes in messages and, inside `async with`, runs a worker for their handlers."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        """Use the queue at `url` (sqlite:///…, redis://…, memory://); default: what the settings say.

        Nothing is opened until it is used. `clock` is for tests.
        """
        settings = settings or load_settings()
        if url is not None:
            settings = settings.model_copy(update={"queue": settings.queue.model_copy(update={"url": url})})
        self.runtime = Runtime(settings, clock)
        self.memory = AsyncMemory(self)
        self.control = AsyncControl(self.runtime)
        self.observe = AsyncObservation(self.runtime)
        self.triggers = AsyncTimedTasks(self.runtime)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def open(self) -> None:
        """Connect without running a worker. Every call does this by itself; idempotent."""
        await self.runtime.open()

    async def start(self) -> None:
        """Run a worker for the registered handlers. Idempotent."""
        await self.runtime.start()

    async def stop(self) -> None:
        """Stop claiming, let handlers finish within the grace time, hand the rest back, disconnect."""
        await self.runtime.stop()

    async def submit(
        self,
        label: str,
        *,
        user_id: str,
        content: Any = "",
        mem_cube_id: str = "",
        item_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        trace_id: str | None = None,
        user_name: str | None = None,
        info: dict[str, Any] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Hand over one message; when this returns it is kept.

        `content` is text, or anything that can be written as JSON. The rest is as in `Message`; giving an
        `item_id` makes it safe to repeat the call. If a `unique_key` is taken, the answer has the id of the
        message that has it.
        """
        message = self._message(
            label,
            user_id=user_id,
            content=content,
            mem_cube_id=mem_cube_id,
            item_id=item_id,
            session_id=session_id,
            task_id=task_id,
            trace_id=trace_id,
            user_name=user_name,
            info=info,
            **options,
        )
        return (await self.submit_messages([message]))[0]

    async def capture(self, label: str, *, user_id: str, **fields: Unpack[MessageFields]) -> Submitted:
        """Like `submit`, but if the backend is away the message waits on disk: then the answer is `spooled`.

        A worker or a server that uses the same data folder takes it to the queue when the backend is back.
        """
        message = self._message(label, user_id=user_id, **fields)
        return (await self._hand_over([message], spools=True))[0]

    def _message(self, label: str, *, user_id: str, **fields: Unpack[MessageFields]) -> Message:
        made: dict[str, Any] = {**fields, "item_id": fields.get("item_id") or new_item_id()}
        made["content"] = content_text(fields.get("content", ""), self.runtime.limits)
        return Message(label=label, user_id=user_id, **made)

    async def submit_messages(self, messages: Sequence[Message]) -> list[Submitted]:
        """Hand over messages; all are kept, or (one is refused) none.

        With the setting `spool.submits` they wait on disk if the backend is away, as those of `capture` do.
        """
        return await self._hand_over(messages, spools=self.runtime.settings.spool.submits)

    async def _hand_over(self, messages: Sequence[Message], *, spools: bool) -> list[Submitted]:
        prepared, at = self.runtime.prepare(messages), self.runtime.clock.now()
        failpoint("before_accept")
        try:
            accepted = await self._submit(prepared)
        except BackendUnavailableError:
            if not spools:
                raise
            await self._spool(messages)
            return [Submitted(message.item_id, "spooled") for message in messages]
        failpoint("after_accept")
        self.runtime.accepted(prepared, accepted, at)
        return accepted

    async def _submit(self, prepared: Sequence[Message]) -> list[Submitted]:
        await self.open()
        return await self.runtime.backend.queue.submit(prepared)

    async def _spool(self, messages: Sequence[Message]) -> None:
        await asyncio.to_thread(self.runtime.spool_messages, messages)

    async def status(self, user_id: str, task_id: str | None = None) -> list[ItemStatus]:
        """The items of a user; with `task_id`, the one of that item id or those of that business task."""
        await self.open()
        views = self.runtime.backend.views
        if task_id is None:
            return (await views.read(StatusQuery(user_id=user_id, limit=ALL_ITEMS))).rows
        rows = (await views.read(StatusQuery(user_id=user_id, item_id=task_id))).rows
        rows = rows or (await views.read(StatusQuery(user_id=user_id, task_id=task_id, limit=ALL_ITEMS))).rows
        if not rows:
            raise UnknownItemError(user_id, task_id)
        return rows

    async def wait(self, item_id: str, *, user_id: str, timeout: float = 30) -> ItemStatus:  # noqa: ASYNC109
        """Wait until a message has ended, and say how; `WaitTimeoutError` if it has not in time."""
        deadline = time.monotonic() + timeout
        with self.runtime.finishes.watch([Key(user_id, item_id)]) as settled:
            while True:
                settled.clear()
                item = await self._item(user_id, item_id)
                left = deadline - time.monotonic()
                if item.status.ended:
                    return item
                if left <= 0:
                    raise WaitTimeoutError(item_id, item.status, timeout)
                await _either(settled, min(left, POLL_S))

    async def _item(self, user_id: str, item_id: str) -> ItemStatus:
        await self.open()
        rows = (await self.runtime.backend.views.read(StatusQuery(user_id=user_id, item_id=item_id))).rows
        if not rows:
            raise UnknownItemError(user_id, item_id)
        return rows[0]

    async def get_task_status_by_business_id(
        self, business_task_id: str, user_id: str
    ) -> dict[str, Any] | None:
        """How a business task stands, over all its items; None if nobody knows it."""
        return await self.observe.tasks.get_task_status_by_business_id(business_task_id, user_id)

    async def schedule_user_task(
        self, task_type: str, user_id: str, device_id: str | None = None, agent_id: str | None = None
    ) -> bool:
        """Note that a user was active: a run of this type follows after its interval.

        True only if a new run was scheduled; a type that is unknown, disabled or of another trigger mode is
        not, with a warning in the log.
        """
        return (await self.schedule_user_tasks(task_type, [(user_id, device_id, agent_id)]))[0]

    async def schedule_user_tasks(
        self, task_type: str, whose: Sequence[tuple[str, str | None, str | None]]
    ) -> list[bool]:
        """The same for many users, each with a device and an agent, in one step."""
        return await self.runtime.triggers.schedule(
            task_type,
            [{"user_id": user, "device_id": device, "agent_id": agent} for user, device, agent in whose],
        )

    async def start_background_monitor(self) -> None:
        """Sample how much waits and watch the alerts, without running a worker. Idempotent."""
        await self.runtime.watch()


class AsyncMemory:
    """Remembering and finding, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def add(
        self,
        text: str | Sequence[Turn],
        *,
        user_id: str,
        mem_cube_id: str = "",
        item_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Submitted:
        """Hand over something to remember; when this returns it is kept, soon after it is found."""
        message = add_message(
            text,
            user_id=user_id,
            mem_cube_id=mem_cube_id,
            item_id=item_id or new_item_id(),
            session_id=session_id,
            task_id=task_id,
            info=info,
        )
        return (await self._scheduler.submit_messages([message]))[0]

    async def search(
        self, query: str, *, user_id: str, mem_cube_ids: Sequence[str] = (), limit: int = 10
    ) -> list[Hit]:
        """The memories of a user that fit best, best first."""
        await self._scheduler.open()
        search = SearchQuery(text=query, user_id=user_id, mem_cube_ids=tuple(mem_cube_ids), limit=limit)
        return await self._scheduler.runtime.store.search(search)

    async def get(self, memory_id: str, *, user_id: str) -> MemoryItem | None:
        """One memory of a user."""
        await self._scheduler.open()
        return await self._scheduler.runtime.store.get(user_id, memory_id)


class _DirectScheduler(AsyncScheduler):
    """Submits on the calling thread, straight to the writer: its submits never wait for an event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.memory = AsyncMemory(self)

    async def _submit(self, prepared: Sequence[Message]) -> list[Submitted]:
        return self.runtime.submit_from_thread(prepared)

    async def _spool(self, messages: Sequence[Message]) -> None:
        self.runtime.spool_messages(messages)


def _submitting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The blocking form of a method that submits: on this thread where the backend allows it."""
    by_bridge = blocking(method)

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._direct is None or not self._direct.runtime.takes_from_threads:
            return by_bridge(self, *args, **kwargs)
        inner = self._direct if isinstance(self, Scheduler) else self._direct.memory
        answer: R = run_here(getattr(inner, method.__name__)(*args, **kwargs))
        return answer

    return functools.update_wrapper(call, method)


class Scheduler(Registration):
    """Like `AsyncScheduler`, for code that blocks: the same names, the same arguments."""

    _inner_class = AsyncScheduler
    _submits_directly = True

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        """See `AsyncScheduler`."""
        self._inner = self._inner_class(url, settings=settings, clock=clock)
        self._bridge = Bridge()
        self._closing = threading.Lock()
        self.runtime = self._inner.runtime
        self._direct = _DirectScheduler(self.runtime) if self._submits_directly else None
        self.memory = Memory(self._inner.memory, self._bridge, self._direct)
        self.control = Control(self._inner.control, self._bridge)
        self.observe = Observation(self._inner.observe, self._bridge)
        self.triggers = TimedTasks(self._inner.triggers, self._bridge)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def asynchronous(self) -> AsyncScheduler:
        """The async face of this very scheduler."""
        return self._inner

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run async work on this scheduler's own event loop and wait for it."""
        return self._bridge.run(work)

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Use it without running a worker, and let go of everything after."""
        try:
            yield self
        finally:
            self.close()

    def close(self) -> None:
        """Stop, and end the thread that did the work. Idempotent; a later use opens it again."""
        with self._closing:
            self.stop()
            self._bridge.close()

    open = blocking(AsyncScheduler.open)
    start = blocking(AsyncScheduler.start)
    stop = blocking(AsyncScheduler.stop)
    submit = _submitting(AsyncScheduler.submit)
    capture = _submitting(AsyncScheduler.capture)
    submit_messages = _submitting(AsyncScheduler.submit_messages)
    status = blocking(AsyncScheduler.status)
    wait = blocking(AsyncScheduler.wait)
    get_task_status_by_business_id = blocking(AsyncScheduler.get_task_status_by_business_id)
    start_background_monitor = blocking(AsyncScheduler.start_background_monitor)
    schedule_user_task = blocking(AsyncScheduler.schedule_user_task)
    schedule_user_tasks = blocking(AsyncScheduler.schedule_user_tasks)

    @property
    def memos_message_queue(self) -> Scheduler:
        """Where messages are submitted, by the name that other systems use for it."""
        return self


class Memory:
    """Remembering and finding, as part of a `Scheduler`."""

    def __init__(self, inner: AsyncMemory, bridge: Bridge, direct: AsyncScheduler | None) -> None:
        self._inner = inner
        self._bridge = bridge
        self._direct = direct

    add = _submitting(AsyncMemory.add)
    search = blocking(AsyncMemory.search)
    get = blocking(AsyncMemory.get)


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
