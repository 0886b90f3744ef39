"""The start/stop contract of every long-lived service, and the loop that most of them use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from reverie.base.logs import get_logger
from reverie.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from reverie.base.clock import Clock

__all__ = ["BREAKER_AFTER", "LoopService", "Service", "restart_pause"]

log = get_logger(__name__)

RESTART_DELAYS_S = (1.0, 2.0, 4.0)
"""The pauses before the first restarts of a loop that fails."""
BREAKER_AFTER = len(RESTART_DELAYS_S)
"""Failures in a row that open the breaker."""
BREAKER_PAUSE_S = 30.0
"""The pause before each later restart, until one succeeds."""


def restart_pause(failures: int) -> float:
    """Seconds to wait before the next start, after this many failures in a row."""
    return RESTART_DELAYS_S[failures] if failures < len(RESTART_DELAYS_S) else BREAKER_PAUSE_S


class Service(Protocol):
    """A service runs as long as its process: idempotent, safe to stop unstarted, never dying silently."""

    async def start(self) -> None:
        """Start the service; does nothing if it runs."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Stop the service, within `grace_s` seconds if possible; does nothing if it does not run."""
        ...


class LoopService:
    """Calls `_turn` again and again; a turn that fails is logged and tried again after a pause.

    A stop does not cut a turn off in the middle of a move: it only ends the waits inside it
    (`_until_stopped`), unless the grace time runs out.
    """

    name = "service"

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.failures = 0
        """Turns that failed since the last one that succeeded."""

    async def start(self) -> None:
        """See `Service.start`."""
        if self._task is None:
            self._stopping = asyncio.Event()  # the last start may have been on another event loop
            self._task = asyncio.create_task(self._loop(), name=f"reverie-{self.name}")

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await asyncio.wait({task}, timeout=grace_s)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _turn(self) -> None:
        raise NotImplementedError

    async def _until_stopped(self, *waits: Coroutine[Any, Any, Any]) -> None:
        """Return when one of these waits is over, or when the service has to stop."""
        tasks = [asyncio.ensure_future(wait) for wait in (*waits, self._stopping.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()  # takes effect in the next pass of the event loop; nothing has to wait for it
        for task in done:
            task.result()

    async def _rest(self, clock: Clock, seconds: float) -> None:
        """Return after `seconds` by this clock, when the clock is set back, or when the service must stop."""
        began = clock.now()
        until = began + round(seconds * 1000)
        while began <= clock.now() < until and not self._stopping.is_set():
            await self._until_stopped(clock.wait(asyncio.Event(), until))

    async def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001  reported below, and tried again
                await self._pause(error)
            else:
                self.failures = 0

    async def _pause(self, error: Exception) -> None:
        pause = restart_pause(self.failures)
        self.failures += 1
        expected = isinstance(error, BackendUnavailableError)
        log.warning(
            "service.failed",
            service=self.name,
            error=str(error) if expected else repr(error),
            failures=self.failures,
            again_in_s=pause,
            exc_info=None if expected else error,
        )
        await self._until_stopped(asyncio.sleep(pause))
