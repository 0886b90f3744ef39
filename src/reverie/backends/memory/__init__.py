"""The memory backend: messages wait in this process's memory, for tests and throwaway use.

It is a plain model, and does with dictionaries what the other backends do with SQL and Lua. `queue.py` has
the moves, `state.py` the data that they change. Everything is gone when the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.interface import Capabilities
from reverie.backends.memory.breaker_state import MemorySharedState
from reverie.backends.memory.broadcast import MemoryBroadcast
from reverie.backends.memory.queue import MemoryQueue
from reverie.backends.memory.records import MemoryRecords
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
        self.records = MemoryRecords()
        self.broadcast = MemoryBroadcast()

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
