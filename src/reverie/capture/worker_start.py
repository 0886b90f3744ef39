"""Start the worker in the background from a hook, if none runs; only the standard library.

Of many hooks at once, one starts it: a lock is handed to the process that starts the worker, and is held
until that process has ended. Nothing is taken from the agent's folder: the working folder is the data folder,
Python does not import from there (`-P`), and no variable of the environment can name code.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["start_if_needed", "start_problem"]

LOCK = "worker.starting"
ERRORS = "worker-start.log"
"""What the last start has complained of: nobody sees what a process in the background prints."""
RECENT_S = 24 * 3600
LARGEST_LOG = 4096
AGAIN_S = 10.0
"""Seconds between two starts of a worker that does not come up, and between two restarts."""
LARGEST_FILE = 1024 * 1024


def start_if_needed(data_dir: str, python: str) -> None:
    """Start the worker, or restart one of another version; returns at once. Raises `OSError`."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    from reverie.version import __version__

    state = _state(data_dir)
    if _is_held(os.path.join(data_dir, "worker.lock")):
        if not state.get("ready_at") or state.get("version") == __version__:
            return
        command, died = "restart", False
    else:
        command, died = "start", bool(state.get("ready_at"))
    lock = os.open(os.path.join(data_dir, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return  # another hook is starting it
        if not died and os.fstat(lock).st_size and time.time() - os.fstat(lock).st_mtime < AGAIN_S:
            return  # the last start was just now, and has failed or was stopped
        os.pwrite(lock, b"x", 0)
        _spawn(data_dir, python, command, lock)
    finally:
        os.close(lock)


def start_problem(data_dir: str) -> list[str]:
    """Why the worker could not be started lately, in one line; empty if it could."""
    try:
        file = os.open(os.path.join(data_dir, ERRORS), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        if time.time() - os.fstat(file).st_mtime > RECENT_S:
            return []
        text = os.read(file, LARGEST_LOG).decode(errors="replace")
    except OSError:
        return []
    finally:
        os.close(file)
    _, found, reason = text.partition("error: ")
    return [f"the worker does not start: {' '.join(reason.split())[:1000]}"] if found else []


def _is_held(path: str) -> bool:
    """Whether a process holds this lock."""
    from fcntl import LOCK_NB, LOCK_SH, flock

    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        flock(lock, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _state(data_dir: str) -> dict[str, Any]:
    """What the worker has written about itself; it may be gone. Empty if it has stopped cleanly."""
    from reverie.capture.plain_json import decode

    try:
        file = os.open(os.path.join(data_dir, "worker.json"), os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    try:
        state = decode(os.read(file, LARGEST_FILE).decode())
    except ValueError:
        return {}
    finally:
        os.close(file)
    return state if isinstance(state, dict) else {}


def _spawn(data_dir: str, python: str, command: str, lock: int) -> None:
    """Start a process that starts the worker; it has only the lock of all that is open here."""
    environment = {name: value for name, value in os.environ.items() if not _names_code(name, value)}
    environment["REVERIE_DATA_DIR"] = data_dir
    os.chdir(data_dir)
    for name in os.listdir("/dev/fd"):
        try:
            os.set_inheritable(int(name), False)  # noqa: FBT003
        except OSError:
            pass  # the descriptor of this listing
    os.set_inheritable(lock, True)  # noqa: FBT003
    errors = os.path.join(data_dir, ERRORS)
    streams: list[Any] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600),
    ]
    words = [python, "-P", "-m", "reverie", "worker", command]
    try:
        os.posix_spawn(python, words, environment, file_actions=streams, setsid=True)
    except NotImplementedError:  # an old system: the process is in a group of its own at least
        os.posix_spawn(python, words, environment, file_actions=streams, setpgroup=0)


def _names_code(name: str, value: str) -> bool:
    """Whether a variable can name code to import; the project of the agent may have set it."""
    name = name.upper()
    if name.startswith("PYTHON") or name in {"REVERIE_APP", "REVERIE_SERVICES", "REVERIE_GOVERNANCE"}:
        return True
    has_factory = value.lstrip().startswith("{") or (":" in value and "://" not in value)
    return name.startswith(("REVERIE_MEMORY", "REVERIE_LABELS")) and has_factory
