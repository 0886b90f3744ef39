"""The broadcast of an SQLite queue: sends news to other processes that use the same file and listen.

Each listener has a socket in the folder that `peers.py` uses as well; its name begins with `LISTENER`. No
delivery is promised: news that a listener cannot take at once is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.storage.peers import LISTENER, Mouth, bind_in, leave, peers_folder, sockets_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

__all__ = ["FileBroadcast"]

log = get_logger(__name__)

LARGEST_NEWS = 65_536
LOOK_EVERY_S = 1.0
"""The shortest time between two checks whether anyone listens, in seconds."""


class FileBroadcast:
    """See `reverie.backends.interface.Broadcast`."""

    def __init__(self, path: str) -> None:
        """Set the path of the database; no socket is opened until there is something to send or to hear."""
        self._folder = peers_folder(path)
        self._mine: set[str] = set()
        self._mouth = Mouth()
        self._heard = False
        self._looked_at = float("-inf")

    @property
    def is_heard(self) -> bool:
        """See `Broadcast.is_heard`."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._heard = bool(self._listeners())
        return self._heard

    def say(self, news: bytes) -> None:
        """See `Broadcast.say`."""
        listeners = self._listeners()
        if not listeners or len(news) > LARGEST_NEWS:
            return
        self._mouth.say(listeners, news)

    async def listen(self) -> AsyncGenerator[bytes]:
        """See `Broadcast.listen`."""
        with self._ear() as ear:
            if ear is None:
                await asyncio.Event().wait()  # without a socket nothing can be heard
            else:
                while True:
                    yield await asyncio.get_running_loop().sock_recv(ear, LARGEST_NEWS)
                    for news in _what_waits(ear):
                        yield news

    def close(self) -> None:
        """Close the socket that sends. Idempotent; a later `say` opens it again."""
        self._mouth.close()

    def _listeners(self) -> list[Path]:
        sockets = [] if self._folder is None else sockets_in(self._folder)
        return [s for s in sockets if s.name.startswith(LISTENER) and s.name not in self._mine]

    @contextlib.contextmanager
    def _ear(self) -> Iterator[socket.socket | None]:
        """Open a socket that hears other processes until the context is left; None if that is impossible."""
        if self._folder is None:
            yield None
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.settimeout(0)
            try:
                path = bind_in(self._folder, ear, LISTENER)
            except OSError as error:
                log.info("broadcast.no_socket", folder=str(self._folder), error=str(error))
                yield None
                return
            self._mine.add(path.name)
            try:
                yield ear
            finally:
                self._mine.discard(path.name)
                leave(path)


def _what_waits(ear: socket.socket) -> list[bytes]:
    """Read everything that has arrived by now, because a socket buffers little."""
    news = []
    with contextlib.suppress(BlockingIOError):
        while True:
            news.append(ear.recv(LARGEST_NEWS))
    return news
