"""Telling the other processes that use the same file what happens, if one of them listens.

Whoever listens has a socket in the folder that `peers.py` uses, too; its name says that it is for this.
Nobody may rely on it: what a listener cannot take at once is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.storage.peers import LISTENER, LONGEST_PATH, Mouth, peers_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

__all__ = ["FileBroadcast"]

log = get_logger(__name__)

LARGEST_NEWS = 65_536
LOOK_EVERY_S = 1.0
"""How often it is looked at most whether anyone listens."""


class FileBroadcast:
    """See `reverie.backends.interface.Broadcast`."""

    def __init__(self, path: str) -> None:
        """Name the file; nothing is opened until there is something to say or to hear."""
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
                await asyncio.Event().wait()  # nobody can be heard
            else:
                while True:
                    yield await asyncio.get_running_loop().sock_recv(ear, LARGEST_NEWS)
                    for news in _what_waits(ear):
                        yield news

    def close(self) -> None:
        """Let go of what it speaks through. Idempotent; whoever speaks later opens it again."""
        self._mouth.close()

    def _listeners(self) -> list[Path]:
        try:
            sockets = [] if self._folder is None else list(self._folder.iterdir())
        except OSError:
            return []  # nobody has ever listened
        return [s for s in sockets if s.name.startswith(LISTENER) and s.name not in self._mine]

    @contextlib.contextmanager
    def _ear(self) -> Iterator[socket.socket | None]:
        """A socket that hears the others as long as this lasts; None if there can be none."""
        name = f"{LISTENER}{os.getpid()}-{secrets.token_hex(3)}"
        if self._folder is None or len(os.fsencode(self._folder / name)) > LONGEST_PATH:
            yield None
            return
        path = self._folder / name
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.settimeout(0)
            self._mine.add(name)
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                ear.bind(str(path))
            except OSError as error:
                log.info("broadcast.no_socket", path=str(path), error=str(error))
                yield None
                return
            try:
                yield ear
            finally:
                self._mine.discard(name)
                with contextlib.suppress(OSError):
                    path.unlink()


def _what_waits(ear: socket.socket) -> list[bytes]:
    """What has arrived meanwhile: a socket keeps little."""
    news = []
    with contextlib.suppress(BlockingIOError):
        while True:
            news.append(ear.recv(LARGEST_NEWS))
    return news
