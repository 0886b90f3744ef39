"""The life of one process: its parts, its services in order, opening and closing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import msgspec

from reverie.access.audit import Audit
from reverie.access.cubes import Cubes
from reverie.access.cursors import Cursors
from reverie.access.governance import UNGOVERNED_LABELS
from reverie.access.keys import ApiKeys
from reverie.access.paging import seen_page
from reverie.access.reads import MemoryReads
from reverie.assembly import (
    Databases,
    Modules,
    handler_options,
    new_backend,
    new_governance,
    new_models,
    new_place,
    new_registry,
    new_services,
    new_store,
    trigger_options,
    webhook_options,
)
from reverie.backends.views import Page
from reverie.base.clock import SystemClock
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.capture.context import ContextComposer
from reverie.capture.context_server import ContextServer
from reverie.capture.damaged import DamagedFiles
from reverie.capture.door import HookDoor
from reverie.capture.hook_exclusions import Exclusions
from reverie.capture.ingester import SpoolIngester
from reverie.capture.intake import Intake
from reverie.capture.notices import ContextNotices
from reverie.capture.query_notes import QueryNotes
from reverie.capture.spool import Spool
from reverie.capture.spool_reader import SpoolReader
from reverie.dispatch.bug_log import BugAlerts
from reverie.dispatch.settlements import SettlementPolicy
from reverie.dispatch.supervisor import Supervisor
from reverie.dispatch.worker import Worker
from reverie.errors import InvalidSettingError
from reverie.handlers.catalogue import CATALOGUE
from reverie.memory.buffer_sweeper import BufferSweeper
from reverie.memory.indexer import Indexer
from reverie.memory.session_watcher import SessionWatcher
from reverie.memory.upkeep_watcher import UpkeepWatcher
from reverie.models.gateway import Gateway
from reverie.models.usage import Ledger, VolatileLedger
from reverie.observe.bus import EventBus
from reverie.observe.event_log import log_events
from reverie.observe.events import Event, EventName
from reverie.observe.finishes import Finishes
from reverie.observe.metrics import Metrics
from reverie.observe.recorder import Recorder
from reverie.observe.rules import too_many_abandoned
from reverie.observe.sampler import DepthSampler
from reverie.observe.watcher import AlertWatcher
from reverie.observe.webhook import Webhook
from reverie.principal import LOCAL_ADMIN, Role, current_principal
from reverie.settings import environment_of
from reverie.triggers.activity import ActivityNotes
from reverie.triggers.service import Triggers
from reverie.webhooks.delivery import AT_ONCE, Deliveries
from reverie.webhooks.notices import Notices
from reverie.webhooks.records import LABEL as WEBHOOK
from reverie.webhooks.records import Webhooks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from reverie.backends.views import ItemStatus, StatusQuery
    from reverie.base.clock import Clock
    from reverie.base.service import Service
    from reverie.dispatch.middleware import Middleware
    from reverie.dispatch.registry import Handler
    from reverie.memory.sessions import Session
    from reverie.message import Message
    from reverie.observe.alert import Alert
    from reverie.settings import Settings
    from reverie.triggers.settings import TaskSettings

__all__ = ["ALL_DUTIES", "Duty", "Runtime"]

log = get_logger(__name__)

FLUSH_S = 1.0
"""How long event subscribers may take to receive the last events at the stop, in seconds."""

Duty = Literal["work", "ingest", "watch"]
"""work: run handlers, fire triggers. ingest: take in spooled messages. watch: sample depths, raise alerts."""
ALL_DUTIES: frozenset[Duty] = frozenset({"work", "ingest", "watch"})


class _Entry(NamedTuple):
    """A service of this process, and its duty."""

    duty: Duty
    service: Service


class Runtime:
    """The parts of one process. Building it connects to nothing."""

    runs_here: ClassVar[bool] = False
    """True in a worker process: handlers run in it, whatever `scheduler_startup_mode` says."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        modules: Modules = Modules(),  # noqa: B008
    ) -> None:
        """`modules` are components that the program brings; the settings name the others."""
        self.settings = settings
        self.app = settings.app
        """The import path by which worker processes find the handlers of this scheduler."""
        self.command_line: str | None = None
        """The command that has started this process; None if it is a program of the user's own."""
        self.opened = False
        self.clock = clock or SystemClock()
        self.limits = settings.limits.for_messages()
        self.databases = Databases(settings)
        self.models = new_models(settings, modules)
        self.store = modules.store or new_store(settings, self.clock, self.databases, self.models)
        self.reads = MemoryReads(self.store, new_governance(settings))
        """The store as the present caller may read it."""
        self.backend = new_backend(settings, self.clock, self.databases, self.store)
        self.audit = Audit(self.backend.records, self.clock)
        self.keys = ApiKeys(self.backend.records, self.audit, self.clock)
        self.cubes = Cubes(self.backend.records, self.audit, self.clock)
        self.cursors = Cursors(self.backend.records)
        self.registry = new_registry(settings)
        level_of = self.registry.orchestrator.level
        self.webhooks = Webhooks(
            self.backend.records, self.backend.views, self.audit, self.clock, settings.webhooks
        )
        self.notices = Notices(self.webhooks, self.backend.queue, self.clock, level_of)
        self.deliveries = Deliveries(
            self.webhooks, self.store, self.backend.views, self.clock, settings.webhooks
        )
        self.registry.add(
            WEBHOOK, self.deliveries.handler, options=webhook_options(settings.webhooks, AT_ONCE)
        )
        self.gateway = self._new_gateway()
        self.policy = SettlementPolicy(
            limits=self.limits,
            level_of=level_of,
            on_bug=BugAlerts(self.clock, settings.worker.bug_alert_s),
        )
        self.finishes = Finishes()
        self.bus = EventBus(self.backend.broadcast)
        self.recorder = Recorder(self.bus, self.clock, round(settings.worker.lease_s * 1000))
        if settings.events.log:
            self.bus.subscribe(log_events)
        self.metrics: Metrics | None = None
        self.middleware: list[Middleware] = []
        self.triggers = Triggers(
            settings.scheduler,
            self.backend,
            register=self._register_trigger,
            handles=lambda label: self.registry.get(label) is not None,
            has_own_handler=lambda label: any(handler.label == label for handler in self.own_handlers),
            level_of=level_of,
            limits=self.limits,
            opened=self.open,
            recorder=self.recorder,
        )
        self._build_capture()
        self.sampler = DepthSampler(
            self.backend, self.clock, every_s=settings.events.sample_s, keep=settings.events.samples_kept
        )
        self.watcher = AlertWatcher(
            self.backend,
            self.clock,
            settings.alerts,
            self.bus,
            services=self.loops,
            worker=lambda: self.worker.name,
            webhook=Webhook(settings.alerts) if settings.alerts.webhook_url else None,
            triggers=lambda: self.triggers.health(settings.alerts.trigger_late_s),
            abandoned=self.abandoned_alert,
            spent=self.gateway.budgets_spent,
            others=self.deliveries.alerts,
        )
        self.indexer = Indexer(self.store, self.clock, settings.memory)
        self.handler_options = handler_options(settings, self.models)
        self.buffer_sweeper = BufferSweeper(
            self.store,
            self.clock,
            settings.buffer,
            submit=partial(self.intake.submit, notes=False),
            wanted=lambda: self.reads_buffers,
        )
        self.upkeep_watcher = UpkeepWatcher(
            self.store,
            self.clock,
            settings.upkeep,
            settings.memory,
            submit=partial(self.intake.submit, notes=False),
        )
        self.worker = self._new_worker()
        self._brought = new_services(settings)
        self._services: list[_Entry] = []
        """The services that were started, in the order of their start."""
        self.registry.on_change = self._look_again

    def _build_capture(self) -> None:
        """Build the parts that take messages in."""
        self.activity = ActivityNotes(self.triggers)
        spool, capture = self.settings.spool, self.settings.capture
        self.spool = Spool(
            self.settings.spool_dir, max_files=spool.max_files, max_file_bytes=spool.max_file_bytes
        )
        self.intake = Intake(
            self.backend.queue,
            self.backend.views,
            limits=self.limits,
            level_of=self.registry.orchestrator.level,
            clock=self.clock,
            spool=self.spool,
            recorder=self.recorder,
            activity=self.activity,
            role_of=self.role_of,
            role_to_submit=self.role_to_submit,
            runtime=self,
            redacts=self.settings.capture.redact,
            exclude_tools=capture.exclude_tools,
        )
        self.query_notes = QueryNotes(self._submit_notes, self._is_half_full)
        self.damaged = DamagedFiles(
            Path(self.spool.folder), max_files=spool.max_damaged_files, max_bytes=spool.max_damaged_bytes
        )
        files = SpoolReader(self.spool.folder, self.limits, spool.max_file_bytes, self.damaged)
        self.door = HookDoor(
            self.store,
            on_noted=lambda note: self.context_server.noted(note),  # noqa: PLW0108  it is made below
            excludes=Exclusions(capture.exclude_tools, capture.exclude_projects),
        )
        self.ingester = SpoolIngester(files, self.intake.submit, spool.look_s, self.door)
        folder = self.settings.data_dir.expanduser().resolve()
        self.context_server = ContextServer(
            folder,
            self.door,
            ContextComposer(self.reads),
            look=self.ingester.look_now,
            notice=ContextNotices(folder, self._alerts).text,
        )
        self.session_watcher = SessionWatcher(
            self.store,
            self.clock,
            timeout_s=capture.session_timeout_s,
            check_s=capture.session_check_s,
            drain_s=capture.drain_s,
            tell=self._tell_session,
        )

    async def open(self) -> None:
        """Connect to the store and the backend, and create or upgrade them. Idempotent."""
        if not self.opened:
            await self.store.open()
            await self.backend.open()
            await self.keys.ever_made()  # this and the webhooks are known from now on, also while it is away
            await self.webhooks.current()
            self.activity.open()
            self.opened = True

    async def start(self, duties: Collection[Duty] = ALL_DUTIES) -> None:
        """Start the services of these duties, in the order of `_all_services`. Idempotent.

        If one cannot start, those that this call has started are stopped again.
        """
        if "work" in duties and not self.works_here:
            self._check_startup_mode()
        await self.open()
        started = {id(entry.service) for entry in self._services}
        has_supervisor = any(isinstance(entry.service, Supervisor) for entry in self._services)
        before = list(self._services)
        try:
            for entry in self._all_services(has_supervisor=has_supervisor):
                if entry.duty in duties and id(entry.service) not in started:
                    self._services.append(entry)
                    await entry.service.start()
        except BaseException:
            begun, self._services = self._services[len(before) :], before
            await self._stop_services(begun)
            raise

    async def stop(self) -> None:
        """Stop all services, the last first, and close the backend and the store. Idempotent.

        The runtime can be started again, on any event loop.
        """
        services, self._services = self._services, []
        if all(entry.service is not self.worker for entry in services):
            services.insert(0, _Entry("work", self.worker))  # a drain may have used it
        await self._stop_services(services)
        if self.opened:
            await self.query_notes.close()
            await self.activity.close()
        await asyncio.to_thread(self.bus.flush, FLUSH_S)
        self.bus.rest()
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        await self.gateway.close()
        self.deliveries.close()
        await self.backend.close()
        await self.store.close()
        await self.models.close()
        self.opened = False

    async def _stop_services(self, services: Sequence[_Entry]) -> None:
        """Stop services, the last first. One that cannot stop does not keep the others from it."""
        for entry in reversed(services):
            try:
                await entry.service.stop(self.settings.worker.grace_s)
            except Exception:
                log.exception("service.not_stopped", service=type(entry.service).__name__)
        if any(entry.service is self.worker for entry in services):
            self.worker = self._new_worker()

    async def drain(self) -> None:
        """Without a start: fire due triggers and run ready messages until nothing is left."""
        while True:
            due = await self.triggers.clock.fire_due()
            await self.worker.drain()
            if due is None or not due.triggers:
                return

    @property
    def works_here(self) -> bool:
        """Whether the handlers of a started scheduler run in this process."""
        return self.settings.scheduler_startup_mode == "thread" or self.runs_here

    @property
    def reads_buffers(self) -> bool:
        """Whether the workers of this installation turn buffered content into memories."""
        return self.models.has_language_model and self.settings.buffer.processor == "engine"

    def abandoned_alert(self) -> Alert | None:
        """The alert about threads that hang in this process; None if they are few.

        A worker process raises none, because it starts anew.
        """
        if self.runs_here or not self.worker.too_many_abandoned:
            return None
        return too_many_abandoned(
            self.worker.abandoned,
            self.settings.worker.max_abandoned,
            command_line=self.command_line,
            obstacle=self._obstacle_to_processes(),
        )

    @property
    def own_handlers(self) -> list[Handler]:
        """The handlers that are not built in."""
        built_in = {entry.label: entry.function for entry in CATALOGUE}
        built_in[WEBHOOK] = self.deliveries.handler
        return [h for h in self.registry.handlers if built_in.get(h.label) is not h.function]

    def loops(self) -> list[LoopService]:
        """The loops of the services that were started, for readiness and for the watcher."""
        services = [entry.service for entry in self._services]
        parts = [part for service in services for part in getattr(service, "services", (service,))]
        return [part for part in parts if isinstance(part, LoopService)]

    @property
    def started(self) -> bool:
        """Whether services of this process run."""
        return bool(self._services)

    def does(self, duty: Duty) -> bool:
        """Whether a service of this duty was started."""
        return any(entry.duty == duty for entry in self._services)

    def measure(self) -> Metrics:
        """The metrics of this process. They are counted from the first call on."""
        if self.metrics is None:
            self.metrics = Metrics(self.bus, self.settings.events.metric_labels)
        return self.metrics

    def _all_services(self, *, has_supervisor: bool) -> Iterator[_Entry]:
        """All services of this process, in the order of their start. A new service is added here."""
        if self.works_here:
            yield _Entry("work", self.worker)
            yield _Entry("work", self.triggers)
            yield _Entry("work", self.indexer)
            yield _Entry("work", self.buffer_sweeper)
            yield _Entry("work", self.upkeep_watcher)
            yield _Entry("work", self.session_watcher)
        elif not has_supervisor:
            settings = self.settings.model_copy(update={"app": self.app})
            environment = environment_of(settings)
            yield _Entry("work", Supervisor(processes=settings.worker.processes, environment=environment))
        for service in self._brought:
            yield _Entry("work", service)
        if not self.settings.queue_url.startswith("memory:"):
            yield _Entry("ingest", self.ingester)
            yield _Entry("ingest", self.context_server)
        yield _Entry("watch", self.sampler)
        yield _Entry("watch", self.watcher)

    def _new_gateway(self) -> Gateway:
        """The gateway to the language model, with the ledger of the store."""
        ledger: Ledger = VolatileLedger()
        if isinstance(self.store, Ledger):
            ledger = self.store
        elif self.models.has_language_model:
            hint = "the budgets of llm.tokens_per_day and llm.money_per_day begin anew with each start"
            log.warning("llm.no_ledger", store=type(self.store).__name__, hint=hint)
        shared, settings = self.backend.shared, self.settings.llm
        told = self.notices.tell_budget
        return Gateway(self.models, ledger, shared, settings, self.clock, on_spent=told)

    def _new_worker(self) -> Worker:
        return Worker(
            backend=self.backend,
            store=self.store,
            models=self.models,
            gateway=self.gateway,
            registry=self.registry,
            policy=self.policy,
            settings=self.settings.worker,
            clock=self.clock,
            new_place=new_place,
            recorder=self.recorder,
            middleware=self.middleware,
            prepare_s=self.settings.memory.prepare_s,
            prune_s=self.settings.queue.prune_s,
            finishes=self.finishes,
            options=self.handler_options,
            extraction_of=self.settings.extraction.of_cube,
            notices=self.notices,
        )

    def role_of(self, label: str) -> Role:
        """The weakest role that may submit a label: by the settings, or else by its handler.

        Without either, the timed tasks that belong to no user need the role service.
        """
        named = self.registry.role_of(label)
        if named is not None:
            return Role.of_title(named)
        task = self.triggers.types.get(label)
        return Role.USER if task is None or task.trigger_mode == "user_activity" else Role.SERVICE

    def role_to_submit(self, label: str) -> Role:
        """The weakest role that may submit messages of a label with any content.

        Under governance it is admin for handlers that read and change memories without asking the governance,
        unless the settings name the role.
        """
        labels = self.settings.labels
        is_named = label in labels and labels[label].role is not None
        if self.reads.is_governed and label in UNGOVERNED_LABELS and not is_named:
            return Role.ADMIN
        return self.role_of(label)

    async def own_items(self, query: StatusQuery) -> Page:
        """Read items as the present caller may see them: those of other cubes do not exist for the caller.

        The errors are whole for admins alone.
        """
        principal = current_principal.get()

        async def read(after: str | None, limit: int) -> tuple[list[ItemStatus], str | None]:
            page = await self.backend.views.read(msgspec.structs.replace(query, after=after, limit=limit))
            return page.rows, page.next

        if principal.cubes is None:
            rows, follows = await read(query.after, query.limit)
        else:
            rows, follows = await seen_page(
                read, query.after, query.limit, lambda row: principal.may_touch(row.user_id, row.mem_cube_id)
            )
        if principal.role < Role.ADMIN:
            rows = [msgspec.structs.replace(row, error=principal.error_shown(row.error)) for row in rows]
        return Page(rows=rows, next=follows)

    async def _alerts(self) -> list[Alert]:
        return (await self.watcher.look())[1]

    def _tell_session(self, session: Session, what: str) -> None:
        self.bus.publish(
            [
                Event(
                    EventName.SESSION,
                    self.clock.now(),
                    user_id=session.user_id,
                    item_id=session.session_id,
                    mem_cube_id=session.mem_cube_id,
                    status=session.status,
                    error=what,
                )
            ]
        )

    async def _submit_notes(self, messages: Sequence[Message]) -> None:
        current_principal.set(LOCAL_ADMIN)  # the notes of many callers are handed over together
        await self.intake.submit(messages, notes=False)

    async def _is_half_full(self) -> bool:
        """Whether more than half of the messages wait that the queue may have."""
        most = self.settings.queue.max_depth
        if most is None:
            return False
        labels = await self.backend.views.labels()
        return 2 * sum(label.waiting + label.in_progress for label in labels) > most

    def _look_again(self) -> None:
        """Look for work again: after a handler was added, there may be more to claim and to fire."""
        self.worker.more_room()
        self.triggers.look_again()

    def _register_trigger(self, label: str, function: Callable[[Message], Any], task: TaskSettings) -> None:
        self.registry.add(label, function, options=trigger_options(task))

    def _check_startup_mode(self) -> None:
        """Refuse the mode `process` if worker processes could not reach the queue, memory or handlers."""
        problem = self._obstacle_to_processes()
        if problem is not None:
            raise InvalidSettingError("scheduler_startup_mode", "process", problem)

    def _obstacle_to_processes(self) -> str | None:
        """Why worker processes could not reach the queue, memory or handlers; None if they can."""
        if any(url.startswith("memory:") for url in (self.settings.queue_url, self.settings.memory_url)):
            return "memory:// lives in one process: use sqlite:///… or redis://…, or the mode thread"
        if self.app is None and self.own_handlers:
            return (
                "other processes must be able to load your handlers: set app to module:attribute of this "
                "scheduler (REVERIE_APP), or use the mode thread"
            )
        return None
