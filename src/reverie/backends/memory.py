"""The queue as a plain model, in this process's memory: for tests and throwaway use.

It is written to be read: what the other backends do with statements and scripts, this one does with
dictionaries. Everything is gone when the process ends.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Literal

import msgspec

from reverie.backends.interface import Capabilities
from reverie.backends.memory_shared import MemorySharedState
from reverie.backends.moves import (
    Accepted,
    Advance,
    Claim,
    ItemStatus,
    Lost,
    Move,
    Page,
    QueueLimits,
    Settled,
    Status,
    Submitted,
)
from reverie.backends.wakeup import Wakeup
from reverie.clock import from_epoch_ms, to_epoch_ms
from reverie.failpoints import failpoint
from reverie.message import Key, Lane, Message, level_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import ClaimRequest, Settlement, StatusQuery, Want
    from reverie.clock import Clock

__all__ = ["MemoryBackend"]

END_OF = {Move.COMPLETE: Status.COMPLETED, Move.CANCEL: Status.CANCELLED, Move.BURY: Status.FAILED}


@dataclass
class _Item:
    """A message and how it stands."""

    message: Message
    fingerprint: str
    submitted_at: int
    status: Status = Status.WAITING
    place: int = 0
    due: int | None = None
    claim_id: str | None = None
    lease_until: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


@dataclass
class _Lane:
    """What waits in a lane, in order, and what keeps it from being served."""

    waiting: deque[_Item] = field(default_factory=deque)
    running: int = 0
    ordered: bool = True
    min_idle_ms: int = 0
    rest_until: int | None = None


class MemoryBackend:
    """See `reverie.backends.interface.Backend`: backend, queue and views in one."""

    capabilities = Capabilities(applies_effects=False, durability="none")

    def __init__(self, clock: Clock, limits: QueueLimits | None = None) -> None:
        """Make an empty queue."""
        self.queue = self
        self.views = self
        self.shared = MemorySharedState(clock)
        self._clock = clock
        self._limits = limits or QueueLimits()
        self._wakeup = Wakeup(clock)
        self._lock = threading.RLock()
        self._items: dict[Key, _Item] = {}
        self._lanes: dict[Lane, _Lane] = {}
        self._places = count(1)
        self._ring: dict[str, OrderedDict[Lane, None]] = {}

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def submit(self, messages: Sequence[Message], claim: ClaimRequest | None = None) -> Accepted:
        """See `Queue.submit`."""
        with self._lock:
            answers = [Submitted(m.item_id, self._insert(m)) for m in messages]
            return Accepted(answers=answers, claims=self._claim(claim) if claim else [])

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """See `Queue.claim`."""
        with self._lock:
            return self._claim(request)

    async def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Lost]:
        """See `Queue.renew`."""
        with self._lock:
            lost = []
            for claim in claims:
                item = self._held(claim)
                if item is None:
                    lost.append(Lost(claim.key, claim.claim_id))
                else:
                    item.lease_until = self._clock.now() + lease_ms
            return lost

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See `Queue.settle`."""
        with self._lock:
            failpoint("inside_settle")
            back: dict[Lane, list[_Item]] = {}
            answers = []
            for settlement in settlements:
                item = self._held(settlement.claim)
                if item is not None:
                    self._end_claim(item, settlement, back.setdefault(item.message.lane, []))
                state: Literal["applied", "stale"] = "stale" if item is None else "applied"
                answers.append(Settled(key=settlement.claim.key, state=state))
            for lane, items in back.items():
                self._rejoin(lane, items)
            return answers

    async def advance(self, limit: int) -> Advance:
        """See `Queue.advance`."""
        now = self._clock.now()
        with self._lock:
            due = list(islice((i for i in self._items.values() if i.due is not None and i.due <= now), limit))
            for item in sorted(due, key=lambda item: item.due or 0):
                item.due = None
                self._join(item)
            rested = [n for n, lane in self._lanes.items() if lane.rest_until and lane.rest_until <= now][
                :limit
            ]
            for name in rested:
                self._lanes[name].rest_until = None
                self._wake(name)
            in_progress = (i for i in self._items.values() if i.status is Status.IN_PROGRESS)
            lost = list(islice((i for i in in_progress if i.lease_until <= now), limit))
            self._reap(lost)
            expired = list(
                islice((i for i in self._items.values() if (self._expiry(i) or now + 1) <= now), limit)
            )
            for item in expired:
                del self._items[item.message.key]
            next_due = self._next_due()
        self._wakeup.set_horizon(next_due)
        counts = (len(due), len(rested), len(lost), len(expired))
        return Advance(
            staged=len(due) + len(rested),
            reaped=len(lost),
            expired=len(expired),
            next_due=next_due,
            more=limit in counts,
        )

    async def wait(self, labels: Sequence[str], until: int | None) -> None:
        """See `Queue.wait`."""
        await self._wakeup.wait(labels, until)

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        with self._lock:
            rows = [
                _status(item, with_message=query.with_message)
                for key, item in self._items.items()
                if key.user_id == query.user_id
                and query.item_id in {None, key.item_id}
                and query.task_id in {None, item.message.task_id}
            ]
        return Page(rows=rows[: query.limit], truncated=len(rows) > query.limit)

    def _insert(self, message: Message) -> Literal["accepted", "duplicate", "conflict"]:
        fingerprint = message.fingerprint()
        known = self._items.get(message.key)
        if known is not None:
            return "duplicate" if known.fingerprint == fingerprint else "conflict"
        now = self._clock.now()
        due = to_epoch_ms(message.due) if message.due else now
        message = msgspec.structs.replace(
            message,
            level=message.level or level_of(message.label),
            timestamp=message.timestamp or from_epoch_ms(now),
            due=None,
        )
        item = self._items[message.key] = _Item(message, fingerprint, submitted_at=now)
        self._lanes.setdefault(message.lane, _Lane())
        if due > now:
            item.due = due
            self._wakeup.expect(due)
        else:
            self._join(item)
        return "accepted"

    def _join(self, item: _Item) -> None:
        """Let a message take its place at the end of its lane."""
        item.place = next(self._places)
        self._lanes[item.message.lane].waiting.append(item)
        self._wake(item.message.lane)

    def _rejoin(self, name: Lane, items: list[_Item]) -> None:
        """Let messages return to the places they had."""
        lane = self._lanes[name]
        lane.waiting = deque(sorted([*items, *lane.waiting], key=lambda item: item.place))
        self._wake(name)

    def _wake(self, name: Lane) -> None:
        """Put a lane at the end of the ring, if it may be served and is not there yet."""
        lane = self._lanes[name]
        ring = self._ring.setdefault(name.label, OrderedDict())
        free = lane.running == 0 or not lane.ordered
        if lane.waiting and free and lane.rest_until is None and name not in ring:
            ring[name] = None
            self._wakeup.notify((name.label,))

    def _claim(self, request: ClaimRequest) -> list[Claim]:
        claim_id = secrets.token_hex(16)
        claims = [
            claim
            for label, want in request.wants.items()
            for claim in self._claim_label(label, want, request, claim_id)
        ]
        return sorted(claims, key=lambda claim: claim.message.level or 0)

    def _claim_label(self, label: str, want: Want, request: ClaimRequest, claim_id: str) -> list[Claim]:
        ring = self._ring.get(label, OrderedDict())
        names = list(ring)[: min(want.lanes, want.messages)]
        now = self._clock.now()
        claims = []
        for name in names:
            del ring[name]
            lane = self._lanes[name]
            lane.ordered, lane.min_idle_ms = want.ordered, want.min_idle_ms
            take = max(1, min(want.quantum, want.messages // len(names)))
            for item in [lane.waiting.popleft() for _ in range(min(take, len(lane.waiting)))]:
                lane.running += 1
                item.status, item.claim_id = Status.IN_PROGRESS, claim_id
                item.lease_until = now + request.lease_ms
                item.started_at = item.started_at or now
                claims.append(Claim(item.message, claim_id, item.lease_until))
                self._wakeup.expect(item.lease_until)
            self._wake(name)
        return claims

    def _held(self, claim: Claim) -> _Item | None:
        """Find the item of a claim that still stands."""
        item = self._items.get(claim.key)
        return item if item is not None and item.claim_id == claim.claim_id else None

    def _end_claim(self, item: _Item, settlement: Settlement, back: list[_Item]) -> None:
        """Write one settlement; what goes back to the front of its lane is added to `back`."""
        now = self._clock.now()
        lane = self._lanes[item.message.lane]
        lane.running -= 1
        attempts = item.message.attempts + settlement.attempt
        item.message = msgspec.structs.replace(item.message, attempts=attempts)
        item.claim_id, item.error = None, settlement.error
        delay = settlement.delay_ms if settlement.move in {Move.RETRY, Move.RELEASE} else 0
        if settlement.move in END_OF:
            item.status, item.ended_at = END_OF[settlement.move], now
            if settlement.move is Move.CANCEL:
                item.error = "cancelled"
        else:
            item.status = Status.WAITING
            if delay and not lane.ordered:
                item.due = now + delay
                self._wakeup.expect(item.due)
            else:
                back.append(item)
        self._rest(lane, max(lane.min_idle_ms, delay if lane.ordered else 0))
        if settlement.move is Move.COMPLETE:
            for message in settlement.follow_ups:
                self._insert(message)

    def _rest(self, lane: _Lane, duration_ms: int) -> None:
        """Let a lane rest after a run, however it ended."""
        if duration_ms:
            lane.rest_until = max(lane.rest_until or 0, self._clock.now() + duration_ms)
            self._wakeup.expect(lane.rest_until)

    def _reap(self, lost: list[_Item]) -> None:
        """Count a loss for each, and hand it on or bury it."""
        for item in lost:
            lane = self._lanes[item.message.lane]
            lane.running -= 1
            self._rest(lane, lane.min_idle_ms)
            losses = item.message.losses + 1
            item.message = msgspec.structs.replace(item.message, losses=losses)
            item.claim_id = None
            if losses >= self._limits.max_losses:
                item.status, item.error = Status.FAILED, "killed_worker"
                item.ended_at = self._clock.now()
            else:
                item.status = Status.WAITING
            back = [] if item.status.ended else [item]
            self._rejoin(item.message.lane, back)

    def _expiry(self, item: _Item) -> int | None:
        kept = item.status in {Status.COMPLETED, Status.CANCELLED}
        return item.ended_at + self._limits.retention_ms if kept and item.ended_at is not None else None

    def _next_due(self) -> int | None:
        moments = [item.due for item in self._items.values()]
        moments += [lane.rest_until for lane in self._lanes.values()]
        moments += [i.lease_until for i in self._items.values() if i.status is Status.IN_PROGRESS]
        moments += [self._expiry(item) for item in self._items.values()]
        return min((moment for moment in moments if moment is not None), default=None)


def _status(item: _Item, *, with_message: bool) -> ItemStatus:
    message = item.message
    return ItemStatus(
        item_id=message.item_id,
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        task_type=message.label,
        status=item.status,
        submitted_at=item.submitted_at,
        task_id=message.task_id,
        started_at=item.started_at,
        ended_at=item.ended_at,
        error=item.error,
        attempts=message.attempts,
        losses=message.losses,
        message=message if with_message else None,
    )
