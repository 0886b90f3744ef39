"""Wiring one process together: which backend, which store, which worker, from settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from reverie.backends.control import CancelItems, RequeueItems
from reverie.backends.durability import replicas_of
from reverie.backends.interface import SubmitsHere
from reverie.backends.memory import MemoryBackend
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.views import StatusQuery
from reverie.base.clock import SystemClock
from reverie.capture.ingester import SpoolIngester
from reverie.capture.spool import Spool
from reverie.capture.spool_reader import SpoolReader
from reverie.dispatch.bug_log import BugAlerts
from reverie.dispatch.registry import Registry
from reverie.dispatch.settings import LabelSettings
from reverie.dispatch.settlements import SettlementPolicy
from reverie.dispatch.supervisor import Supervisor
from reverie.dispatch.worker import Worker
from reverie.errors import InvalidSettingError, UnknownSchemeError
from reverie.handlers import BUILTIN
from reverie.memory.interface import Application
from reverie.memory.sqlite.store import SqliteMemoryStore, apply_effects
from reverie.message import check_batch, check_message
from reverie.observe.bus import EventBus
from reverie.observe.event_log import log_events
from reverie.observe.finishes import Finishes
from reverie.observe.metrics import Metrics
from reverie.observe.recorder import Recorder
from reverie.observe.sampler import DepthSampler
from reverie.observe.tracing import current_trace_id
from reverie.observe.watcher import AlertWatcher
from reverie.observe.webhook import Webhook
from reverie.settings import environment_of
from reverie.storage.sqlite import Database
from reverie.triggers.handlers import FAILED
from reverie.triggers.service import Triggers
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.control import Command, ControlResult
    from reverie.backends.interface import Backend
    from reverie.backends.moves import Accepted, Claim, Settlement, Submitted
    from reverie.base.clock import Clock
    from reverie.base.service import LoopService
    from reverie.dispatch.middleware import Middleware
    from reverie.message import Key, Message
    from reverie.settings import Settings

__all__ = ["Runtime"]

WATCH_GRACE_S = 5.0
"""A look at the rules may take so long when the process stops."""
FLUSH_S = 1.0
"""How long those who listen to events may take to hear the last ones."""
SCHEMES = ["sqlite:///", "redis://", "rediss://", "unix://", "memory://"]


class Runtime:
    """The parts of one process. Building it connects to nothing."""

    runs_here: ClassVar[bool] = False
    """Set in a worker process: handlers run in it, whatever `scheduler_startup_mode` says."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.app = settings.app
        """Where worker processes find the handlers of this scheduler."""
        self._opened = False
        self.clock = clock or SystemClock()
        self._databases: dict[str, Database] = {}
        self.store = SqliteMemoryStore(self._database(settings.memory_url), self.clock)
        self.backend = self._backend(settings.queue_url)
        queue = self.backend.queue
        self._takes_here = queue if isinstance(queue, SubmitsHere) else None
        self.registry = Registry(settings.worker, settings.labels)
        for label, function in BUILTIN.items():
            self.registry.add(label, function)
        self.limits = settings.limits.for_messages()
        self._policy = SettlementPolicy(
            limits=self.limits,
            level_of=self.registry.orchestrator.level,
            on_bug=BugAlerts(self.clock, settings.worker.bug_alert_s),
        )
        self.finishes = Finishes()
        self.bus = EventBus(self.backend.broadcast)
        self.recorder = Recorder(self.bus, self.clock, round(settings.worker.lease_s * 1000))
        if settings.events.log:
            self.bus.subscribe(log_events)
        self.triggers = Triggers(
            settings.scheduler,
            self.backend,
            register=self._register_task,
            handles=lambda label: self.registry.get(label) is not None,
            level_of=self.registry.orchestrator.level,
            limits=self.limits,
            opened=self.open,
        )
        self.metrics: Metrics | None = None
        self._middleware: list[Middleware] = []
        self.worker = self._new_worker()
        self.sampler = DepthSampler(
            self.backend, self.clock, every_s=settings.events.sample_s, keep=settings.events.samples_kept
        )
        self._webhook = Webhook(settings.alerts) if settings.alerts.webhook_url else None
        self.watcher = AlertWatcher(
            self.backend,
            self.clock,
            settings.alerts,
            self.bus,
            services=self._services,
            worker=lambda: self.worker.name,
            webhook=self._webhook,
            triggers=lambda: self.triggers.health(settings.alerts.trigger_late_s),
        )
        self._supervisor: Supervisor | None = None
        spool = settings.spool
        self.spool = Spool(settings.spool_dir, max_files=spool.max_files, max_file_bytes=spool.max_file_bytes)
        self.ingester: SpoolIngester | None = None
        """Takes spooled messages into the queue, while a worker or a server runs."""

    def register(
        self,
        label: str,
        function: Callable[..., Any] | str,
        *,
        batch: bool = False,
        options: LabelSettings | None = None,
        credential_of: Callable[[Message], str] | None = None,
    ) -> None:
        """Let `function` handle `label`, from now on if a worker runs."""
        self.registry.add(label, function, batch=batch, options=options, credential_of=credential_of)
        self.worker.more_room()
        self.triggers.clock.look()

    def _register_task(self, label: str, function: Callable[[Message], Any], task: TaskSettings) -> None:
        """Let `function` handle the messages of a timed task."""
        self.register(label, function, options=_options(task))

    def failed_task(self, claim: Claim) -> Settlement:
        """What it means that a timed task has failed which was done without a handler."""
        label = claim.message.label
        task = self.triggers.types.get(label) or TaskSettings()
        handler = Registry(self.settings.worker).add(label, bool, options=_options(task))
        return self._policy.failed(claim, handler, FAILED)

    def use(self, middleware: Middleware) -> None:
        """Let `middleware` stand around every run, inside of those before it, from now on."""
        self._middleware.append(middleware)
        self.worker.use(self._middleware)

    def prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Check messages and give each the level of its label."""
        for message in messages:
            check_message(message, self.limits)
        check_batch(messages)
        level, trace_id = self.registry.orchestrator.level, current_trace_id.get()
        levels = {label: level(label) for label in {message.label for message in messages}}
        return [
            msgspec.structs.replace(
                message, level=levels[message.label], trace_id=message.trace_id or trace_id
            )
            for message in messages
        ]

    def accepted(self, messages: Sequence[Message], answers: Sequence[Submitted], at: int) -> None:
        """The queue has answered a submit of then so: whoever listens hears of what is new."""
        if self.recorder.active:
            new = [m for m, a in zip(messages, answers, strict=True) if a.status == "accepted"]
            self.recorder.enqueued(new, at)

    @property
    def takes_from_threads(self) -> bool:
        """Whether a thread without an event loop may submit: the backend is open and can do it."""
        return self._opened and self._takes_here is not None

    def spool_messages(self, messages: Sequence[Message]) -> None:
        """Let messages wait on disk, in their order; when this returns all of them are there."""
        trace_id = current_trace_id.get()
        for message in messages:
            fields = msgspec.to_builtins(message)
            self.spool.write(fields | {"trace_id": message.trace_id or trace_id})

    def submit_from_thread(self, messages: Sequence[Message]) -> Accepted:
        """Submit prepared messages from the calling thread."""
        assert self._takes_here is not None
        return self._takes_here.submit_here(messages)

    async def open(self) -> None:
        """Connect, and create or upgrade what is missing. Idempotent."""
        if not self._opened:
            await self.store.open()
            await self.backend.open()
            self._opened = True

    def _services(self) -> tuple[LoopService, ...]:
        own = (self.sampler,) if self.ingester is None else (self.sampler, self.ingester)
        return (*self.worker.services, self.triggers.clock, *own)

    async def ingest(self) -> None:
        """Take spooled messages into the queue from now on. Idempotent."""
        await self.open()
        if self.ingester is None and not self.settings.queue_url.startswith("memory:"):
            files = SpoolReader(self.spool.folder, self.limits, self.spool.max_file_bytes)
            self.ingester = SpoolIngester(files, self._submit, self.settings.spool.look_s)
            await self.ingester.start()

    async def _submit(self, messages: Sequence[Message]) -> list[Submitted]:
        prepared, at = self.prepare(messages), self.clock.now()
        answers = (await self.backend.queue.submit(prepared)).answers
        self.accepted(prepared, answers, at)
        return answers

    async def control(self, command: Command) -> ControlResult:
        """Do what a person asks of the queue."""
        await self.open()
        result = await self.backend.queue.control(command)
        if isinstance(command, CancelItems):
            await self._cancelled(result.changed)
        elif isinstance(command, RequeueItems) and self.recorder.active:
            self.recorder.enqueued(await self._messages(result.changed))
        self.finishes.announce(result.changed)
        return result

    async def _cancelled(self, keys: Sequence[Key]) -> None:
        """Let those hear of it who must: listeners, and (two databases) the store.

        A late answer of a worker that lost one of these must find it closed there.
        """
        must_close = not self.backend.capabilities.applies_effects
        if not (must_close or self.recorder.active):
            return
        messages = await self._messages(keys)
        self.recorder.cancelled(messages)
        if must_close:
            lost = [Application(message=message, close=True) for message in messages if message.losses]
            await self.store.apply(lost)

    async def _messages(self, keys: Sequence[Key]) -> list[Message]:
        queries = [StatusQuery(user_id=k.user_id, item_id=k.item_id, with_message=True) for k in keys]
        rows = [row for query in queries for row in (await self.backend.views.read(query)).rows]
        return [row.message for row in rows if row.message is not None]

    async def watch(self) -> None:
        """Sample how much waits, and watch the rules of the alerts, until `stop`. Idempotent."""
        await self.open()
        await self.sampler.start()
        await self.watcher.start()

    @property
    def databases(self) -> list[Database]:
        """The SQLite files that this process uses."""
        return [one for one in self._databases.values() if one.path != ":memory:"]

    def measure(self) -> Metrics:
        """The metrics of this process, which are counted from the first call on."""
        if self.metrics is None:
            self.metrics = Metrics(self.bus, self.settings.events.metric_labels)
        return self.metrics

    async def start(self) -> None:
        """Run the worker, here or in processes of its own, and watch. Idempotent."""
        here = self.settings.scheduler_startup_mode == "thread" or self.runs_here
        if not here:
            self._check_startup_mode()
        await self.watch()
        if here:
            await self.worker.start()
            await self.triggers.start()
        elif self._supervisor is None:
            settings = self.settings.model_copy(update={"app": self.app})
            self._supervisor = Supervisor(
                processes=settings.worker.processes, environment=environment_of(settings)
            )
            await self._supervisor.start()
        await self.ingest()

    async def drain(self) -> None:
        """Without being started: fire what is due and run all that is ready, until there is nothing."""
        while True:
            due = await self.triggers.clock.fire_due()
            await self.worker.drain()
            if due is None or not due.triggers:
                return

    async def stop(self) -> None:
        """Stop the worker and let go of everything. Idempotent; a later start begins anew, on any loop."""
        supervisor, self._supervisor = self._supervisor, None
        await self.watcher.stop(WATCH_GRACE_S)
        await self.sampler.stop(WATCH_GRACE_S)
        if supervisor is not None:
            await supervisor.stop(self.settings.worker.grace_s)
        if self.ingester is not None:
            await self.ingester.stop(self.settings.worker.grace_s)
            self.ingester = None
        await self.triggers.stop(self.settings.worker.grace_s)
        await self.worker.stop(self.settings.worker.grace_s)
        self.worker = self._new_worker()
        await asyncio.to_thread(self.bus.flush, FLUSH_S)
        self.bus.rest()
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        await self.backend.close()
        await self.store.close()
        self._opened = False

    def _check_startup_mode(self) -> None:
        """Refuse to start processes that could not do the work of this scheduler."""
        problem = None
        if any(url.startswith("memory:") for url in (self.settings.queue_url, self.settings.memory_url)):
            problem = "memory:// lives in one process: use sqlite:///… or redis://…, or the mode thread"
        elif self.app is None and any(BUILTIN.get(h.label) is not h.function for h in self.registry.handlers):
            problem = (
                "other processes must be able to load your handlers: set app to module:attribute of this "
                "scheduler (REVERIE_APP), or use the mode thread"
            )
        if problem is not None:
            raise InvalidSettingError("scheduler_startup_mode", "process", problem)

    def _new_worker(self) -> Worker:
        settings = self.settings.worker
        return Worker(
            backend=self.backend,
            store=self.store,
            registry=self.registry,
            settings=settings,
            clock=self.clock,
            middleware=self._middleware,
            policy=self._policy,
            recorder=self.recorder,
            on_settled=self.finishes.announce,
        )

    def _backend(self, url: str) -> Backend:
        settings = self.settings.queue
        limits = settings.limits()
        scheme = urlsplit(url).scheme
        if replicas_of(settings.durability) and scheme in {"memory", "sqlite"}:
            reason = "only a server has replicas: use full or normal, or a queue on Redis"
            raise InvalidSettingError("queue.durability", settings.durability, reason)
        if scheme == "memory":
            return MemoryBackend(self.clock, limits)
        if scheme == "sqlite":
            same = url == self.settings.memory_url
            return SqliteBackend(self._database(url), self.clock, limits, apply_effects if same else None)
        if scheme in {"redis", "rediss", "unix"}:
            from reverie.backends.redis import RedisBackend  # noqa: PLC0415  an extra, loaded when asked for

            return RedisBackend(
                url,
                limits,
                prefix=settings.redis_prefix,
                allow_volatile=settings.allow_volatile,
                durability_assumed=settings.durability_assumed,
                durability=settings.durability,
                replication_timeout_s=settings.replication_timeout_s,
            )
        raise UnknownSchemeError(url, SCHEMES)

    def _database(self, url: str) -> Database:
        """The one writer of a file, shared by all rooms that live in it."""
        if url not in self._databases:
            queue = self.settings.queue
            self._databases[url] = Database(
                _path(url),
                queue.sqlite_durability,
                busy_timeout_s=queue.busy_timeout_s,
                allow_network_fs=queue.allow_network_fs,
            )
        return self._databases[url]


def _options(task: TaskSettings) -> LabelSettings:
    """How the messages of a timed task are run."""
    return LabelSettings(
        level=task.level,
        timeout_s=task.timeout,
        max_attempts=task.max_retries,
        backoff_s=task.retry.backoff_s,
        max_backoff_s=task.retry.max_backoff_s,
    )


def _path(url: str) -> str:
    if url.startswith("memory://"):
        return ":memory:"
    if not url.startswith("sqlite:///") or not url.removeprefix("sqlite:///"):
        raise UnknownSchemeError(url, ["sqlite:///path/to/file.db", "memory://"])
    return url.removeprefix("sqlite:///")
