"""The worker: producer, placement, settler, renewer, canceller and timekeeper, wired together."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Claim, ClaimRequest, Move, Presence, Settlement
from reverie.base.logs import get_logger
from reverie.dispatch.answers import Failed, read_answer
from reverie.dispatch.batches import form_batches
from reverie.dispatch.breaker import Breaker, rules_of
from reverie.dispatch.canceller import Canceller
from reverie.dispatch.context import Context, LocalLine
from reverie.dispatch.interface import Batch
from reverie.dispatch.middleware import chain, debugging
from reverie.dispatch.options import HandlerOptions
from reverie.dispatch.pauses import Pauses
from reverie.dispatch.placement import Placement, is_dangerous
from reverie.dispatch.producer import Producer
from reverie.dispatch.pruner import Pruner
from reverie.dispatch.renewer import Renewer
from reverie.dispatch.requests import Desk
from reverie.dispatch.settler import Settler
from reverie.dispatch.slots import Slots
from reverie.dispatch.timekeeper import Timekeeper
from reverie.errors import ReverieError
from reverie.memory.extraction import Extraction
from reverie.observe.finishes import Finishes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock
    from reverie.base.service import LoopService
    from reverie.dispatch.interface import Executor
    from reverie.dispatch.middleware import Middleware, Outcomes
    from reverie.dispatch.registry import Handler, Registry
    from reverie.dispatch.settings import WorkerSettings
    from reverie.dispatch.settlements import SettlementPolicy
    from reverie.memory.interface import MemoryStore
    from reverie.message import Key, Message
    from reverie.models.gateway import Gateway
    from reverie.models.interface import Models
    from reverie.observe.recorder import Recorder
    from reverie.webhooks.notices import Notices

__all__ = ["Worker"]

log = get_logger(__name__)

PRESENCE_RENEWALS = 3
"""A worker counts as alive until it has missed this many renewals."""
PREPARE_S = 2.0
"""Seconds for preparing the effects of a batch before they are applied, by default."""
PRUNE_S = 3600.0
"""Seconds between two passes of the pruner, by default."""


class Worker:
    """Runs the handlers of one process."""

    def __init__(
        self,
        *,
        backend: Backend,
        store: MemoryStore,
        models: Models,
        gateway: Gateway,
        registry: Registry,
        policy: SettlementPolicy,
        settings: WorkerSettings,
        clock: Clock,
        new_place: Callable[[str], Executor],
        recorder: Recorder,
        middleware: Sequence[Middleware] = (),
        prepare_s: float = PREPARE_S,
        prune_s: float = PRUNE_S,
        finishes: Finishes | None = None,
        options: HandlerOptions | None = None,
        extraction_of: Callable[[str], Extraction] = lambda _: Extraction(),
        notices: Notices | None = None,
    ) -> None:
        """Nothing runs until `start`. `finishes` is told of every message that was settled or has ended.

        `new_place` makes the executor of a place outside of this process. `middleware` runs around every run,
        outside of the worker's own. `options` and `extraction_of` are what handlers may know of the settings.
        Effects are prepared for at most `prepare_s` seconds. The pruner makes
        a pass every `prune_s` seconds. `notices` tells webhooks of events.
        """
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._queue = backend.queue
        self._store = store
        self._desk = Desk(
            queue=backend.queue,
            store=store,
            models=models,
            gateway=gateway,
            clock=clock,
            options=options or HandlerOptions(),
            extraction_of=extraction_of,
        )
        self._registry = registry
        self._policy = policy
        self._settings = settings
        self._prepare_s = prepare_s
        self._clock = clock
        self._finishes = finishes or Finishes()
        self._recorder = recorder
        self._took: dict[int, float] = {}
        """`id` of a held claim → seconds that its handler took; filled while someone listens to events."""
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: LocalLine | None = None
        self._held: dict[int, Claim] = {}
        """`id` → claim: a claim stays the same object from the queue's answer to its settlement."""
        self._cancelled: set[Key] = set()
        self._pauses = Pauses(clock)
        self._slots = Slots(registry, settings, self._pauses)
        self._batches: dict[int, asyncio.Task[None]] = {}
        self._dangerous: Batch | None = None
        """A batch that may kill this process, and therefore runs alone."""
        self._batch_ids = itertools.count(1)
        self.exhausted = asyncio.Event()
        """Set when too many threads hang: from then on no sync handler is started."""
        self._placement = Placement(
            new_place,
            max_abandoned=settings.max_abandoned,
            on_too_many=self.exhausted.set,
            on_fewer=self.more_room,
        )
        self._breaker = Breaker(backend.shared, self._pauses, rules_of(settings))
        self.use(middleware)
        self._producer = Producer(backend.queue, self.request, self.take, self._pauses)
        self._timekeeper = Timekeeper(backend, store, self._ended, notices)
        self._pruner = Pruner(backend, store, clock, prune_s)
        self._renewer = Renewer(
            backend.queue,
            lambda: list(self._held.values()),
            self._presence,
            self._cancel,
            lease_s=settings.lease_s,
            every_s=settings.renew_s,
        )
        self._settler = Settler(
            backend, store, self._settled, self._conflicted, self._renewer.lease_end, notices=notices
        )
        self._canceller = Canceller(backend.queue, self._renewer)

    @property
    def services(self) -> tuple[LoopService, ...]:
        """The worker's services that are loops."""
        return (self._producer, self._settler, self._timekeeper, self._canceller, self._pruner)

    @property
    def abandoned(self) -> int:
        """How many threads of sync handlers hang."""
        return self._placement.abandoned

    @property
    def too_many_abandoned(self) -> bool:
        """Whether too many threads hang: then no sync handler is started until some come back."""
        return self._placement.too_many

    async def start(self) -> None:
        """See `Service.start`."""
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._line = LocalLine(self._desk, self._clock, self._cancelled)
        log.info("worker.started", worker=self.name, labels=[h.label for h in self._registry.handlers])
        try:
            await self._renewer.renew()  # from now on others know this worker
        except ReverieError as error:
            log.warning("worker.not_registered", error=str(error), hint="tried again with the next renewal")
        await self._renewer.start()
        for service in reversed(self.services):
            await service.start()

    async def stop(self, grace_s: float) -> None:
        """Stop claiming, let handlers finish within the grace time, and hand the rest back."""
        if not self._started:
            await self._placement.close()  # `drain` may have used it
            return
        self._started, self._loop = False, None
        await self._producer.stop(grace_s)
        dangerous, self._dangerous = self._dangerous, None
        if dangerous is not None and dangerous.batch_id not in self._batches:
            self._hand_back(dangerous.claims)
        if self._batches:
            await asyncio.wait(self._batches.values(), timeout=grace_s)
        for batch_id in list(self._batches):
            await self._placement.abandon(batch_id)
        if self._batches:
            await asyncio.wait(self._batches.values())
        for service in (self._pruner, self._timekeeper, self._canceller, self._settler, self._renewer):
            await service.stop(grace_s)
        try:
            await self._queue.renew([], 0, Presence(worker=self.name, labels=()))  # sign off
        except ReverieError as error:
            log.info("worker.left_without_notice", error=str(error))
        await self._placement.close()
        log.info("worker.stopped", worker=self.name)

    async def advance(self) -> None:
        """Move all messages whose time has come, without `start`; see `Queue.advance`."""
        while await self._timekeeper.advance():
            pass

    async def drain(self) -> None:
        """Run all messages that are ready, and what follows from them, without `start`; then return."""
        self._line = LocalLine(self._desk, self._clock, self._cancelled)
        await self._renewer.start()
        try:
            while True:
                await self._timekeeper.advance()
                claims = await self._queue.claim(self.request())
                if not claims:
                    await self._pruner.prune()
                    return
                self.take(claims)
                while self._batches or self._dangerous is not None:
                    await asyncio.gather(*self._batches.values())
                    await self._settler.flush()
                await self._settler.flush()
        finally:
            await self._renewer.stop(self._settings.grace_s)

    def request(self) -> ClaimRequest:
        """The request for what there is room for now: nothing while a dangerous batch waits or runs alone."""
        handlers: Sequence[Handler] = self._registry.handlers if self._dangerous is None else ()
        if self._placement.too_many:
            handlers = [handler for handler in handlers if handler.place != "thread"]
        return self._slots.request(self.name, handlers)

    def take(self, claims: Sequence[Claim]) -> None:
        """Begin to run these claims."""
        if self._registry.orchestrator.tasks_min_idle_ms:
            claims = self._hand_back_outdated(claims)
        timed = self._recorder.dequeued(claims, self.name)
        by_label: dict[str, list[Claim]] = {}
        for claim in claims:
            self._held[id(claim)] = claim
            by_label.setdefault(claim.message.label, []).append(claim)
        for label, group in by_label.items():
            handler = self._registry.get(label)
            assert handler is not None, f"claimed {label} without a handler"
            free = self._slots.free(handler)
            for number, portion in enumerate(form_batches(handler, group, free, self._slots.paces[label])):
                batch = Batch(next(self._batch_ids), handler, portion, {} if timed else None)
                if number >= free:
                    self._hand_back(portion)
                elif not (portion[0].message.losses and is_dangerous(batch)):
                    self._start(batch)
                elif self._dangerous is None:
                    self._dangerous = batch
                else:
                    self._hand_back(portion)  # a second dangerous batch would be lost with the first
        if self._dangerous is not None:
            self._begin_dangerous(self._dangerous)

    def _hand_back_outdated(self, claims: Sequence[Claim]) -> list[Claim]:
        """Hand back claims that were made before their label had a rest; return the others.

        Their lane may have given several messages, and would not rest after them.
        """
        rests = self._registry.orchestrator.tasks_min_idle_ms.copy()  # another thread may change them
        outdated = [claim for claim in claims if not claim.min_idle_ms and rests.get(claim.message.label)]
        if outdated:
            self._hand_back(outdated)
        return [claim for claim in claims if claim.min_idle_ms or not rests.get(claim.message.label)]

    def _begin_dangerous(self, batch: Batch) -> None:
        """Run the dangerous batch, once this worker holds no other claims that would be lost with it."""
        if not self._batches and len(self._held) == len(batch.claims):
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        self._slots.take(batch.handler.label)
        self._batches[batch.batch_id] = asyncio.create_task(self._run(batch))

    def _hand_back(self, claims: Sequence[Claim]) -> None:
        """Release claims that do not begin to run."""
        self._settler.put([Settlement(claim=claim, move=Move.RELEASE, attempt=False) for claim in claims])

    def more_room(self) -> None:
        """Ask for claims again, because a handler was added or threads came back. Safe from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._producer.room)

    def use(self, middleware: Sequence[Middleware]) -> None:
        """Use this middleware around every run that begins from now on, the first outermost."""
        self._chain = chain((*middleware, *debugging()), self._execute)

    async def _run(self, batch: Batch) -> None:
        """Run a batch, and give its settlements to the settler."""
        outcomes: Outcomes = [None] * len(batch.claims)  # handed back if the task is cancelled
        began = time.monotonic()
        self._recorder.started(batch.claims, self.name)
        try:
            outcomes = await self._chain(batch)
        except Exception as error:  # its place cannot be made, or a bug of Reverie
            log.exception("run.failed", label=batch.label)
            outcomes = [read_answer(error)] * len(batch.claims)
        finally:
            if batch.seconds is not None:  # if the executor does not measure, the time of the whole batch
                took = time.monotonic() - began
                for claim, outcome in zip(batch.claims, outcomes, strict=True):
                    if outcome is not None:
                        self._took[id(claim)] = batch.seconds.get(id(claim), took)
            settlements = self._policy.settlements(batch, outcomes)
            try:
                if any(settlement.effects for settlement in settlements):
                    settlements = await self._prepare(settlements)
            finally:
                self._settler.put(settlements)
                self._slots.give_back(batch.handler.label)
                del self._batches[batch.batch_id]
                if batch is self._dangerous:
                    self._dangerous = None
                self._producer.room()

    async def _prepare(self, settlements: list[Settlement]) -> list[Settlement]:
        """Let the store prepare the effects of a batch before they are settled, if that is quick."""
        effects = [effect for settlement in settlements for effect in settlement.effects]
        try:
            async with asyncio.timeout(self._prepare_s):
                prepared = await self._store.prepare(effects)
        except Exception as error:  # noqa: BLE001  prepared when applied, or later
            log.warning("effects.not_prepared", effects=len(effects), error=repr(error))
            return settlements
        return [
            msgspec.structs.replace(settlement, prepared=prepared) if settlement.effects else settlement
            for settlement in settlements
        ]

    async def _execute(self, batch: Batch) -> Outcomes:
        """Run the messages of a batch that no refused credential holds back."""
        if batch.handler.label in self._pauses.labels:
            return await self._breaker.run(batch, self._place)
        outcomes = await self._place(batch)
        if any(isinstance(outcome, Failed) for outcome in outcomes):
            return await self._breaker.heed(batch, outcomes)
        return outcomes

    async def _place(self, batch: Batch) -> Outcomes:
        """Run a batch in its handler's place, and measure how long its messages take."""
        handler = batch.handler
        context = Context(worker=self.name, timeout_s=handler.timeout_s, line=self._line)
        began = time.monotonic()
        outcomes = await self._placement.run(batch, context, handler.timeout_s)
        ran = len([outcome for outcome in outcomes if outcome is not None])
        is_measured = 0 < ran <= len(batch.calls)
        took = sum(batch.calls) if is_measured else time.monotonic() - began
        self._slots.paces[handler.label].observe(max(1, ran), took)
        return outcomes

    def _presence(self) -> Presence:
        labels = tuple(handler.label for handler in self._registry.handlers)
        lives_ms = round(PRESENCE_RENEWALS * self._settings.renew_s * 1000)
        return Presence(worker=self.name, labels=labels, lives_ms=lives_ms)

    def _cancel(self, keys: Sequence[Key]) -> None:
        """Cancel these messages, if they are held. Safe from any thread."""
        if keys and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_held, keys)

    def _cancel_held(self, keys: Sequence[Key]) -> None:
        held = {claim.key for claim in self._held.values()}  # a message may have been settled meanwhile
        self._cancelled.update(key for key in keys if key in held)
        self._placement.cancel(self._cancelled)

    def _ended(self, messages: Sequence[Message]) -> None:
        self._recorder.ended(messages)
        self._finishes.announce([message.key for message in messages])

    def _conflicted(self, claim: Claim, error: str | None) -> Settlement:
        handler = self._registry.get(claim.message.label)
        assert handler is not None
        return self._policy.conflicted(claim, handler, error)

    def _settled(self, applied: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self._recorder.finished(applied, self.name, self._took)
        for settlement in (*applied, *stale):
            number = id(settlement.claim)
            self._held.pop(number, None)
            self._took.pop(number, None)
        if self._cancelled or self._finishes.watched:
            keys = [settlement.claim.key for settlement in (*applied, *stale)]
            self._cancelled.difference_update(keys)
            self._finishes.announce(keys)
        if self._dangerous is not None:
            self._begin_dangerous(self._dangerous)
