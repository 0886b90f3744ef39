"""The worker: producer, executor, settler, renewer and timekeeper, wired together."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from reverie.backends.moves import Claim, ClaimRequest, Settlement
from reverie.dispatch.batches import Pace, form_batches, want_of
from reverie.dispatch.breaker import Breaker, rules_of
from reverie.dispatch.context import Context
from reverie.dispatch.executor import Batch, LocalExecutor
from reverie.dispatch.middleware import chain, logged, paced, read_outcomes
from reverie.dispatch.pauses import Pauses
from reverie.dispatch.producer import Producer
from reverie.dispatch.renewer import Renewer
from reverie.dispatch.settler import Settler
from reverie.dispatch.timekeeper import Timekeeper
from reverie.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.clock import Clock
    from reverie.dispatch.executor import Executor
    from reverie.dispatch.middleware import Middleware, Outcomes
    from reverie.dispatch.registry import Registry
    from reverie.dispatch.settings import WorkerSettings
    from reverie.dispatch.settlements import SettlementPolicy
    from reverie.memory.interface import EffectStore
    from reverie.message import Key

__all__ = ["Worker"]

log = get_logger(__name__)


class Worker:
    """Runs the handlers of one process."""

    def __init__(
        self,
        *,
        backend: Backend,
        store: EffectStore,
        registry: Registry,
        policy: SettlementPolicy,
        settings: WorkerSettings,
        clock: Clock,
        middleware: Sequence[Middleware] = (),
        on_settled: Callable[[Sequence[Settlement]], None] = lambda _: None,
    ) -> None:
        """Nothing runs until `start`; `on_settled` hears of every message whose run was reported.

        `middleware` stands around every run, outside of the worker's own.
        """
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._backend = backend
        self._registry = registry
        self._policy = policy
        self._settings = settings
        self._announce = on_settled
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[tuple[Key, str], Claim] = {}
        self._active: Counter[str] = Counter()
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._batches: dict[int, asyncio.Task[None]] = {}
        self._batch_ids = itertools.count(1)
        self._executor: Executor = LocalExecutor()
        self._pauses = Pauses(clock)
        self._breaker = Breaker(backend.shared, self._pauses, rules_of(settings))
        self.use(middleware)
        self._producer = Producer(backend.queue, self.request, self.take, self._pauses)
        self._settler = Settler(backend, store, policy, self._settled)
        self._timekeeper = Timekeeper(backend.queue)
        self._renewer = Renewer(
            backend.queue,
            lambda: list(self._held.values()),
            lease_s=settings.lease_s,
            every_s=settings.renew_s,
        )

    async def start(self) -> None:
        """See `Service.start`."""
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        log.info("worker.started", worker=self.name, labels=[h.label for h in self._registry.handlers])
        for service in (self._renewer, self._settler, self._timekeeper, self._producer):
            await service.start()

    async def stop(self, grace_s: float) -> None:
        """Stop claiming, let handlers finish within the grace time, hand the rest back."""
        if not self._started:
            return
        self._started, self._loop = False, None
        await self._producer.stop(grace_s)
        if self._batches:
            await asyncio.wait(self._batches.values(), timeout=grace_s)
        for batch_id in list(self._batches):
            await self._executor.abandon(batch_id)
        if self._batches:
            await asyncio.wait(self._batches.values())
        await self._timekeeper.stop(grace_s)
        await self._settler.stop(grace_s)
        await self._renewer.stop(grace_s)
        await self._executor.close()
        log.info("worker.stopped", worker=self.name)

    async def drain(self) -> None:
        """Without being started: run all that is ready now, and what follows from it, until nothing is."""
        await self._renewer.start()
        try:
            await self._drain()
        finally:
            await self._renewer.stop(self._settings.grace_s)

    async def _drain(self) -> None:
        while True:
            await self._backend.queue.advance(1000)
            claims = await self._backend.queue.claim(self.request())
            if not claims:
                return
            self.take(claims)
            await asyncio.gather(*self._batches.values())
            await self._settler.flush()

    def request(self) -> ClaimRequest:
        """What there is room for now. Labels of a lower level come first."""
        settings, orchestrator = self._settings, self._registry.orchestrator
        wants = {}
        for handler in sorted(self._registry.handlers, key=lambda h: orchestrator.level(h.label)):
            free = handler.concurrency - self._active[handler.label]
            if free > 0:
                want = want_of(
                    handler,
                    free,
                    self._paces[handler.label],
                    quantum=settings.lane_quantum,
                    min_idle_ms=orchestrator.min_idle_ms(handler.label),
                )
                if (narrowed := self._pauses.narrow(handler, want)) is not None:
                    wants[handler.label] = narrowed
        return ClaimRequest(worker=self.name, wants=wants, lease_ms=round(settings.lease_s * 1000))

    def take(self, claims: Sequence[Claim]) -> None:
        """Begin to run what was claimed."""
        by_label: dict[str, list[Claim]] = {}
        for claim in claims:
            self._held[claim.key, claim.claim_id] = claim
            by_label.setdefault(claim.message.label, []).append(claim)
        for label, group in by_label.items():
            handler = self._registry.get(label)
            assert handler is not None, f"claimed {label} without a handler"
            free = handler.concurrency - self._active[label]
            for portion in form_batches(handler, group, free):
                batch = Batch(next(self._batch_ids), handler, portion)
                self._active[label] += 1
                self._batches[batch.batch_id] = asyncio.create_task(self._run(batch))

    def more_room(self) -> None:
        """A handler was registered, or there is another reason to look again. Safe from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._producer.room)

    def use(self, middleware: Sequence[Middleware]) -> None:
        """Let these stand around every run that begins from now on, the first outermost."""
        own = (logged, self._breaker, paced(self._paces.__getitem__))
        self._chain = chain((*middleware, *own), self._execute)

    async def _run(self, batch: Batch) -> None:
        try:
            outcomes = await read_outcomes(batch, self._chain)
            self._settler.put(self._policy.settlements(batch, outcomes))
        finally:
            self._active[batch.label] -= 1
            del self._batches[batch.batch_id]
            self._producer.room()

    async def _execute(self, batch: Batch) -> Outcomes:
        timeout_s = batch.handler.timeout_s
        context = Context(worker=self.name, timeout_s=timeout_s)
        return await self._executor.run(batch, context, timeout_s)

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._held.pop((settlement.claim.key, settlement.claim.claim_id), None)
        self._announce(settlements)
