"""Waiting for the write lock of an SQLite file that other processes write to as well.

SQLite's own wait sleeps up to 100 ms between two tries, and finds the lock taken again if the other process
writes one transaction after the other. Here a wait tries every millisecond, and a process that has waited
lately leaves the lock free for a moment after each long transaction. That moment is long after background
work while another process takes messages in and has to wait: callers wait for intake, the background catches
up later. Processes tell each other by the time stamp of a file beside the database.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

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
WAY = 8
"""While intake waits, the lock stays free this many times as long as the background has held it, …"""
LONGEST_REST_S = 0.1
"""… but not longer."""
CONTENDED_S = 2.0
"""How long after a wait other processes are taken to write, too."""
TELL_AGAIN_S = 0.5
"""How often a process that takes messages in tells the others that it waits."""


class Patience:
    """The waits of one writing connection."""

    def __init__(self, timeout_s: float, sign: str | None = None) -> None:
        """`timeout_s` is how long to wait for the lock.

        `sign` is the path of the file whose time stamp tells that intake waits; None: there are no others.
        """
        self._timeout_s = timeout_s
        self._sign = sign
        self._began = 0.0
        self._waited_at = self._told_at = -CONTENDED_S
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
        is_contended = self._ended_at - self._waited_at < CONTENDED_S
        if intake and is_contended:
            self._tell()
        if held_s < LONG_S or not is_contended:
            self._intake_rests_s = self._others_rest_s = 0.0
        else:
            self._intake_rests_s = self._others_rest_s = YIELD_S
            if not intake and self.intake_waits:
                self._others_rest_s = min(LONGEST_REST_S, max(YIELD_S, WAY * held_s))

    def rest_s(self, *, intake: bool) -> float:
        """For how many seconds the lock should still stay free before the next transaction."""
        rests_s = self._intake_rests_s if intake else self._others_rest_s
        return max(0.0, self._ended_at + rests_s - time.monotonic())

    @property
    def intake_waits(self) -> bool:
        """Whether any process has told lately that its intake waits for the lock."""
        if self._sign is None:
            return False
        try:
            told_at = os.stat(self._sign).st_mtime  # noqa: PTH116  often called: a Path costs more
        except OSError:
            return False
        return abs(time.time() - told_at) < CONTENDED_S

    def close(self) -> None:
        """Remove the sign. A process that goes on makes it again."""
        if self._sign is not None:
            with suppress(OSError):
                os.unlink(self._sign)  # noqa: PTH108

    def _tell(self) -> None:
        """Tell other processes that intake waits for the lock."""
        if self._sign is None or self._ended_at - self._told_at < TELL_AGAIN_S:
            return
        self._told_at = self._ended_at
        with suppress(OSError):  # the disk may be full: the others rest for a shorter time
            os.close(os.open(self._sign, os.O_CREAT | os.O_WRONLY, 0o600))
            now = time.time()
            os.utime(self._sign, (now, now))
