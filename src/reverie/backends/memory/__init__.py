"""Messages wait in this process's memory: a plain model, for tests and throwaway use.

What the other backends do with statements and scripts, this one does with dictionaries: `queue.py` has the
moves, `state.py` what they move. Everything is gone when the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.interface import Capabilities
from reverie.backends.memory.breaker_state import MemorySharedState
from reverie.backends.memory.broadcast import MemoryBroadcast
from reverie.backends.memory.queue import MemoryQueue
from reverie.backends.memory.state import State
from reverie.backends.memory.triggers import MemoryTriggers
from reverie.backends.memory.views import MemoryViews
from reverie.backends.moves import QueueLimits

if TYPE_CHECKING:
    from reverie.base.clock import Clock

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """See `reverie.backends.interface.Backend`."""

    capabilities = Capabilities(applies_effects=False, durability="none")

    def __init__(self, clock: Clock, limits: QueueLimits | None = None) -> None:
        """Make an empty queue."""
        state = State(clock, limits or QueueLimits())
        self.queue = MemoryQueue(state)
        self.views = MemoryViews(state)
        self.triggers = MemoryTriggers(state, self.queue.submit_anyway)
        self.shared = MemorySharedState(clock)
        self.broadcast = MemoryBroadcast()

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""
