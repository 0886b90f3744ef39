"""Wakes the other processes that use the same file.

Each process that waits for work has a socket in a folder beside the file. A process that has written work
for others sends a few bytes to all of these sockets. News that gets lost costs only time, because each
process also looks for work regularly by itself.

A system allows only short paths for sockets. If the file lies too deep, the folder is in the folder for
temporary files, under a name that every process derives from the path of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reverie.base.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["LISTENER", "Mouth", "News", "Peers", "bind_in", "leave", "peers_folder", "sockets_in"]

log = get_logger(__name__)

LONGEST_PATH = 100
"""The longest path of a socket that all systems we run on allow."""
LONGEST_NAME = 22
"""The most bytes of the name of a socket: `LISTENER`, a process id, and six random digits."""
LARGEST_NEWS = 32_768
LISTENER = "events-"
"""The prefix of the names of sockets that belong to `broadcast.py`."""


class News(msgspec.Struct, frozen=True, array_like=True):
    """News for other processes: the labels that have new work, and when the next thing is due."""

    labels: tuple[str, ...] = ()
    due: int | None = None


def peers_folder(path: str) -> Path | None:
    """The folder for the sockets of processes that use a file; None if only this process can use it."""
    if path == ":memory:":
        return None
    beside = Path(f"{path}-peers")
    if len(os.fsencode(beside)) + LONGEST_NAME < LONGEST_PATH:
        return beside
    name = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return _temporary() / f"reverie-{name}"


def bind_in(folder: Path, ear: socket.socket, prefix: str = "") -> Path:
    """Give a socket of this process a path in a folder, which is made if it is missing; return the path.

    OSError if the folder is impossible, or belongs to a user who must not hear the news.
    """
    path = folder / f"{prefix}{os.getpid()}-{secrets.token_hex(3)}"
    for is_last in (False, True):
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(folder):
            raise PermissionError(f"{folder} can be used by other users")
        try:
            ear.bind(str(path))
            break
        except FileNotFoundError:  # another process has just left the folder, as the last one
            if is_last:
                raise
    return path


def leave(path: Path) -> None:
    """Remove a socket, and its folder if that is temporary and nobody else uses it."""
    with contextlib.suppress(OSError):
        path.unlink()
    if path.parent.parent == _temporary():
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def sockets_in(folder: Path) -> list[Path]:
    """The sockets of all processes that use the file of this folder."""
    try:
        return list(folder.iterdir()) if _is_private(folder) else []
    except OSError:
        return []  # nobody has ever listened


def _temporary() -> Path:
    """The system's folder for temporary files: the same for all processes, whatever their TMPDIR is."""
    return Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())  # noqa: S108


def _is_private(folder: Path) -> bool:
    """Whether no other user can have made the folder, in a place where anyone can make one."""
    if folder.parent != _temporary():
        return True
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


class Mouth:
    """Sends to sockets of other processes. Never blocks, never fails; what a socket cannot take is lost."""

    def __init__(self) -> None:
        """Open no socket until there is something to send."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def say(self, addresses: Iterable[Path], news: bytes) -> None:
        """Send the same news to all addresses."""
        with self._lock:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(0)
            for address in addresses:
                try:
                    self._socket.sendto(news, str(address))
                except ConnectionRefusedError:  # its process died without removing the socket
                    with contextlib.suppress(OSError):
                        address.unlink()
                except OSError:
                    continue  # the socket is gone, or its buffer is full

    def close(self) -> None:
        """Close the socket. Idempotent; a later `say` opens another."""
        with self._lock:
            mouth, self._socket = self._socket, None
        if mouth is not None:
            mouth.close()


class Peers:
    """The processes that share one file."""

    def __init__(self, path: str) -> None:
        """Set the path of the database; no socket is opened until there is something to send or to hear."""
        self._folder = peers_folder(path)
        self._lock = threading.Lock()
        self._mine: Path | None = None
        self._ear: socket.socket | None = None
        self._mouth = Mouth()

    @property
    def listens(self) -> bool:
        """Whether it hears the others."""
        return self._ear is not None

    def listen(self, hear: Callable[[News], None]) -> None:
        """Call `hear`, on a thread of its own, with the news of other processes. Idempotent."""
        with self._lock:
            if self._ear is not None or self._folder is None:
                return
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                mine = bind_in(self._folder, ear)
            except OSError as error:
                ear.close()
                log.info("peers.no_socket", folder=str(self._folder), error=str(error))
                self._folder = None
                return
            self._ear, self._mine = ear, mine
        threading.Thread(target=_listen, args=(ear, hear), name="reverie-peers", daemon=True).start()

    def tell(self, labels: Collection[str], due: int | None) -> None:
        """Send news to all other processes. Never blocks, never fails."""
        if self._folder is None or not (labels or due is not None):
            return
        others = [
            address
            for address in sockets_in(self._folder)
            if address != self._mine and not address.name.startswith(LISTENER)
        ]
        if not others:
            return
        news = msgspec.json.encode(News(tuple(labels), due))
        if len(news) > LARGEST_NEWS:
            return
        self._mouth.say(others, news)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        with self._lock:
            ear, mine = self._ear, self._mine
            self._ear = self._mine = None
        if ear is not None and mine is not None:
            leave(mine)
            with contextlib.suppress(OSError):
                ear.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
            ear.close()
        self._mouth.close()


def _listen(ear: socket.socket, hear: Callable[[News], None]) -> None:
    decode = msgspec.json.Decoder(News).decode
    while True:
        try:
            data = ear.recv(2 * LARGEST_NEWS)
        except OSError:
            return
        if not data:
            return
        with contextlib.suppress(msgspec.DecodeError):
            hear(decode(data))
