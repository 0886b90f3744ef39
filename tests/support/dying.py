"""Processes that run all ready messages of a product, and kill themselves at a named step.

They are forked from an interpreter that has imported everything, because a start takes most of a second.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

from support.places import PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["drain_and_die"]


def drain_and_die(point: str, environment: Mapping[str, str], folder: Path) -> int:
    """Run what is ready in a process that dies at a step; the answer is its exit code."""
    return origin(point).run(environment, folder)


class Origin:
    """The interpreter that is forked. It ends with this process."""

    def __init__(self, point: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**kept, **PATHS, "REVERIE_FAILPOINT": point},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)

    def run(self, environment: Mapping[str, str], folder: Path) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([dict(environment), str(folder)]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@cache
def origin(point: str) -> Origin:
    """The interpreter of this process for one step."""
    return Origin(point)


def serve() -> None:
    """Fork for each line of the standard input, and print how the forked process ended."""
    import openai  # noqa: F401, PLC0415  the processes need it

    from reverie import AsyncScheduler  # noqa: PLC0415  only in the interpreter that is forked
    from reverie.cli.daemon.run import run_until_drained  # noqa: PLC0415

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            environment, folder = json.loads(line)
            os.environ.update(environment)
            os.chdir(folder)
            asyncio.run(run_until_drained(AsyncScheduler()))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
