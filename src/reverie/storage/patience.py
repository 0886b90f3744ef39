"""Waiting for the write lock of an SQLite file that other processes write to as well.

SQLite's own wait sleeps up to 100 ms between two tries, and finds the lock taken again if the other process
writes one transaction after the other. Here a wait tries every millisecond, and a process that has waited
lately leaves the lock free for a moment after each long transaction.
"""

from __future__ import annotations

import time

__all__ = ["Patience"]

TRY_AGAIN_S = 0.0005
"""The pause between the first tries."""
TRIES = 200
"""After this many tries the pause is longer: the other process is doing something large."""
LATER_S = 0.005
LONG_S = 0.004
"""A transaction that holds the lock longer than this lets others go first."""
YIELD_S = 0.0015
"""How long the lock stays free then: others try more often than that."""
CONTENDED_S = 2.0
"""How long after a wait other processes are taken to write, too."""


class Patience:
    """The waits of one writing connection."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is how long to wait for the lock."""
        self._timeout_s = timeout_s
        self._began = 0.0
        self._waited_at = -CONTENDED_S

    def wait(self, tries: int) -> bool:
        """Pause before the next try; false when the time is over. SQLite calls it while the lock is taken."""
        now = time.monotonic()
        if tries == 0:
            self._began = now
        self._waited_at = now
        if now - self._began >= self._timeout_s:
            return False
        time.sleep(TRY_AGAIN_S if tries < TRIES else LATER_S)
        return True

    def yield_after(self, held_s: float) -> None:
        """Leave the lock to other processes for a moment, if this one has held it long and others want it."""
        if held_s >= LONG_S and time.monotonic() - self._waited_at < CONTENDED_S:
            time.sleep(YIELD_S)
