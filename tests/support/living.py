"""Which processes live, and waiting for what happens in them or on this event loop."""

from __future__ import annotations

import asyncio
import os
import select
import time
import types
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

T = TypeVar("T")


def children(of: int | None = None) -> set[int]:
    """The processes started by one (default: this) that live, or have died and wait to be heard of."""
    found: set[int] = set()
    for thread in Path(f"/proc/{of or os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended: not there, or a zombie that its parent has not fetched yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Look again until it is so, as for a process that cannot tell us."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """The same while this event loop goes on."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  there is nobody who could tell us
            await asyncio.sleep(0.001)


async def started(work: Awaitable[T]) -> asyncio.Task[T]:
    """A task that has done its work up to where it first waits."""
    begun = asyncio.Event()

    async def run() -> T:
        begun.set()
        return await work

    task = asyncio.create_task(run())
    await begun.wait()
    return task


@types.coroutine
def passes(number: int = 1) -> Generator[None]:
    """Let the event loop go round so many times: all that is ready goes first."""
    for _ in range(number):
        yield


def wait_until_gone(pids: Iterable[int], seconds: float = 30) -> None:
    """Wait until processes have ended, also those of others."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([ended], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"process {pid} is still there"
        finally:
            os.close(ended)
