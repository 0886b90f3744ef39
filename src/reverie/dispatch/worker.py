"""The worker: producer, executor, settler, renewer, canceller and timekeeper, wired together."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

from reverie.backends.moves import Claim, ClaimRequest, Presence, Settlement
from reverie.base.logs import get_logger
from reverie.dispatch.batches import form_batches
from reverie.dispatch.breaker import Breaker, rules_of
from reverie.dispatch.canceller import Canceller
from reverie.dispatch.context import Context, Desk
from reverie.dispatch.local_executor import Batch
from reverie.dispatch.middleware import chain, logged, paced, read_outcomes
from reverie.dispatch.pauses import Pauses
from reverie.dispatch.placement import Executors, is_dangerous
from reverie.dispatch.producer import Producer
from reverie.dispatch.renewer import Renewer
from reverie.dispatch.settler import Settler
from reverie.dispatch.slots import Slots
from reverie.dispatch.timekeeper import Timekeeper
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock
    from reverie.base.service import LoopService
    from reverie.dispatch.middleware import Middleware, Outcomes
    from reverie.dispatch.registry import Handler, Registry
    from reverie.dispatch.settings import WorkerSettings
    from reverie.dispatch.settlements import SettlementPolicy
    from reverie.memory.interface import EffectStore
    from reverie.message import Key, Message
    from reverie.observe.recorder import Recorder

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
        recorder: Recorder,
        on_settled: Callable[[Sequence[Key]], None] = lambda _: None,
    ) -> None:
        """Nothing runs until `start`; `on_settled` hears of every message that something has happened to.

        `middleware` stands around every run, outside of the worker's own.
        """
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._backend = backend
        self._registry = registry
        self._policy = policy
        self._settings = settings
        self._clock = clock
        self._announce = on_settled
        self._recorder = recorder
        self._took: dict[int, float] = {}
        """Seconds that handlers took, by the `id` of claims that are held; kept while someone listens."""
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[int, Claim] = {}
        """By `id`: a claim is one object from the queue's answer to its settlement."""
        self._cancelled: set[Key] = set()
        self._pauses = Pauses(clock)
        self._slots = Slots(registry, settings, self._pauses)
        self._batches: dict[int, asyncio.Task[None]] = {}
        self._dangerous: Batch | None = None
        """What is to run with nobody beside it."""
        self._batch_ids = itertools.count(1)
        self.exhausted = asyncio.Event()
        """Set when so many threads of sync handlers hang that no more are risked."""
        self._executor = Executors(
            max_abandoned=settings.max_abandoned,
            on_too_many=self.exhausted.set,
            on_fewer=self.more_room,
        )
        self._breaker = Breaker(backend.shared, self._pauses, rules_of(settings))
        self.use(middleware)
        self._producer = Producer(backend.queue, self.request, self.take, self._pauses)
        self._settler = Settler(backend, store, self._settled)
        self._timekeeper = Timekeeper(backend, store, self._ended)
        self._renewer = Renewer(
            backend.queue,
            lambda: list(self._held.values()),
            self._presence,
            self._cancel,
            lease_s=settings.lease_s,
            every_s=settings.renew_s,
        )
        self._canceller = Canceller(backend.queue, self._renewer)

    @property
    def services(self) -> tuple[LoopService, ...]:
        """The duties it consists of, as far as they are loops."""
        return (self._producer, self._settler, self._timekeeper, self._canceller)

    async def start(self) -> None:
        """See `Service.start`."""
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        log.info("worker.started", worker=self.name, labels=[h.label for h in self._registry.handlers])
        await self._say_hello()
        for service in (self._renewer, self._canceller, self._settler, self._timekeeper, self._producer):
            await service.start()

    async def stop(self, grace_s: float) -> None:
        """Stop claiming, let handlers finish within the grace time, hand the rest back."""
        if not self._started:
            await self._executor.close()  # a drain may have used it
            return
        self._started, self._loop = False, None
        await self._producer.stop(grace_s)
        dangerous, self._dangerous = self._dangerous, None
        if dangerous is not None and dangerous.batch_id not in self._batches:
            self._hand_back(dangerous)
        if self._batches:
            await asyncio.wait(self._batches.values(), timeout=grace_s)
        for batch_id in list(self._batches):
            await self._executor.abandon(batch_id)
        if self._batches:
            await asyncio.wait(self._batches.values())
        for service in (self._timekeeper, self._canceller, self._settler, self._renewer):
            await service.stop(grace_s)
        await self._take_leave()
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
            await self._timekeeper.advance()
            claims = await self._backend.queue.claim(self.request())
            if not claims:
                return
            self.take(claims)
            while self._batches or self._dangerous is not None:
                await asyncio.gather(*self._batches.values())
                await self._settler.flush()
            await self._settler.flush()

    def request(self) -> ClaimRequest:
        """What there is room for now: nothing, while something that may kill this process is to run alone."""
        accepts = self._executor.accepts
        handlers = [h for h in self._registry.handlers if accepts(h) and self._dangerous is None]
        return self._slots.request(self.name, handlers)

    def take(self, claims: Sequence[Claim]) -> None:
        """Begin to run what was claimed."""
        if self._recorder.active:
            self._recorder.dequeued(claims, self.name)
        by_label: dict[str, list[Claim]] = {}
        for claim in claims:
            self._held[id(claim)] = claim
            by_label.setdefault(claim.message.label, []).append(claim)
        for label, group in by_label.items():
            handler = self._registry.get(label)
            assert handler is not None, f"claimed {label} without a handler"
            free = self._slots.free(handler)
            for number, portion in enumerate(form_batches(handler, group, free, self._slots.paces[label])):
                seconds: dict[int, float] | None = {} if self._recorder.active else None
                batch = Batch(next(self._batch_ids), handler, portion, seconds)
                if number < free:
                    self._begin(batch)
                else:
                    self._hand_back(batch)
        self._begin_dangerous()

    def _begin(self, batch: Batch) -> None:
        if not is_dangerous(batch):
            self._start(batch)
        elif self._dangerous is None:
            self._dangerous = batch
        else:
            self._hand_back(batch)  # it would be lost with the other

    def _begin_dangerous(self) -> None:
        """Run what may kill this process, once nothing else is held here that would be lost with it."""
        batch = self._dangerous
        if batch is not None and not self._batches and len(self._held) == len(batch.claims):
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        self._slots.take(batch.label)
        self._batches[batch.batch_id] = asyncio.create_task(self._run(batch))

    def _hand_back(self, batch: Batch) -> None:
        self._settler.put(self._policy.settlements(batch, [None] * len(batch.claims)))

    def more_room(self) -> None:
        """A handler was registered, or there is another reason to look again. Safe from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._producer.room)

    def use(self, middleware: Sequence[Middleware]) -> None:
        """Let these stand around every run that begins from now on, the first outermost."""
        own = (logged, self._breaker, paced(self._slots.paces.__getitem__))
        self._chain = chain((*middleware, *own), self._execute)

    async def _run(self, batch: Batch) -> None:
        outcomes: Outcomes = [None] * len(batch.claims)  # handed back, should anything go wrong
        began = time.monotonic()
        if self._recorder.active:
            self._recorder.started(batch.claims, self.name)
        try:
            outcomes = await read_outcomes(batch, self._chain)
        finally:
            if batch.seconds is not None:
                self._note_times(batch.seconds, batch, outcomes, time.monotonic() - began)
            self._settler.put(self._policy.settlements(batch, outcomes))
            self._slots.give_back(batch.label)
            del self._batches[batch.batch_id]
            if batch is self._dangerous:
                self._dangerous = None
            self._producer.room()

    def _note_times(self, known: dict[int, float], batch: Batch, outcomes: Outcomes, seconds: float) -> None:
        """How long each message took; where its executor does not say, as long as the whole batch."""
        for claim, outcome in zip(batch.claims, outcomes, strict=True):
            if outcome is not None:
                self._took[id(claim)] = known.get(id(claim), seconds)

    async def _execute(self, batch: Batch) -> Outcomes:
        return await self._executor.run(batch, self._context(batch.handler), batch.handler.timeout_s)

    def _context(self, handler: Handler) -> Context:
        desk = Desk(
            queue=self._backend.queue,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
            cancelled=self._cancelled,
        )
        return Context(worker=self.name, timeout_s=handler.timeout_s, desk=desk)

    def _presence(self) -> Presence:
        labels = tuple(handler.label for handler in self._registry.handlers)
        lives_ms = round(PRESENCE_RENEWALS * self._settings.renew_s * 1000)
        return Presence(worker=self.name, labels=labels, lives_ms=lives_ms)

    async def _say_hello(self) -> None:
        """Let everyone count on this worker from now on."""
        try:
            await self._renewer.renew()
        except ReverieError as error:
            log.warning("worker.not_registered", error=str(error), hint="tried again with the next renewal")

    async def _take_leave(self) -> None:
        """Let nobody count on this worker any more."""
        try:
            await self._backend.queue.renew([], 0, Presence(worker=self.name, labels=()))
        except ReverieError as error:
            log.info("worker.left_without_notice", error=str(error))

    def _cancel(self, keys: Sequence[Key]) -> None:
        """Someone wants these cancelled. Safe from any thread."""
        if keys and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_held, keys)

    def _cancel_held(self, keys: Sequence[Key]) -> None:
        held = {claim.key for claim in self._held.values()}  # the news may be older than a settlement
        self._cancelled.update(key for key in keys if key in held)
        self._executor.cancel(self._cancelled)

    def _ended(self, messages: Sequence[Message]) -> None:
        if messages and self._recorder.active:
            self._recorder.ended(messages)
        self._announce([message.key for message in messages])

    def _settled(self, applied: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        if self._recorder.active:
            self._recorder.finished(applied, self.name, self._took)
        claims = [settlement.claim for settlement in (*applied, *stale)]
        for claim in claims:
            self._held.pop(id(claim), None)
            self._took.pop(id(claim), None)
        keys = [claim.key for claim in claims]
        self._cancelled.difference_update(keys)
        self._announce(keys)
        self._begin_dangerous()


PRESENCE_RENEWALS = 3
"""A worker counts as alive until it has missed so many renewals."""
