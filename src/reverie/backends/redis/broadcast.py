"""Broadcast on Redis: processes tell each other news over a channel of the server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from reverie.errors import BackendUnavailableError, ReverieError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = ["RedisBroadcast"]

MOST_UNSENT = 256
"""The most pieces of news that wait to be sent; further ones are lost."""
LARGEST_NEWS = 65_536
"""In bytes; longer news is not sent."""
LOOK_AGAIN_S = 1.0
"""How long the known number of listeners is used before the server is asked again."""
FAREWELL_S = 1.0
"""How long `close` waits for unsent news."""
NAME_BYTES = 16


class RedisBroadcast:
    """See `reverie.backends.interface.Broadcast`.

    News is sent from the event loop that has opened the backend. It begins with the name of its sender, so
    that no process hears its own news. Listening ends when the backend is closed; when the server goes away,
    it ends with `BackendUnavailableError`.
    """

    def __init__(self, connections: Connections, keys: Keys) -> None:
        self._connections = connections
        self._channel = keys.news(connections.database)
        self._name = secrets.token_bytes(NAME_BYTES)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that sends; None while the backend is closed."""
        self._task: asyncio.Task[None] | None = None
        self._woken = False
        self._unsent: deque[bytes] = deque()
        self._own = 0
        """How many listeners this process has: `is_heard` does not count them."""
        self._listeners = 0
        self._look_at = 0.0
        """When to ask again how many listen, on the monotonic clock."""
        self._looking = False

    async def open(self) -> None:
        """Send from the running loop, unless another loop sends; and ask whether anyone listens."""
        if self._loop is None or self._loop.is_closed():
            self._loop, self._woken = asyncio.get_running_loop(), False
            self._looking, self._look_at = True, time.monotonic() + LOOK_AGAIN_S
            await self._send()

    async def close(self) -> None:
        """Send the unsent news, if that is quick."""
        loop, self._loop = self._loop, None
        if loop is asyncio.get_running_loop():
            self._begin()
            if self._task is not None and not (await asyncio.wait([self._task], timeout=FAREWELL_S))[0]:
                self._task.cancel()
                await asyncio.wait([self._task])
        self._task, self._listeners = None, 0
        self._unsent.clear()

    @property
    def is_heard(self) -> bool:
        """See `Broadcast.is_heard`."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at, self._looking = now + LOOK_AGAIN_S, True
            self._wake()
        return self._listeners > self._own

    def say(self, news: bytes) -> None:
        """See `Broadcast.say`."""
        if self._loop is not None and len(news) <= LARGEST_NEWS and len(self._unsent) < MOST_UNSENT:
            self._unsent.append(self._name + news)
            self._wake()

    async def listen(self) -> AsyncGenerator[bytes]:
        """See `Broadcast.listen`."""
        self._own += 1
        try:
            async with contextlib.aclosing(self._connections.subscribe(self._channel)) as heard:
                async for news in heard:
                    if not news.startswith(self._name):
                        yield news[NAME_BYTES:]
        except BackendUnavailableError:
            if self._loop is not None:
                raise
        finally:
            self._own -= 1

    def _wake(self) -> None:
        """Wake the loop that sends, from any thread."""
        loop = self._loop
        if loop is not None and not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._woken = False
        if (self._task is None or self._task.done()) and (self._unsent or self._looking):
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._looking:
                self._looking = False
                _, self._listeners = await self._connections.call("PUBSUB", "NUMSUB", self._channel)
            while self._unsent:
                self._listeners = await self._connections.call(
                    "PUBLISH", self._channel, self._unsent.popleft()
                )
        except (ReverieError, RedisError):
            self._listeners = 0
            self._unsent.clear()
