"""Form batches: how many messages a worker may claim next, and which claims run together.

A slot is room for one running call. A slot takes as many messages as its handler finishes in a short slice of
time, judged by its last batches, because a quick handler would otherwise mostly wait for the queue.
"""

from __future__ import annotations

import heapq
import math
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from reverie.backends.moves import Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.registry import Handler

__all__ = ["SLICE_S", "Pace", "form_batches", "want_of"]

SLICE_S = 0.02
"""Seconds of work that a slot of a plain handler takes; a batch that takes much longer is cut off."""
MOST_PER_SLOT = 256
"""The most messages that a slot of a plain handler takes."""
MOST_TOGETHER = 512
"""The most messages of a label that one request asks for; the next are claimed while these run."""
WORTH_S = 0.01
"""Seconds of work that are worth another slot: waking a thread for less would take longer."""
SMOOTHING = 0.3
"""The weight of the last batch against those before it, between 0 and 1."""


class Pace:
    """How long a handler takes for one message, as its last batches have shown."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def observe(self, messages: int, seconds: float) -> None:
        """Learn from a batch: it had this many messages and took this many seconds."""
        latest = seconds / messages
        self._seconds = (
            latest if self._seconds is None else self._seconds + SMOOTHING * (latest - self._seconds)
        )

    def fit(self, seconds: float) -> int:
        """How many messages the handler finishes in this many seconds; 1 before its first batch."""
        return 1 if self._seconds is None else max(1, int(seconds / max(self._seconds, 1e-9)))


def want_of(
    handler: Handler, free: int, pace: Pace, *, quantum: int, min_idle_ms: int, level: int = 3
) -> Want:
    """The messages that `free` slots of a handler have room for."""
    per_slot = handler.batch if handler.is_batch else min(MOST_PER_SLOT, pace.fit(SLICE_S))
    return Want(
        slots=max(1, min(free, MOST_TOGETHER // per_slot)),
        per_slot=per_slot,
        quantum=min(quantum, per_slot),
        ordered=handler.ordered,
        min_idle_ms=min_idle_ms,
        level=level,
        max_attempts=handler.max_attempts,
    )


def form_batches(handler: Handler, claims: Sequence[Claim], free: int, pace: Pace) -> list[list[Claim]]:
    """Split the claims of one label over `free` slots; an ordered lane is never in two batches.

    A message with losses runs alone, because a process that it kills would lose the other messages too.
    """
    if len(claims) == 1:
        return [list(claims)]
    lost = [[claim] for claim in claims if claim.message.losses]
    others = [claim for claim in claims if not claim.message.losses] if lost else claims
    bins = max(1, min(free - len(lost), math.ceil(len(others) / pace.fit(WORTH_S))))
    return lost + _split(handler, others, bins)


def _split(handler: Handler, claims: Sequence[Claim], bins: int) -> list[list[Claim]]:
    size = handler.batch if handler.is_batch else math.ceil(len(claims) / bins)
    if not handler.ordered:
        return [list(claims[start : start + size]) for start in range(0, len(claims), size)]
    lane_of = attrgetter("message.user_id", "message.mem_cube_id")
    by_lane = sorted(claims, key=lane_of)  # stable: the order inside a lane stays
    lanes = [list(group) for _, group in groupby(by_lane, key=lane_of)]
    if not handler.is_batch:
        return _deal(lanes, bins)
    batches: list[list[Claim]] = []
    for prefix in lanes:
        if batches and len(batches[-1]) + len(prefix) <= size:
            batches[-1].extend(prefix)
        else:
            batches.append(prefix)
    return batches


def _deal(lanes: list[list[Claim]], bins: int) -> list[list[Claim]]:
    """Deal lanes out to at most `bins` batches, the longest lane first, each to the smallest batch."""
    batches: list[tuple[int, int, list[Claim]]] = [(0, n, []) for n in range(min(bins, len(lanes)))]
    for lane in sorted(lanes, key=len, reverse=True):
        count, index, batch = heapq.heappop(batches)
        batch.extend(lane)
        heapq.heappush(batches, (count + len(lane), index, batch))
    return [batch for _, _, batch in batches]
