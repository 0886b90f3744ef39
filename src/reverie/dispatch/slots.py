"""A worker's slots: how many are in use, how many are free, and what may be claimed for them.

Levels 1 and 2 have reserved slots that other levels leave free. When there is more work than slots, the slots
are divided among the levels by weight.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from reverie.backends.moves import ClaimRequest, LevelRoom
from reverie.dispatch.batches import Pace, want_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.backends.moves import Want
    from reverie.dispatch.pauses import Pauses
    from reverie.dispatch.registry import Handler, Registry
    from reverie.dispatch.settings import WorkerSettings

__all__ = ["WEIGHTS", "Slots"]

WEIGHTS = {1: 16, 2: 4, 3: 1}
"""The weight of each level, by which slots are divided when there is more work than slots."""


class Slots:
    """The slots of one worker."""

    def __init__(self, registry: Registry, settings: WorkerSettings, pauses: Pauses) -> None:
        self._registry = registry
        self._settings = settings
        self._pauses = pauses
        self._active: Counter[str] = Counter()
        self._credit: Counter[int] = Counter()
        self._last_served: Counter[str] = Counter()
        self._order = itertools.count(1)
        self.paces: defaultdict[str, Pace] = defaultdict(Pace)
        """label → how long its handler takes for one message."""

    def free(self, handler: Handler) -> int:
        """How many more calls of this handler may begin."""
        return handler.concurrency - self._active[handler.label]

    def take(self, label: str) -> None:
        """Occupy a slot for a call of this label."""
        self._active[label] += 1
        self._last_served[label] = next(self._order)

    def give_back(self, label: str) -> None:
        """Free the slot of a call of this label that has ended."""
        self._active[label] -= 1

    def request(self, worker: str, handlers: Iterable[Handler]) -> ClaimRequest:
        """The request for as many messages of these handlers as there is room for."""
        free = self._settings.slots - self._active.total()
        wants = self._wants(handlers) if free > 0 else {}
        rooms = self._rooms(free)
        fullest = (min(want.slots, rooms[want.level].most) * want.per_slot for want in wants.values())
        return ClaimRequest(
            worker=worker,
            wants=wants,
            lease_ms=round(self._settings.lease_s * 1000),
            slots=max(0, free),
            levels=rooms,
            enough=max([1, *fullest]),
        )

    def _wants(self, handlers: Iterable[Handler]) -> dict[str, Want]:
        """The want of each label, ordered by the fewest running calls, then by the longest time unserved."""
        orchestrator, paused = self._registry.orchestrator, self._pauses.labels
        served = [(self._active[h.label], self._last_served[h.label], n, h) for n, h in enumerate(handlers)]
        wants = {}
        for active, _, _, handler in sorted(served):
            free = handler.concurrency - active
            if free <= 0:
                continue
            want: Want | None = want_of(
                handler,
                free,
                self.paces[handler.label],
                quantum=self._settings.lane_quantum,
                min_idle_ms=orchestrator.tasks_min_idle_ms.get(handler.label, 0),
                level=orchestrator.level(handler.label),
            )
            if handler.label in paused and want is not None:
                want = self._pauses.narrow(handler, want)
            if want is not None:
                wants[handler.label] = want
        return wants

    def _rooms(self, free: int) -> dict[int, LevelRoom]:
        unused = self._unused_reserves()
        shares = self._shares(free)
        rooms = {}
        for level in WEIGHTS:
            most = max(0, free - sum(unused.values()) + unused[level])
            rooms[level] = LevelRoom(share=min(shares[level], most), most=most)
        return rooms

    def _unused_reserves(self) -> Counter[int]:
        """The free slots that are reserved for each level; at least one slot is never reserved."""
        level_of = self._registry.orchestrator.level
        running: Counter[int] = Counter()
        for label, count in self._active.items():
            running[level_of(label)] += count
        handled = {level_of(handler.label) for handler in self._registry.handlers}
        unused: Counter[int] = Counter()
        left = self._settings.slots - 1
        for level, wish in ((1, self._settings.reserved_level_1), (2, self._settings.reserved_level_2)):
            reserved = min(wish, left) if level in handled else 0
            left -= reserved
            unused[level] = max(0, reserved - running[level])
        return unused

    def _shares(self, free: int) -> Counter[int]:
        """Divide the free slots by weight; the remainder is carried over to the next division.

        A level without a handler has a share, too, because work that waits long may move up to it.
        """
        total = sum(WEIGHTS.values())
        rounds, rest = divmod(max(0, free), total)
        shares: Counter[int] = Counter({level: rounds * weight for level, weight in WEIGHTS.items()})
        for _ in range(rest):
            self._credit.update(WEIGHTS)
            chosen = max(WEIGHTS, key=self._credit.__getitem__)
            self._credit[chosen] -= total
            shares[chosen] += 1
        return shares
