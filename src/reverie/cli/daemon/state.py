"""The worker in the background, one for each data folder: a lock shows that it lives, a file which one it is.

The lock belongs to an open file that `worker start` locks and hands to the worker: it is free again when the
worker is gone, for whatever reason. The state file may be left over from an earlier worker; it counts only
while the lock is held and the process that it names runs. Another file says how the worker was started last;
that file stays.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from reverie.cli.daemon.launch import Launch
from reverie.cli.daemon.processes import start_of
from reverie.cli.reload import Reloaded
from reverie.errors import redacted
from reverie.observe.rules import Alert

__all__ = ["Daemon", "DaemonState", "whole_url"]


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a worker in the background. Times are epoch milliseconds."""

    pid: int
    process_start: str
    """See `reverie.cli.daemon.processes.start_of`."""
    version: str
    started_at: int
    ready_at: int | None = None
    """Since when the worker takes work; None while it starts."""
    folder: str
    """Where the worker was started: its app is looked for there."""
    options: dict[str, str]
    """The options of its command line."""
    environment: dict[str, str] = {}
    """See `reverie.cli.daemon.launch.Launch`."""
    queue: str = ""
    """The URL of the worker's queue, see `whole_url`; empty until it is known."""
    alerts: list[Alert] = []
    """Alerts about the worker's own duties, which no other process can see."""
    reloads: int = 0
    """How often the worker has read its settings anew."""
    reloaded: Reloaded | None = None
    """The result of the last reload."""


class Daemon:
    """The worker in the background of one data folder, whether it runs or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.log = self.folder / "logs" / "worker.log"
        self.lock_file = self.folder / "worker.lock"
        self.state_file = self.folder / "worker.json"
        self.launch_file = self.folder / "worker.options.json"

    def lock(self) -> int | None:
        """Take the lock and return the descriptor that holds it; None if another process holds it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @property
    def is_locked(self) -> bool:
        """Whether a process holds the lock."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def state(self) -> DaemonState | None:
        """The state that was written last; its worker may be gone."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=DaemonState)
        except (OSError, msgspec.MsgspecError):
            return None

    def running(self) -> DaemonState | None:
        """The worker that runs or starts now; None if there is none."""
        if not self.is_locked:
            return None
        state = self.state()
        return state if state is not None and start_of(state.pid) == state.process_start else None

    def write(self, state: DaemonState) -> None:
        """Write the state file, as a whole or not at all."""
        _replace(self.state_file, msgspec.json.encode(state))

    def forget(self) -> None:
        """Remove the state file, because no worker runs any more."""
        self.state_file.unlink(missing_ok=True)

    def last_launch(self) -> Launch | None:
        """How the worker was started last, whether it still runs or not."""
        try:
            return msgspec.json.decode(self.launch_file.read_bytes(), type=Launch)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, launch: Launch) -> None:
        """Write down how the worker was started."""
        _replace(self.launch_file, msgspec.json.encode(launch))


def whole_url(url: str) -> str:
    """The queue's URL without its password, and with an absolute path."""
    path = url.removeprefix("sqlite:///")
    return redacted(url) if path == url else f"sqlite:///{Path(path).expanduser().resolve()}"


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all; no other user may read it."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
