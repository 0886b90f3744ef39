"""The data of the memory backend, and the small steps that its moves are made of."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

import msgspec

from reverie.backends.moves import Status
from reverie.backends.views import MOST_KEPT, Attempt
from reverie.backends.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reverie.backends.moves import Presence, QueueLimits
    from reverie.base.clock import Clock
    from reverie.message import Key, Lane, Message

__all__ = ["Item", "LaneState", "Outcome", "State", "Tenant"]

Outcome = Literal["completed", "failed", "cancelled", "retry", "handed_back", "lost"]


@dataclass(eq=False)
class Item:
    """A message and its state."""

    message: Message
    fingerprint: str
    seq: int
    submitted_at: int
    status: Status = Status.WAITING
    place: int | None = None
    """Its place in its lane, once it is eligible."""
    due: int | None = None
    deadline: int | None = None
    waits_for: set[str] = field(default_factory=set)
    unique_until: int = 0
    claim_id: str | None = None
    lease_until: int = 0
    cancel_requested: bool = False
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    waiting_since: int = 0
    claimed_at: int | None = None
    """When it was last claimed; `worker` says by whom."""
    worker: str | None = None
    attempts: deque[Attempt] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    memos: dict[str, str] = field(default_factory=dict)

    def update(self, **fields: object) -> None:
        """Change fields of the message."""
        self.message = msgspec.structs.replace(self.message, **fields)

    def note(self, outcome: Outcome, now: int, error: str | None = None, *, ran: bool = True) -> None:
        """Remember how a run has ended, or that the message ended without a run."""
        started_at, worker = (self.claimed_at, self.worker) if ran else (None, None)
        self.attempts.append(
            Attempt(outcome=outcome, ended_at=now, started_at=started_at, worker=worker, error=error)
        )


@dataclass
class LaneState:
    """The waiting messages of a lane, in order, and what keeps the lane from being served."""

    waiting: deque[Item] = field(default_factory=deque)
    running: int = 0
    ordered: bool = True
    min_idle_ms: int = 0
    rest_until: int | None = None


@dataclass
class Tenant:
    """The lanes and counts of one tenant."""

    lanes: dict[Lane, None] = field(default_factory=dict)
    depth: int = 0
    running: int = 0
    arrival: float = 0


class State:
    """All data of the backend. Every caller holds the lock."""

    def __init__(self, clock: Clock, limits: QueueLimits) -> None:
        self.clock = clock
        self.limits = limits
        self.lock = threading.RLock()
        self.wakeup = Wakeup(clock)
        self.items: dict[Key, Item] = {}
        self.lanes: dict[Lane, LaneState] = {}
        self.tenants: defaultdict[tuple[str, str], Tenant] = defaultdict(Tenant)
        self.total = Tenant()
        self.rings: defaultdict[str, OrderedDict[Lane, int]] = defaultdict(OrderedDict)
        """Label → the lanes that may be served, in their turn, each with the time since when."""
        self.dependants: defaultdict[Key, list[Key]] = defaultdict(list)
        self.uniques: defaultdict[tuple[Lane, str], list[Item]] = defaultdict(list)
        self.just_ended: list[Item] = []
        """Messages that have ended in this move."""
        self.paused: dict[str, str] = {}
        self.workers: dict[str, tuple[Presence, int]] = {}
        self.ever: Counter[tuple[str, Status]] = Counter()
        """(label, status) → how many messages have ever ended with this status."""
        self.labels: Counter[str] = Counter()
        """Label → how many of its messages are kept; a label with none stays until there are too many."""
        self.last_completed_at: int | None = None
        self.on_moved: Callable[[Item], None] = lambda _: None
        """Called in the same step for every message that ends, or waits again after a run."""
        self.seqs = count(1)
        self._places = count(1)

    def tenant_of(self, lane: Lane) -> Tenant:
        """The tenant that a lane belongs to."""
        return self.tenants[lane.user_id, lane.mem_cube_id]

    def scopes(self, lane: Lane) -> tuple[Tenant, Tenant]:
        """The counts that include this lane: those of its tenant, and those of all tenants."""
        return self.tenant_of(lane), self.total

    def room(self, lane: Lane) -> int | None:
        """How many more messages of a lane's tenant may be in progress; None means any number."""
        most = self.limits.tenant.concurrency
        return None if most is None else max(0, most - self.tenant_of(lane).running)

    def add(self, item: Item) -> None:
        """Keep a new message; it is not in its lane yet."""
        lane = item.message.lane
        self.items[item.message.key] = item
        self.labels[item.message.label] += 1
        self.lanes.setdefault(lane, LaneState())
        self.tenant_of(lane).lanes[lane] = None
        for scope in self.scopes(lane):
            scope.depth += 1

    def settle_in(self, item: Item) -> None:
        """Put a waiting message at the end of its lane, if it is due and waits for no other message."""
        if item.status is not Status.WAITING or item.place is not None or item.waits_for:
            return
        if item.due is not None and item.due > self.clock.now():
            self.wakeup.expect(item.due)
            return
        item.due = None
        item.place, item.waiting_since = next(self._places), self.clock.now()
        self.lanes[item.message.lane].waiting.append(item)
        self.wake(item.message.lane)

    def rejoin(self, name: Lane, items: Iterable[Item]) -> None:
        """Let messages return to the places they had."""
        lane = self.lanes[name]
        lane.waiting = deque(sorted([*items, *lane.waiting], key=lambda item: item.place or 0))
        self.wake(name)

    def leave_place(self, item: Item) -> None:
        """Take a waiting message out of its lane."""
        if item.place is not None:
            lane = item.message.lane
            self.lanes[lane].waiting.remove(item)
            item.place = None
            if not self.lanes[lane].waiting:
                self.rings[lane.label].pop(lane, None)

    def wake(self, name: Lane) -> None:
        """Put a lane at the end of the ring, if it may be served and is not there yet."""
        lane, ring = self.lanes[name], self.rings[name.label]
        free = lane.running == 0 or not lane.ordered
        if lane.waiting and free and lane.rest_until is None and self.room(name) != 0 and name not in ring:
            ring[name] = self.clock.now()
            self.wakeup.notify((name.label,))

    def start(self, item: Item) -> None:
        """Count a message that is handed to a worker."""
        lane = item.message.lane
        self.lanes[lane].running += 1
        for scope in self.scopes(lane):
            scope.running += 1
        if self.room(lane) == 0:
            for name in self.tenant_of(lane).lanes:
                self.rings[name.label].pop(name, None)

    def release(self, item: Item, rest_ms: int) -> None:
        """Count a message whose claim has ended, and let its lane rest."""
        name = item.message.lane
        item.waiting_since = self.clock.now()
        lane = self.lanes[name]
        was_full = self.room(name) == 0
        lane.running -= 1
        for scope in self.scopes(name):
            scope.running -= 1
        item.claim_id = None
        if rest_ms:
            lane.rest_until = max(lane.rest_until or 0, self.clock.now() + rest_ms)
            self.wakeup.expect(lane.rest_until)
            self.rings[name.label].pop(name, None)
        for other in self.tenant_of(name).lanes if was_full else (name,):
            self.wake(other)
        if self.limits.total.concurrency is not None:
            self.wakeup.notify([label for label, ring in self.rings.items() if ring])

    def lose(self, item: Item) -> Item | None:
        """Count a loss; answers the message if it waits again, None if it has ended."""
        self.release(item, self.lanes[item.message.lane].min_idle_ms)
        losses, now = item.message.losses + 1, self.clock.now()
        item.update(losses=losses)
        if item.cancel_requested:
            item.note("cancelled", now)
            self.end(item, Status.CANCELLED)
        elif losses >= self.limits.max_losses:
            item.note("lost", now, "killed_worker")
            self.end(item, Status.FAILED, "killed_worker")
        else:
            item.note("lost", now)
            item.status = Status.WAITING
            return item
        return None

    def end(self, item: Item, status: Status, error: str | None = None) -> None:
        """End a message. The caller finishes the move."""
        now = self.clock.now()
        if item.status is Status.WAITING:
            self.leave_place(item)
            item.note("cancelled" if status is Status.CANCELLED else "failed", now, error, ran=False)
        self.ever[item.message.label, status] += 1
        if status is Status.COMPLETED:
            self.last_completed_at = now
        item.status, item.ended_at, item.place = status, now, None
        item.error = "cancelled" if status is Status.CANCELLED else error
        item.due, item.waits_for, item.cancel_requested = None, set(), False
        if status is not Status.FAILED:
            item.memos = {}
        for scope in self.scopes(item.message.lane):
            scope.depth -= 1
        self.just_ended.append(item)
        self.on_moved(item)

    def finish(self) -> None:
        """End a move: the dependants of ended messages go on, or fail with them and end in turn."""
        while self.just_ended:
            ended, self.just_ended = self.just_ended, []
            waiting: dict[Key, list[Item]] = {}
            for parent in ended:
                for key in self.dependants.pop(parent.message.key, ()):
                    waiting.setdefault(key, []).append(parent)
            children = [(self.items[key], parents) for key, parents in waiting.items() if key in self.items]
            for child, parents in sorted(children, key=lambda pair: pair[0].seq):
                self._parents_ended(child, parents)

    def _parents_ended(self, child: Item, parents: list[Item]) -> None:
        parents = [parent for parent in parents if parent.message.item_id in child.waits_for]
        if child.status is not Status.WAITING or not parents:  # it may have been requeued since
            return
        failed = [parent for parent in parents if parent.status is not Status.COMPLETED]
        if failed and child.message.if_dependency_fails == "fail":
            self.end(child, Status.FAILED, f"dependency: {failed[0].message.item_id} {failed[0].status}")
            return
        child.waits_for -= {parent.message.item_id for parent in parents}
        self.settle_in(child)

    def forget(self, item: Item) -> None:
        """Remove an ended message."""
        message = item.message
        del self.items[message.key]
        self.labels[message.label] -= 1
        if message.unique_key is not None:
            self.uniques[message.lane, message.unique_key].remove(item)

    def drop_lanes(self) -> int:
        """Remove the lanes that have no message, not even an ended one, and do not rest; answer how many."""
        used = {item.message.lane for item in self.items.values()}
        unused = [name for name, lane in self.lanes.items() if name not in used and lane.rest_until is None]
        for name in unused:
            del self.lanes[name]
            tenant = self.tenant_of(name)
            del tenant.lanes[name]
            if not tenant.lanes and tenant.arrival <= self.clock.now():
                del self.tenants[name.user_id, name.mem_cube_id]
        return len(unused)

    def forget_labels(self) -> None:
        """Forget the labels of which no message is kept."""
        gone = {label for label, kept in self.labels.items() if not kept}
        for label in gone:
            del self.labels[label]
            self.rings.pop(label, None)
        self.ever = Counter({key: count for key, count in self.ever.items() if key[0] not in gone})

    def expiry(self, item: Item) -> int | None:
        """When the status of an ended message is removed; None if it stays."""
        is_dead = item.status is Status.FAILED
        kept_ms = self.limits.dead_retention_ms if is_dead else self.limits.retention_ms
        return None if item.ended_at is None or kept_ms is None else item.ended_at + kept_ms

    def next_due(self) -> int | None:
        """The first moment at which something falls due."""
        items = self.items.values()
        waiting = [i for i in items if i.status is Status.WAITING]
        moments = [i.due for i in waiting if not i.waits_for]
        moments += [i.deadline for i in waiting]
        moments += [lane.rest_until for lane in self.lanes.values()]
        moments += [i.lease_until for i in items if i.status is Status.IN_PROGRESS]
        moments += [self.expiry(i) for i in items]
        return min((moment for moment in moments if moment is not None), default=None)
