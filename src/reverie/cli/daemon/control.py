"""Start and stop the worker in the background, and tell it to read its settings."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from reverie.cli.daemon.processes import send_signal, wait_for_end
from reverie.dispatch.child_process import python_command
from reverie.errors import DaemonError
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.cli.daemon.launch import Launch
    from reverie.cli.daemon.state import Daemon, DaemonState

__all__ = ["Started", "reload", "start", "stop", "try_out"]

START_S = 60.0
"""The longest wait for a new worker to take work."""
RELOAD_S = 60.0
"""The longest wait for a worker to read its settings anew."""
FORGOTTEN_S = 5.0
"""The longest wait for a holder of the lock to write down who it is, and for a free lock after a stop."""
AGAIN_S = 0.5
"""The time between asking a worker to stop and telling it not to wait for its handlers."""
AT_ONCE_S = 5.0
"""A worker that still runs this long after it was told to stop at once is killed."""
PROGRESS_S = 5.0
LOOK_EVERY_S = 0.05


class Started(NamedTuple):
    """A worker that runs, and whether it already ran before."""

    state: DaemonState
    before: bool


def start(daemon: Daemon, launch: Launch, patience_s: float = START_S) -> Started:
    """Start the worker and wait until it takes work; if it cannot, the error quotes the worker."""
    deadline = time.monotonic() + patience_s
    try:
        lock = _take_lock(daemon, deadline)
        if isinstance(lock, Started):
            return lock
        daemon.log.parent.mkdir(mode=0o700, exist_ok=True)
        log = os.open(daemon.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise DaemonError(f"cannot write in the data folder {daemon.folder}: {error}") from error
    written = os.fstat(log).st_size
    process, ready = _spawn(daemon, launch, lock, log)
    with os.fdopen(ready, "rb") as pipe:
        heard, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        state = daemon.running() if heard and pipe.read(1) else None
    if state is not None:
        process.returncode = 0  # the worker goes on without this process
        with suppress(OSError):  # a full disk: the worker runs all the same
            daemon.keep(launch)
        return Started(state, before=False)
    _end(process)
    raise DaemonError(_last_words(daemon, written, patience_s if not heard else None))


def _take_lock(daemon: Daemon, deadline: float) -> int | Started:
    """Take the lock and return its descriptor, or return the running worker that holds it."""
    while (lock := daemon.lock()) is None:
        state = daemon.running()
        if state is not None and state.ready_at is not None:
            return Started(state, before=True)
        if time.monotonic() > deadline:
            raise _held(daemon)
        time.sleep(LOOK_EVERY_S)  # another start holds the lock, or a process that tests it
    return lock


def _spawn(daemon: Daemon, launch: Launch, lock: int, log: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process; return it, and a pipe that reports when it takes work. Closes `lock` and `log`."""
    ready, tell_ready = os.pipe()
    given = f"{lock},{tell_ready},{daemon.folder}"
    try:
        process = subprocess.Popen(  # noqa: S603  our own interpreter and our own module
            python_command("reverie.__main__", ["worker", "run", *launch.arguments, "--daemon", given]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock, tell_ready],
            start_new_session=True,
            cwd=launch.folder,
            env={**os.environ, **launch.environment},
        )
    except OSError as error:
        os.close(ready)
        raise DaemonError(f"the worker could not be started in {launch.folder}: {error}") from error
    finally:
        for descriptor in (lock, tell_ready, log):
            os.close(descriptor)
    return process, ready


def try_out(launch: Launch) -> None:
    """Try all steps of a start except taking work, in another process; the error quotes that process."""
    try:
        tried = subprocess.run(  # noqa: S603  our own interpreter and our own module
            python_command("reverie.__main__", ["worker", "run", *launch.arguments, "--try-out"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=launch.folder,
            env={**os.environ, **launch.environment},
            timeout=START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DaemonError(f"a worker cannot be started in {launch.folder}: {error}") from error
    if tried.returncode:
        raise DaemonError(f"a worker cannot be started like this: {_words(tried.stdout)}")


def stop(daemon: Daemon, *, grace_s: float, now: bool, say: Callable[[str], None]) -> DaemonState | None:
    """Stop the worker, cleanly or `now`, and wait until it is gone; None if there was none."""
    deadline = time.monotonic() + FORGOTTEN_S
    while (state := daemon.running()) is None:
        if not daemon.is_locked:
            daemon.forget()
            return None
        if time.monotonic() > deadline:
            raise _held(daemon)
        time.sleep(LOOK_EVERY_S)
    if now:
        _stop_now(state)
    else:
        _stop_cleanly(state, grace_s, say)
    deadline = time.monotonic() + FORGOTTEN_S
    while daemon.is_locked and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)  # a process that the worker has started may hold the lock a moment longer
    if not daemon.is_locked:
        daemon.forget()
    return state


def reload(daemon: Daemon) -> DaemonState | None:
    """Tell the worker to read its settings anew, and wait until it has; None if no worker runs."""
    state = daemon.running()
    if state is None or state.ready_at is None:
        return None
    if state.version != __version__:
        raise DaemonError(
            f"the worker in the background is Reverie {state.version}, this is {__version__}: let the new "
            "one run, `reverie worker restart`"
        )
    send_signal(state.pid, state.process_start, signal.SIGHUP)
    deadline = time.monotonic() + RELOAD_S
    while (now := daemon.running()) is not None and now.pid == state.pid:
        if now.reloads > state.reloads:
            return now
        if time.monotonic() > deadline:
            raise DaemonError(
                f"the worker (process {state.pid}) has not read its settings after {RELOAD_S:g} s; read why: "
                "`reverie worker logs`"
            )
        time.sleep(LOOK_EVERY_S)
    raise DaemonError(f"the worker (process {state.pid}) has ended meanwhile")


def _stop_cleanly(state: DaemonState, grace_s: float, say: Callable[[str], None]) -> None:
    send_signal(state.pid, state.process_start, signal.SIGTERM)
    waited = 0.0
    while not wait_for_end(state.pid, state.process_start, min(PROGRESS_S, grace_s - waited)):
        waited += PROGRESS_S
        if waited >= grace_s:
            raise DaemonError(
                f"the worker (process {state.pid}) did not stop in {grace_s:g} s; end it with what it runs: "
                "`reverie worker stop --now`"
            )
        say(f"waiting for handlers to finish, {waited:g} of at most {grace_s:g} s")


def _stop_now(state: DaemonState) -> None:
    for number, patience_s in (
        (signal.SIGINT, AGAIN_S),
        (signal.SIGINT, AT_ONCE_S),
        (signal.SIGKILL, AT_ONCE_S),
    ):
        send_signal(state.pid, state.process_start, number)
        if wait_for_end(state.pid, state.process_start, patience_s):
            return
    raise DaemonError(
        f"process {state.pid} cannot be killed: look at what it waits for (`ps -l {state.pid}`)"
    )


def _held(daemon: Daemon) -> DaemonError:
    return DaemonError(
        f"{daemon.lock_file} is held by a process that does not say who it is, perhaps one that a worker has "
        f"left behind: find it (`fuser -v {daemon.lock_file}`) and end it"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a worker that did not start."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(AGAIN_S)
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(daemon: Daemon, written: int, patience_s: float | None) -> str:
    """The error about a worker that did not start, with what it wrote to its log."""
    with daemon.log.open("rb") as file:
        file.seek(written)
        words = _words(file.read())
    if patience_s is not None:
        return f"the worker was not ready after {patience_s:g} s and was ended ({daemon.log}): {words}"
    return f"the worker did not start: {words}"


def _words(written: bytes) -> str:
    """The last error in a worker's output; if there is none, the last lines."""
    lines = written.decode(errors="replace").strip().splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else "\n".join(lines[-20:]) or "it said nothing"
