"""The depth sampler: remembers how many messages of each label waited and ran recently."""

from __future__ import annotations

from collections import deque
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from reverie.base.service import LoopService

if TYPE_CHECKING:
    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock

__all__ = ["DepthSample", "DepthSampler"]


MOST_LABELS = 1000
"""The most labels in one sample: those with the most messages."""


class DepthSample(msgspec.Struct, frozen=True):
    """How many messages of each label waited and ran at one moment."""

    at: int
    """Epoch milliseconds."""
    waiting: dict[str, int]
    in_progress: dict[str, int]


class DepthSampler(LoopService):
    """Takes a sample every few seconds, and forgets the oldest."""

    name = "depth sampler"

    def __init__(self, backend: Backend, clock: Clock, *, every_s: float, keep: int) -> None:
        super().__init__()
        self._backend = backend
        self._clock = clock
        self._every_s = every_s
        self.samples: deque[DepthSample] = deque(maxlen=keep)
        """Oldest first."""

    async def sample(self) -> DepthSample:
        """Take a sample now."""
        labels = await self._backend.views.labels()
        taken = DepthSample(
            self._clock.now(),
            _largest({state.label: state.waiting for state in labels if state.waiting}),
            _largest({state.label: state.in_progress for state in labels if state.in_progress}),
        )
        self.samples.append(taken)
        return taken

    async def _turn(self) -> None:
        await self.sample()
        await self._rest(self._clock, self._every_s)


def _largest(counts: dict[str, int]) -> dict[str, int]:
    """The labels with the largest counts, at most `MOST_LABELS`."""
    return (
        counts if len(counts) <= MOST_LABELS else dict(nlargest(MOST_LABELS, counts.items(), itemgetter(1)))
    )
