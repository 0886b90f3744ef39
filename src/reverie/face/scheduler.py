"""The public schedulers: `AsyncScheduler`, and `Scheduler` for code that blocks. Both only delegate."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict, TypeVar, Unpack

from reverie.assembly import Modules
from reverie.backends.views import LONGEST_PAGE, StatusQuery, check_cursor
from reverie.base.bridge import Bridge, blocking, submitting
from reverie.errors import InvalidSelectionError, ReverieError, UnknownItemError, WaitTimeoutError
from reverie.face.buffers import AsyncBuffers, Buffers
from reverie.face.capture import AsyncCapture, Capture
from reverie.face.control import AsyncControl, Control
from reverie.face.extraction import AsyncExtractions, Extractions
from reverie.face.keys import AsyncAudit, AsyncKeys, AuditLog, Keys
from reverie.face.memory import AsyncMemory, Memory
from reverie.face.observation import AsyncObservation, Observation
from reverie.face.registration import Registration
from reverie.face.sessions import AsyncSessions, Sessions
from reverie.face.timed_work import TimedWork
from reverie.face.triggers import AsyncTimedTasks, TimedTasks
from reverie.face.upkeep import AsyncUpkeep, Upkeep
from reverie.face.webhooks import AsyncWebhooks, Webhooks
from reverie.message import Key, Message, check_ids, content_text, new_item_id
from reverie.observe.status import ALL_ITEMS
from reverie.principal import current_principal
from reverie.runtime import Runtime
from reverie.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from reverie.backends.moves import Submitted
    from reverie.backends.views import ItemStatus, Page
    from reverie.base.clock import Clock
    from reverie.dispatch.middleware import Middleware
    from reverie.memory.interface import MemoryStore
    from reverie.message import UniquePolicy
    from reverie.models.interface import Embedder, LanguageModel, Reranker

__all__ = ["AsyncMemory", "AsyncScheduler", "Memory", "Scheduler"]

R = TypeVar("R")
M = TypeVar("M", bound="Middleware")

POLL_S = 0.5
"""How often `wait` looks again, in seconds. Work that this process finishes is noticed at once."""


class SubmitOptions(TypedDict, total=False):
    """When a message runs, what it depends on, and what makes it unique; see `Message`."""

    due: datetime | None
    deadline: datetime | None
    depends_on: tuple[str, ...]
    if_dependency_fails: Literal["fail", "run"]
    unique_key: str | None
    unique_window_s: float
    unique_policy: UniquePolicy


class MessageFields(SubmitOptions, total=False):
    """The arguments of `submit` besides a label and a user."""

    content: Any
    mem_cube_id: str
    item_id: str | None
    session_id: str | None
    task_id: str | None
    trace_id: str | None
    user_name: str | None
    info: dict[str, Any] | None


class Submits(Protocol):
    """A function that submits messages: on the event loop, on the calling thread, or after a start."""

    async def __call__(self, messages: Sequence[Message], *, spools: bool = False) -> list[Submitted]:
        """See `Intake.submit`."""
        ...


class AsyncScheduler(Registration):
    """Accepts messages and, inside `async with`, runs a worker for their handlers."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        """Use the queue at `url` (sqlite:///…, redis://…, memory://); default: the one of the settings.

        The queue is opened when it is first used. `clock` is for tests.
        """
        settings = settings or load_settings()
        if url is not None:
            settings = settings.model_copy(update={"queue": settings.queue.model_copy(update={"url": url})})
        self._bind(Runtime(settings, clock))

    def _bind(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._submit: Submits = runtime.intake.submit
        self.memory = AsyncMemory(self)
        self.buffers = AsyncBuffers(self)
        self.capture = AsyncCapture(self)
        self.sessions = AsyncSessions(self)
        self.extraction = AsyncExtractions(self)
        self.upkeep = AsyncUpkeep(self)
        self.control = AsyncControl(runtime)
        self.observe = AsyncObservation(runtime)
        self.triggers = AsyncTimedTasks(runtime)
        self.keys = AsyncKeys(runtime)
        self.audit = AsyncAudit(runtime)
        self.webhooks = AsyncWebhooks(runtime)

    def initialize_modules(
        self,
        *,
        store: MemoryStore | None = None,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        language_model: LanguageModel | None = None,
    ) -> None:
        """Use these components in place of those that the settings name.

        Call this first: before handlers are registered, and before the scheduler is opened.
        """
        old = self.runtime
        if old.opened or old.own_handlers or old.middleware:
            raise ReverieError(
                "initialize_modules comes first: before handlers, middleware and the first use"
            )
        modules = Modules(store, embedder, reranker, language_model)
        self._bind(Runtime(old.settings, old.clock, modules))

    def init_mem_cube(self, mem_cube_id: str) -> None:
        """Let `memory.add` and `memory.search` use this cube where none is named."""
        check_ids(self.runtime.limits, mem_cube_id=mem_cube_id)
        self.memory.default_cube = mem_cube_id

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

    async def start_consumer(self) -> None:
        """Run a worker: another name for `start`."""
        await self.start()

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
        """Submit one message; when this returns, the message is kept.

        `content` is text, or anything that can be written as JSON. The other arguments are fields of
        `Message`; giving an `item_id` makes it safe to repeat the call. If a `unique_key` is taken, the
        answer has the id of the message that has it.
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

    async def capture_message(
        self, label: str, *, user_id: str, **fields: Unpack[MessageFields]
    ) -> Submitted:
        """See `AsyncCapture.__call__`."""
        message = self._message(label, user_id=user_id, **fields)
        return (await self._submit([message], spools=True))[0]

    def _message(self, label: str, *, user_id: str, **fields: Unpack[MessageFields]) -> Message:
        made: dict[str, Any] = {**fields, "item_id": fields.get("item_id") or new_item_id()}
        made["content"] = content_text(fields.get("content", ""), self.runtime.limits)
        return Message(label=label, user_id=user_id, **made)

    async def submit_messages(self, messages: Sequence[Message]) -> list[Submitted]:
        """Submit messages: all are kept, or none if one is refused.

        With the setting `spool.submits` they wait on disk if the backend is away, as with `capture`.
        """
        return await self._submit(messages, spools=self.runtime.settings.spool.submits)

    async def status(self, user_id: str, task_id: str | None = None) -> list[ItemStatus]:
        """The status of a user's items; with `task_id`, of the item or the business task with that id."""
        check_ids(self.runtime.limits, user_id=user_id, task_id=task_id)
        await self.open()
        read = self.runtime.own_items
        if task_id is None:
            return (await read(StatusQuery(user_id=user_id, limit=ALL_ITEMS))).rows
        rows = (await read(StatusQuery(user_id=user_id, item_id=task_id))).rows
        rows = rows or (await read(StatusQuery(user_id=user_id, task_id=task_id, limit=ALL_ITEMS))).rows
        if not rows:
            raise UnknownItemError(user_id, task_id)
        return rows

    async def status_page(self, user_id: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of the status of a user's items, oldest first; `cursor` is the `next` of the page before.

        Items that are submitted meanwhile come after those that were there.
        """
        check_cursor("cursor", cursor)
        if not 1 <= limit <= LONGEST_PAGE:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {LONGEST_PAGE}")
        await self.open()
        query = StatusQuery(user_id=user_id, limit=limit, after=cursor)
        return await self.runtime.own_items(query)

    async def wait(self, item_id: str, *, user_id: str, timeout: float = 30) -> ItemStatus:  # noqa: ASYNC109
        """Wait until a message has ended, and return its status; else raise `WaitTimeoutError`."""
        check_ids(self.runtime.limits, user_id=user_id, item_id=item_id)
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
        rows = (await self.runtime.own_items(StatusQuery(user_id=user_id, item_id=item_id))).rows
        if not rows:
            raise UnknownItemError(user_id, item_id)
        return rows[0]

    async def get_task_status_by_business_id(
        self, business_task_id: str, user_id: str
    ) -> dict[str, Any] | None:
        """The status of a business task, over all its items; None if it is unknown."""
        return await self.observe.tasks.get_task_status_by_business_id(business_task_id, user_id)

    async def periodic_memory_compression_for_user(
        self,
        user_id: str,
        device_id: str | None = None,
        agent_id: str | None = None,
        interval_seconds: float = 1800,
    ) -> bool:
        """Compress each cube of a user that has changed, and wait for it; True if all went well.

        The interval is the least window: all that has changed since the last success is looked at, however
        long ago that was. A worker of this queue does the work, within the timeout of the task type.
        """
        return await TimedWork(self).compress(user_id, device_id, agent_id, interval_seconds)

    async def cleanup_expired_data(self) -> bool:
        """Remove the memories of all users whose time is over, and wait for it; True if all went well.

        These are items past their `expires_at`, and those older than `memory.retention_s` allows.
        """
        return await TimedWork(self).clean_up()

    async def schedule_user_task(
        self, task_type: str, user_id: str, device_id: str | None = None, agent_id: str | None = None
    ) -> bool:
        """Note that a user was active: a run of this type follows after its interval.

        Returns True only if a new run was scheduled. For a type that is unknown, disabled or of another
        trigger mode none is, and the log has a warning.
        """
        return (await self.schedule_user_tasks(task_type, [(user_id, device_id, agent_id)]))[0]

    async def schedule_user_tasks(
        self, task_type: str, whose: Sequence[tuple[str, str | None, str | None]]
    ) -> list[bool]:
        """Note that many users were active, each with a device and an agent, in one step."""
        return await self.runtime.triggers.schedule(
            task_type,
            [{"user_id": user, "device_id": device, "agent_id": agent} for user, device, agent in whose],
        )

    async def start_background_monitor(self) -> None:
        """Run the depth sampler and the alert watcher, without a worker. Idempotent."""
        await self.runtime.start({"watch"})


class _DirectScheduler(AsyncScheduler):
    """Submits on the calling thread, directly to the writer, without waiting for an event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._submit = runtime.intake.submit_directly
        self.memory = AsyncMemory(self)


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
        self._bind()

    def _bind(self) -> None:
        self.runtime = self._inner.runtime
        is_direct = self._submits_directly and self.runtime.intake.takes_from_threads
        self._on_thread = _DirectScheduler(self.runtime) if is_direct else None
        self.memory = Memory(self._inner.memory, self._bridge, self._direct_memory)
        self.buffers = Buffers(self._inner.buffers, self._bridge)
        self.capture = Capture(self._inner.capture, self._bridge, self.capture_message)
        self.sessions = Sessions(self._inner.sessions, self._bridge)
        self.extraction = Extractions(self._inner.extraction, self._bridge)
        self.upkeep = Upkeep(self._inner.upkeep, self._bridge)
        self.control = Control(self._inner.control, self._bridge)
        self.observe = Observation(self._inner.observe, self._bridge)
        self.triggers = TimedTasks(self._inner.triggers, self._bridge)
        self.keys = Keys(self._inner.keys, self._bridge)
        self.audit = AuditLog(self._inner.audit, self._bridge)
        self.webhooks = Webhooks(self._inner.webhooks, self._bridge)

    def initialize_modules(self, **modules: Any) -> None:
        """See `AsyncScheduler.initialize_modules`."""
        self._inner.initialize_modules(**modules)
        self._bind()

    def init_mem_cube(self, mem_cube_id: str) -> None:
        """See `AsyncScheduler.init_mem_cube`."""
        self._inner.init_mem_cube(mem_cube_id)
        if self._on_thread is not None:
            self._on_thread.init_mem_cube(mem_cube_id)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _direct(self) -> AsyncScheduler | None:
        """The scheduler that submits on the calling thread; None if there is none, or nothing is open yet.

        Messages of a caller who may touch only some cubes are not for it: the intake looks items up for them.
        """
        return self._on_thread if self.runtime.opened and current_principal.get().cubes is None else None

    def _direct_memory(self) -> AsyncMemory | None:
        direct = self._direct()
        return None if direct is None else direct.memory

    @property
    def asynchronous(self) -> AsyncScheduler:
        """The async form of this scheduler: the same queue, worker and event loop."""
        return self._inner

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run async work on this scheduler's own event loop and wait for it."""
        return self._bridge.run(work)

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Use the scheduler without running a worker, and close it at the end."""
        try:
            yield self
        finally:
            self.close()

    def close(self) -> None:
        """Stop, and end the thread of the event loop. Idempotent; a later call opens the scheduler again."""
        with self._closing:
            self.stop()
            self._bridge.close()

    open = blocking(AsyncScheduler.open)
    start = blocking(AsyncScheduler.start)
    start_consumer = blocking(AsyncScheduler.start_consumer)
    stop = blocking(AsyncScheduler.stop)
    submit = submitting(AsyncScheduler.submit)
    capture_message = submitting(AsyncScheduler.capture_message)
    submit_messages = submitting(AsyncScheduler.submit_messages)
    status = blocking(AsyncScheduler.status)
    status_page = blocking(AsyncScheduler.status_page)
    wait = blocking(AsyncScheduler.wait)
    get_task_status_by_business_id = blocking(AsyncScheduler.get_task_status_by_business_id)
    start_background_monitor = blocking(AsyncScheduler.start_background_monitor)
    periodic_memory_compression_for_user = blocking(AsyncScheduler.periodic_memory_compression_for_user)
    cleanup_expired_data = blocking(AsyncScheduler.cleanup_expired_data)
    schedule_user_task = blocking(AsyncScheduler.schedule_user_task)
    schedule_user_tasks = blocking(AsyncScheduler.schedule_user_tasks)

    @property
    def memos_message_queue(self) -> Scheduler:
        """This scheduler, under the name that other systems use for the queue that takes messages."""
        return self


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
