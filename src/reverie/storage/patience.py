"""Waiting for the write lock of an SQLite file that other processes write to as well.

SQLite's own wait sleeps up to 100 ms between two tries, and finds the lock taken again if the other process
writes one transaction after the other. Here a wait tries every millisecond, and a process that has waited
lately leaves the lock free for a moment after each long transaction. That moment is short after messages were
taken in, because callers wait for that, and long after other work: while many processes write, intake goes
first, and the rest catches up later.
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
"""How long the lock stays free at least: others try more often than that."""
WAY = 3
"""After other work than intake, it stays free this many times as long as it was held, …"""
LONGEST_REST_S = 0.1
"""… but not longer."""
CONTENDED_S = 2.0
"""How long after a wait other processes are taken to write, too."""


class Patience:
    """The waits of one writing connection."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is how long to wait for the lock."""
        self._timeout_s = timeout_s
        self._began = 0.0
        self._waited_at = -CONTENDED_S
        self._ended_at = 0.0
        self._intake_rests_s = self._others_rest_s = 0.0

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

    def note_end(self, held_s: float, *, intake: bool) -> None:
        """Note that a transaction has ended now, and how long it has held the lock."""
        self._ended_at = time.monotonic()
        if held_s < LONG_S or self._ended_at - self._waited_at >= CONTENDED_S:
            self._intake_rests_s = self._others_rest_s = 0.0
        else:
            self._intake_rests_s = YIELD_S
            self._others_rest_s = YIELD_S if intake else min(LONGEST_REST_S, WAY * held_s)

    def rest_s(self, *, intake: bool) -> float:
        """For how many seconds the lock should still stay free before the next transaction."""
        rests_s = self._intake_rests_s if intake else self._others_rest_s
        return max(0.0, self._ended_at + rests_s - time.monotonic())
