"""For the tests of those who use Reverie: a clock moved by hand, and (below) draining and asserting."""

from __future__ import annotations

import asyncio
import threading
import time

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start_ms: int | None = None) -> None:
        """Start at `start_ms`; default: the machine's time now."""
        self._now = start_ms if start_ms is not None else time.time_ns() // 1_000_000
        self._lock = threading.Lock()
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []

    def now(self) -> int:
        """Milliseconds since 1970, as last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock and wake everyone whose time has come. Safe from any thread."""
        with self._lock:
            self._now += round(seconds * 1000)
            for until, loop, event in self._waiters:
                if until <= self._now and not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    async def wait(self, event: asyncio.Event, until: int | None) -> None:
        """Return when `event` is set or the clock was moved to `until`."""
        if until is None:
            await event.wait()
            return
        waiter = (until, asyncio.get_running_loop(), event)
        with self._lock:
            if until <= self._now:
                return
            self._waiters.append(waiter)
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiters.remove(waiter)
