"""Breakers and limiters that workers share, in this process's memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from reverie.backends.breaker_state import Grant, SharedMachine, State, is_blank, opened

if TYPE_CHECKING:
    from reverie.backends.breaker_state import Step
    from reverie.base.clock import Clock

__all__ = ["MemorySharedState"]


class MemorySharedState(SharedMachine):
    """See `reverie.backends.interface.SharedState`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, State] = {}
        """In the order of their last change, so that states that may be forgotten come first."""

    async def _move(self, key: str, step: Step) -> Grant:
        now = self._clock.now()
        with self._lock:
            while self._states and next(iter(self._states.values())).forget_at <= now:
                del self._states[next(iter(self._states))]
            state, grant = step(self._states.pop(key, State()), now)
            if not is_blank(state):
                self._states[key] = state
            return grant

    async def open_breakers(self) -> dict[str, int]:
        """See `SharedState.open_breakers`."""
        with self._lock:
            return opened(self._states.items(), self._clock.now())
