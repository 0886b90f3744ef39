"""The clock: tells the time in whole milliseconds since 1970, and waits for a moment.

Everything that depends on time takes a `Clock`, so that a test can move it by hand
(`reverie.testing.ManualClock`). Redis has a clock of its own: the server's.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

__all__ = ["EPOCH", "Clock", "SystemClock", "from_epoch_ms", "to_epoch_ms"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_NAP_S = 30.0
"""The longest wait on one timer, in seconds, because a machine that sleeps stops its timers."""


class Clock(Protocol):
    """Tells the time and waits for a moment."""

    def now(self) -> int:
        """Milliseconds since 1970."""
        ...

    async def wait(self, event: asyncio.Event, until: int | None) -> None:
        """Return when `event` is set or at `until`; sometimes also for no reason."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def wait(self, event: asyncio.Event, until: int | None) -> None:
        """Return when `event` is set or at `until`, but after `LONGEST_NAP_S` at the latest."""
        nap = LONGEST_NAP_S if until is None else min(LONGEST_NAP_S, max(0.0, (until - self.now()) / 1000))
        try:
            async with asyncio.timeout(nap):
                await event.wait()
        except TimeoutError:
            return


def to_epoch_ms(moment: datetime) -> int:
    """Turn a moment into milliseconds since 1970; one without a zone is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=4096)  # messages that were submitted together have the same time
def from_epoch_ms(milliseconds: int) -> datetime:
    """Turn milliseconds since 1970 into a moment in UTC."""
    return EPOCH + timedelta(milliseconds=milliseconds)
