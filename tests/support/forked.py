"""Commands of the shell, each in a process of its own that is forked from an interpreter which has started.

To start one and to import everything takes most of a second of computing, and the tests type hundreds of
commands. Everything else is as if it were typed: arguments, environment, folder, output, how it ends. The
tests of the documentation type commands that start from nothing.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

PATIENCE_S = 60
REVERIE = str(Path(sys.executable).with_name("reverie"))
OURS = "REVERIE_"
"""So begin the variables that only a command reads; others may matter when an interpreter starts."""
REPORT = struct.Struct("i")
"""First the id of the process that runs the command, then how it ended."""


class Origin:
    """The interpreter that is forked; it ends with this process."""

    def __init__(self) -> None:
        self._others = others(os.environ)
        self._channel, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with side:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(side.fileno())],
                pass_fds=[side.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Let it end."""
        self._channel.close()
        self._process.communicate(timeout=PATIENCE_S)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter that started in this environment would have started in the same way."""
        return others(environment) == self._others

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        pipes = [os.pipe() for _ in range(3)]
        request = json.dumps([arguments, dict(environment), str(folder)]).encode()
        socket.send_fds(self._channel, [request], [given for _, given in pipes])
        for _, given in pipes:
            os.close(given)
        readers = [taken for taken, _ in pipes]
        try:
            shown, errors, report = read_all(readers)
        finally:
            for taken in readers:
                os.close(taken)
        assert report, self._process.communicate(timeout=PATIENCE_S)
        _, (code,) = REPORT.iter_unpack(report)
        return subprocess.CompletedProcess([REVERIE, *arguments], code, shown.decode(), errors.decode())


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run one command of the shell to its end."""
    if origin().fits(environment):
        return origin().run(arguments, environment, folder)
    return subprocess.run(
        [REVERIE, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@cache
def origin() -> Origin:
    """The one of this process."""
    return Origin()


def others(environment: Mapping[str, str]) -> dict[str, str]:
    """All variables that are not ours; but for the one in which pytest notes which test runs."""
    mine = (OURS, "PYTEST_CURRENT_TEST")
    return {name: value for name, value in environment.items() if not name.startswith(mine)}


def read_all(readers: list[int]) -> list[bytes]:
    """What comes until nobody can write any more. A command that takes too long is killed."""
    found = dict.fromkeys(readers, b"")
    deadline = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as waiting:
        for reader in readers:
            waiting.register(reader, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                for (pid,) in REPORT.iter_unpack(found[readers[-1]][: REPORT.size]):
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(REVERIE, PATIENCE_S, *list(found.values())[:2])
            for key, _ in ready:
                piece = os.read(key.fd, 65_536)
                found[key.fd] += piece
                if not piece:
                    waiting.unregister(key.fd)
    return list(found.values())


def serve(channel: socket.socket) -> None:
    """Fork for each request; returns in each of the forked processes, ready to run its command."""
    while True:
        try:
            request, given, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        except KeyboardInterrupt:
            request = b""
        if not request:  # those who asked have gone, or are told to go
            os._exit(0)
        if os.fork() == 0:
            channel.close()
            become(request, *given)
            return
        for descriptor in given:
            os.close(descriptor)
        reap()


def reap() -> None:
    """Let go of processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        return


def become(request: bytes, shown: int, errors: int, report: int) -> None:
    """Fork once more: one waits and reports, the other returns as if it had been started for the command."""
    pid = os.fork()
    if pid:
        os.close(shown)
        os.close(errors)
        os.write(report, REPORT.pack(pid))
        os.write(report, REPORT.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    os.dup2(shown, 1)
    os.dup2(errors, 2)
    for descriptor in (shown, errors, report):
        os.close(descriptor)
    arguments, environment, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [REVERIE, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[0] = str(Path(REVERIE).parent)


def import_everything() -> None:
    """What commands import when they run."""
    import reverie  # noqa: PLC0415  only here

    for module in pkgutil.walk_packages(reverie.__path__, "reverie."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    CliRunner().invoke(importlib.import_module("reverie.cli.main").cli, ["--help"])
    gc.freeze()  # whoever is forked leaves this alone


if __name__ == "__main__":
    import_everything()
    from reverie.cli.main import main

    serve(socket.socket(fileno=int(sys.argv[1])))
    main()
