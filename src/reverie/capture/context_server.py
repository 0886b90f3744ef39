"""The request socket of a worker: hooks ask for context here, and tell that a file waits in the spool.

One process of each data folder serves it: the one that holds the lock beside the socket. The blocks for the
begin of sessions are also written to files, for hooks that find nobody at the socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.capture.hook_record import Project
from reverie.capture.protocol import LARGEST_FRAME, VERSION, socket_path
from reverie.errors import ReverieError
from reverie.principal import Principal, Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reverie.capture.context import ContextComposer
    from reverie.capture.door import HookDoor
    from reverie.memory.sessions import SessionNote

__all__ = ["ContextServer"]

log = get_logger(__name__)

LOCK_EVERY_S = 2.0
"""Seconds between two tries to take the socket over from a process that serves it."""
READ_S = 2.0
"""Seconds in which a request must have arrived."""
ANSWER_S = 5.0
"""Seconds that an answer may take; its hook has given up long before."""
AT_ONCE = 64
"""Connections that are served at once; further ones are closed."""
REST_S = 3.0
"""Seconds between a hook and the new block of its project: what it has told is settled by then."""
MOST_BLOCKS = 2000
"""Files with blocks that are kept; beyond it the oldest are removed."""
SAME_AGAIN = frozenset({"resume", "compact"})
"""Begins of a session that goes on: it is told the same as at first."""


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a hook."""

    v: int
    ask: str
    event: str = ""
    source: str | None = None
    user_id: str = ""
    session_id: str = ""
    agent: str = ""
    project: Project | None = None
    prompt: str = ""


class ContextServer(LoopService):
    """Serves the request socket, and keeps the files with blocks up to date."""

    name = "context"

    def __init__(
        self,
        folder: Path,
        door: HookDoor,
        composer: ContextComposer,
        *,
        look: Callable[[], None],
        notice: Callable[[], Awaitable[str | None]],
    ) -> None:
        """Serve in the data folder. `look` is called when a file waits; `notice` is told beside a context."""
        super().__init__()
        self._folder = folder
        self._door = door
        self._composer = composer
        self._look = look
        self._notice = notice
        self._changed: dict[tuple[str, str], str | None] = {}
        """Projects (user, cube) whose block is to be written anew."""
        self._sessions: dict[str, str] = {}
        """Sessions whose own block is to be written: id → text."""
        self._woken = asyncio.Event()
        self.asked = 0
        """Requests of hooks that were heard."""
        self._connections: set[asyncio.Task[None]] = set()

    def noted(self, note: SessionNote) -> None:
        """Write the block of a project anew soon, because a hook has told something."""
        self._changed[note.user_id, note.mem_cube_id] = None
        if note.context is not None:
            self._sessions[note.session_id] = note.context
        self._woken.set()

    async def start(self) -> None:
        """See `Service.start`."""
        if self._task is None:
            self._woken = asyncio.Event()  # the last start may have been on another event loop
        await super().start()

    async def _turn(self) -> None:
        lock = self._lock()
        if lock is None:
            await self._until_stopped(asyncio.sleep(LOCK_EVERY_S))
            return
        path = Path(socket_path(str(self._folder)))
        try:
            server = await asyncio.start_unix_server(self._serve, sock=_bound(path), limit=LARGEST_FRAME)
            try:
                await self._keep_blocks()
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108  it takes no time
        finally:
            os.close(lock)

    def _lock(self) -> int | None:
        """The descriptor of the lock; None if another process serves this folder."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "worker.sock.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    # -- requests ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.asked += 1
        try:
            if len(self._connections) <= AT_ONCE and _is_own(writer):
                line = await asyncio.wait_for(reader.readline(), READ_S)
                answer = await asyncio.wait_for(self._answer(line), ANSWER_S)
                if answer is not None:
                    writer.write(msgspec.json.encode(answer) + b"\n")
                    await asyncio.wait_for(writer.drain(), READ_S)
        except (TimeoutError, OSError, ValueError, msgspec.MsgspecError, ReverieError) as error:
            log.info("context.not_given", error=f"{type(error).__name__}: {error}")
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any] | None:
        asked = msgspec.json.decode(line, type=_Ask)
        if asked.v != VERSION:
            return None
        if asked.ask == "look":
            self._look()
            return None
        if asked.ask != "context" or asked.project is None:
            return None
        current_principal.set(Principal(key="hook", role=Role.READ_ONLY, users=frozenset({asked.user_id})))
        text = await self._context(asked, asked.project)
        return {"v": VERSION, "context": text, "notice": await self._notice()}

    async def _context(self, asked: _Ask, project: Project) -> str:
        sessions = self._door.sessions
        if asked.event == "SessionStart" and asked.source in SAME_AGAIN:
            known = await sessions.session(asked.user_id, asked.session_id)
            if known is not None and known.context is not None:
                return known.context
        cube = await sessions.known_project(asked.user_id, project.keys)
        if cube is None:  # a new project: only what is known of the person
            cube = asked.user_id
        if asked.event == "UserPromptSubmit":
            return (
                await self._composer.beside_prompt(asked.user_id, cube, asked.session_id, asked.prompt)
                if asked.prompt.strip()
                else ""
            )
        return await self._composer.block(asked.user_id, cube)

    # -- files ------------------------------------------------------------------------------------------

    async def _keep_blocks(self) -> None:
        while not self._stopping.is_set():
            await self._until_stopped(self._woken.wait())
            await self._until_stopped(asyncio.sleep(REST_S))
            self._woken.clear()
            await self.write_blocks()

    async def write_blocks(self) -> None:
        """Write the files of all projects and sessions that have changed."""
        changed, self._changed = self._changed, {}
        sessions, self._sessions = self._sessions, {}
        files = {f"session-{_hash(session_id)}.txt": text for session_id, text in sessions.items()}
        for user_id, cube in changed:
            current_principal.set(Principal(key="hook", role=Role.READ_ONLY, users=frozenset({user_id})))
            block = await self._composer.block(user_id, cube)
            for key in await self._door.sessions.project_keys(user_id, cube):
                files[f"{_hash(key)}.txt"] = block
        if files:
            await asyncio.to_thread(_write, self._folder / "context", files)


def _bound(path: Path) -> socket.socket:
    """A socket at this path that only this user can reach."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a process that died: this one holds the lock
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError:
        bound.close()
        raise
    return bound


def _hash(key: str) -> str:
    return hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write files that only their user can read, each as a whole or not at all; remove the oldest."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        new = folder / f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
            file.write(text.encode())
        new.replace(folder / name)
    kept = sorted(folder.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-MOST_BLOCKS]:
        path.unlink(missing_ok=True)


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is a process of the same user; unknown systems trust the folder's rights."""
    other: socket.socket = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.geteuid())
