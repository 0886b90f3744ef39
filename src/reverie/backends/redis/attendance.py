"""Attendance: a worker listens to a channel of its own, to show the functions that it is connected."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from reverie.errors import ReverieError

if TYPE_CHECKING:
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = ["Attendance"]

AGAIN_S = 1.0
"""Pause before a lost connection is opened again; until then the worker claims for itself."""


class Attendance:
    """Keeps one connection that listens to the worker's channel, on which nothing is ever published."""

    def __init__(self, connections: Connections, keys: Keys) -> None:
        self._connections = connections
        self._keys = keys
        self._task: asyncio.Task[None] | None = None

    def begin(self, worker: str) -> None:
        """Begin to listen as this worker. Idempotent."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(worker), name="reverie-attendance")

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self, worker: str) -> None:
        while True:
            with contextlib.suppress(ReverieError, RedisError):
                async for _ in self._connections.subscribe(self._keys.worker(worker)):
                    pass
            await asyncio.sleep(AGAIN_S)
