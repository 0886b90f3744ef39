"""Wiring one process together: which backend, which store, which worker, from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import QueueLimits
from reverie.backends.sqlite import SqliteBackend
from reverie.clock import SystemClock
from reverie.dispatch.alerts import BugAlerts
from reverie.dispatch.registry import Registry
from reverie.dispatch.settlements import Backoff, SettlementPolicy
from reverie.dispatch.worker import Worker
from reverie.errors import UnknownSchemeError
from reverie.handlers import BUILTIN
from reverie.memory.sqlite.store import SqliteMemoryStore, apply_effects
from reverie.message import check_message
from reverie.observe.finishes import Finishes
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.moves import Accepted, Settlement
    from reverie.clock import Clock
    from reverie.dispatch.middleware import Middleware
    from reverie.dispatch.settings import LabelSettings
    from reverie.message import Message
    from reverie.settings import Settings

__all__ = ["Runtime"]

SCHEMES = ["sqlite:///", "redis://", "rediss://", "unix://", "memory://"]


class Runtime:
    """The parts of one process. Building it connects to nothing."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._opened = False
        self.clock = clock or SystemClock()
        self._databases: dict[str, Database] = {}
        self.store = SqliteMemoryStore(self._database(settings.memory_url), self.clock)
        self.backend = self._backend(settings.queue_url)
        self.registry = Registry(settings.worker, settings.labels)
        for label, function in BUILTIN.items():
            self.registry.add(label, function)
        self.limits = settings.limits.for_messages()
        self.finishes = Finishes()
        self._middleware: list[Middleware] = []
        self.worker = self._new_worker()

    def register(
        self,
        label: str,
        function: Callable[..., Any],
        *,
        batch: bool = False,
        options: LabelSettings | None = None,
        credential_of: Callable[[Message], str] | None = None,
    ) -> None:
        """Let `function` handle `label`, from now on if a worker runs."""
        self.registry.add(label, function, batch=batch, options=options, credential_of=credential_of)
        self.worker.more_room()

    def use(self, middleware: Middleware) -> None:
        """Let `middleware` stand around every run, inside of those before it, from now on."""
        self._middleware.append(middleware)
        self.worker.use(self._middleware)

    def prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Check messages and give each the level of its label."""
        for message in messages:
            check_message(message, self.limits)
        level = self.registry.orchestrator.level
        return [msgspec.structs.replace(message, level=level(message.label)) for message in messages]

    @property
    def takes_from_threads(self) -> bool:
        """Whether a thread without an event loop may submit: the backend is open and has its own writer."""
        return self._opened and isinstance(self.backend, SqliteBackend)

    def submit_from_thread(self, messages: Sequence[Message]) -> Accepted:
        """Submit prepared messages from the calling thread."""
        assert isinstance(self.backend, SqliteBackend)
        return self.backend.queue.submit_soon(messages).result()

    async def open(self) -> None:
        """Connect, and create or upgrade what is missing. Idempotent."""
        if not self._opened:
            await self.store.open()
            await self.backend.open()
            self._opened = True

    async def start(self) -> None:
        """Run the worker. Idempotent."""
        await self.open()
        await self.worker.start()

    async def stop(self) -> None:
        """Stop the worker and let go of everything. Idempotent; a later start begins anew, on any loop."""
        await self.worker.stop(self.settings.worker.grace_s)
        self.worker = self._new_worker()
        await self.backend.close()
        await self.store.close()
        self._opened = False

    def _new_worker(self) -> Worker:
        settings = self.settings.worker
        return Worker(
            backend=self.backend,
            store=self.store,
            registry=self.registry,
            settings=settings,
            clock=self.clock,
            middleware=self._middleware,
            policy=SettlementPolicy(
                backoff=Backoff(first_s=settings.backoff_s, longest_s=settings.max_backoff_s),
                limits=self.limits,
                level_of=self.registry.orchestrator.level,
                on_bug=BugAlerts(self.clock, settings.bug_alert_s),
            ),
            on_settled=self._settled,
        )

    def _backend(self, url: str) -> Backend:
        settings = self.settings.queue
        limits = QueueLimits(max_losses=settings.max_losses, retention_ms=round(settings.retention_s * 1000))
        scheme = urlsplit(url).scheme
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
                allow_volatile=settings.allow_volatile,
                durability_assumed=settings.durability_assumed,
            )
        raise UnknownSchemeError(url, SCHEMES)

    def _database(self, url: str) -> Database:
        """The one writer of a file, shared by all rooms that live in it."""
        if url not in self._databases:
            self._databases[url] = Database(_path(url), self.settings.queue.durability)
        return self._databases[url]

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        self.finishes.announce(settlement.claim.key for settlement in settlements)


def _path(url: str) -> str:
    if url.startswith("memory://"):
        return ":memory:"
    if not url.startswith("sqlite:///") or not url.removeprefix("sqlite:///"):
        raise UnknownSchemeError(url, ["sqlite:///path/to/file.db", "memory://"])
    return url.removeprefix("sqlite:///")
