"""Child processes that run Python: start them, wait for them, end them, and never leave one behind.

The child is a fresh interpreter with the parent's `sys.path`. It has a session of its own, because a Ctrl-C
in the terminal must reach only the parent. It also has one end of a pipe, its lifeline, which closes when the
parent ends, no matter how.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ChildProcess", "describe_exit", "die_with_parent", "python_command"]

BOOTSTRAP = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {module} import main; main()"
PR_SET_PDEATHSIG = 1


class ChildProcess:
    """One process that runs `main()` of a module; its last argument is the descriptor of its lifeline."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        leaves_nothing: bool = False,
    ) -> None:
        """Start the process, on the running event loop; OSError if it cannot be started.

        `descriptors` stay open in it. With `leaves_nothing`, processes that it started end with it.
        """
        self._leaves_nothing = leaves_nothing
        self._lock = threading.Lock()
        self._reaped = False
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and our own module
                python_command(module, [*arguments, str(lifeline)]),
                pass_fds=[lifeline, *descriptors],
                env=environment,
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        self.pid = self._process.pid
        threading.Thread(target=self._reap, name=f"reverie-reaper-{self.pid}", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the process is known to have ended."""
        return self._ended.done()

    async def wait(self) -> int:
        """Wait until the process ends: its exit code, or the negative number of the signal that killed it."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.send_signal(signal.SIGTERM)  # does nothing after the process was reaped

    def hang_up(self) -> None:
        """Ask the process to read its settings again."""
        self._process.send_signal(signal.SIGHUP)

    def kill_now(self) -> None:
        """Kill the process and everything it started in its session; `wait` returns when it has ended."""
        with self._lock:
            if not self._reaped:
                self._kill_session()

    def _kill_session(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        if hasattr(os, "waitid"):  # does not reap: the pid cannot belong to another process yet
            with suppress(ChildProcessError):  # this program ignores SIGCHLD: the system reaps
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if self._leaves_nothing:
                self._kill_session()
        else:
            self._process.wait()
        with self._lock:
            code, self._reaped = self._process.wait(), True
        os.close(self._lifeline)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


def python_command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs `main()` of a module in a fresh interpreter with the same import path."""
    return [sys.executable, "-c", BOOTSTRAP.format(module=module), json.dumps(sys.path), *arguments]


def describe_exit(code: int) -> str:
    """Describe in words how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def die_with_parent(lifeline: int) -> None:
    """Have this process killed as soon as its parent has ended, whatever it is doing."""
    if sys.platform == "linux":  # works even while a handler holds the interpreter's lock
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(lifeline,), name="reverie-lifeline", daemon=True).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: the read returns when the other end is closed
    os.killpg(0, signal.SIGKILL)
