"""The wakeup: wakes tasks of one process that wait for work."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.base.clock import Clock

__all__ = ["CANCELLED", "Wakeup"]

TIME = "\x00time"
"""Used in place of a label when the next due time has changed."""
CANCELLED = "\x00cancelled"
"""Used in place of a label when someone wants running work cancelled."""


class Wakeup:
    """Remembers signals until someone waits for them, so that none is lost between two waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unheard: set[str] = set()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, frozenset[str]]] = []
        self._expected: int | None = None
        """When something falls due first, of what was set up since the last wait for time ended."""

    def notify(self, labels: Iterable[str]) -> None:
        """Signal that there may be work for these labels. Safe from any thread."""
        with self._lock:
            news = set(labels)
            for waiter in list(self._waiters):
                loop, event, wanted = waiter
                if wanted & news and not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)
            self._unheard |= news

    def expect(self, moment: int | None) -> None:
        """Note that something falls due at `moment`: a wait for time ends then at the latest."""
        if moment is None:
            return
        with self._lock:
            if self._expected is not None and moment >= self._expected:
                return
            self._expected = moment
        self.notify((TIME,))

    async def wait(self, labels: Sequence[str], until: int | None) -> None:
        """Return at the next news of these labels, at `until`, or for no reason.

        Without labels: at `until`, earlier if something falls due earlier, or when the clock is set back.
        """
        if labels:
            await self._wait(frozenset(labels), until)
            return
        began = self._clock.now()
        while True:
            now = self._clock.now()
            with self._lock:
                self._unheard.discard(TIME)
                expected = self._expected
                soonest = until if expected is None else expected if until is None else min(until, expected)
                if now < began or (soonest is not None and soonest <= now):
                    self._expected = None
                    return
            await self._wait(frozenset((TIME,)), soonest)

    async def _wait(self, wanted: frozenset[str], until: int | None) -> None:
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event, wanted)
        with self._lock:
            if self._unheard & wanted:
                self._unheard -= wanted
                return
            self._waiters.append(waiter)
        try:
            await self._clock.wait(event, until)
        finally:
            with self._lock:
                self._waiters.remove(waiter)
                if event.is_set():
                    self._unheard -= wanted
