"""Start a worker process, and talk to it in lines."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WorkerProcess", "worker_process"]

PATIENCE_S = 600.0
"""The longest wait for an answer; then the measurement is given up."""


class WorkerProcess:
    """A running process that talks in lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def hear(self, word: str, patience_s: float = PATIENCE_S) -> list[str]:
        """Read the next line, which must begin with `word`; return the words after it."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(patience_s):
                    raise SystemExit(f"the worker process did not say {word!r} within {patience_s} s")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise SystemExit(f"the worker process ended instead of saying {word!r}")
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        first, *words = line.decode().split()
        if first != word:
            raise SystemExit(f"the worker process said {first!r} instead of {word!r}")
        return words


@contextmanager
def worker_process(
    *arguments: str, module: str = "benchmarks.worker", environment: dict[str, str] | None = None
) -> Iterator[WorkerProcess]:
    """Start a module in a process of its own and wait until it is ready; it stops when the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | (environment or {}),
    ) as process:
        try:
            worker = WorkerProcess(process)
            worker.hear("ready")
            yield worker
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
        except BaseException:
            process.kill()
            raise
