"""The health of a queue: how many messages wait, run and have failed, their age, and the throughput."""

from __future__ import annotations

from collections import deque
from heapq import nlargest
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.backends.interface import Backend
    from reverie.backends.views import LabelState
    from reverie.base.clock import Clock

__all__ = ["Health", "LabelHealth", "Pace", "look"]

MOST_LISTED = 100
"""The most labels that are listed one by one, because anyone can make up a label."""
PACE_MS = 60_000
"""The throughput is measured over about this time."""
STEP_MS = 1000
"""Of looks closer together than this, only the first is remembered."""


class LabelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one label stands."""

    label: str
    waiting: int
    in_progress: int
    failed: int
    handled: bool
    paused: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True, rename={"oldest_pending_age": "oldestPendingAge"}):
    """The state of a queue at one moment. Ages are seconds, 0 if there is no such message."""

    pending: int
    """Messages that wait, delayed ones included."""
    processing: int
    failed: int
    """Dead letters."""
    oldest_pending_age: float
    """The time since the oldest message that could run now was accepted."""
    oldest_processing_age: float
    last_completed_age: float | None
    """Seconds since the last completion; None if there was none yet."""
    throughput_per_s: float | None
    """Completions per second over the last minute; None until a second look was taken."""
    workers: int
    labels: list[LabelHealth]
    """Labels that have work, dead letters or a pause; at most a hundred, those with most messages."""
    unhandled_labels: list[str]
    """Labels among `labels` that have waiting messages and no live worker that handles them."""
    oldest_waiting_age: float = 0.0
    """The longest time that a message could have run and did not; a retry begins it anew."""
    labels_in_all: int = 0
    """How many labels are known."""


class Pace:
    """Measures the throughput over about a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()
        self._last = (0, 0)

    def observe(self, now: int, completed_ever: int) -> float | None:
        """Completions per second since the oldest look of the last minute."""
        if now < self._last[0] or completed_ever < self._last[1]:
            self._seen.clear()  # the clock or the queue was set back
        self._last = (now, completed_ever)
        while self._seen and now - self._seen[0][0] > PACE_MS:
            self._seen.popleft()
        if not self._seen or now - self._seen[-1][0] >= STEP_MS:
            self._seen.append(self._last)
        at, count = self._seen[0]
        return (completed_ever - count) / ((now - at) / 1000) if now > at else None


async def look(backend: Backend, clock: Clock, pace: Pace | None = None) -> Health:
    """Read the health of a queue now; with `pace`, also its throughput."""
    labels, ages, workers = (
        await backend.views.labels(),
        await backend.views.health(),
        await backend.views.workers(),
    )
    now = clock.now()

    def age(moment: int | None) -> float:
        return 0.0 if moment is None else max(0.0, (now - moment) / 1000)

    completed_ever = sum(state.completed_ever for state in labels)
    last = ages.last_completed_at
    return Health(
        pending=sum(state.waiting for state in labels),
        processing=sum(state.in_progress for state in labels),
        failed=sum(state.failed for state in labels),
        oldest_pending_age=age(ages.oldest_created_at),
        oldest_waiting_age=age(ages.oldest_waiting_at),
        oldest_processing_age=age(ages.oldest_in_progress_at),
        last_completed_age=None if last is None else age(last),
        throughput_per_s=None if pace is None else pace.observe(now, completed_ever),
        workers=len(workers),
        labels=[_label(state) for state in _largest(labels)],
        unhandled_labels=[state.label for state in _largest(labels) if state.waiting and not state.handled],
        labels_in_all=len(labels),
    )


def _largest(labels: Iterable[LabelState]) -> list[LabelState]:
    """The labels that have messages or a pause, by name; at most `MOST_LISTED`, those with most messages."""
    seen = [one for one in labels if one.waiting or one.in_progress or one.failed or one.paused]
    most = nlargest(MOST_LISTED, seen, key=lambda one: one.waiting + one.in_progress + one.failed)
    return sorted(most, key=lambda one: one.label)


def _label(state: LabelState) -> LabelHealth:
    return LabelHealth(
        label=state.label,
        waiting=state.waiting,
        in_progress=state.in_progress,
        failed=state.failed,
        handled=state.handled,
        paused=state.paused,
    )
