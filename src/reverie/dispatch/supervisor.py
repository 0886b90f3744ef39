"""The supervisor: keeps worker processes running, and stops them when it stops."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.base.service import restart_pause
from reverie.dispatch.child_process import ChildProcess, describe_exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

__all__ = ["Supervisor"]

log = get_logger(__name__)

RAN_WELL_S = 10.0
"""A process that ran this long has started well: its failures are counted from zero again."""
MARGIN_S = 10.0
"""The time that a worker has to report and disconnect, after the grace time of its handlers."""


class Supervisor:
    """Runs `reverie worker` in several processes, and starts a process that died again. A `Service`."""

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        processes: int,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        ran_well_s: float = RAN_WELL_S,
    ) -> None:
        """`arguments` go to each worker, `environment` replaces this process's, `sleep` is for tests.

        `descriptors` stay open in each worker.
        """
        self._descriptors = descriptors
        self._arguments = ["worker", *arguments, "--lifeline"]
        self._processes = processes
        self._environment = environment
        self._sleep = sleep
        self._ran_well_s = ran_well_s
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._children: set[ChildProcess] = set()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run now."""
        return [child.pid for child in self._children]

    async def start(self) -> None:
        """See `Service.start`."""
        if not self._tasks:
            self._stopping.clear()
            self._tasks = [asyncio.create_task(self._keep()) for _ in range(self._processes)]

    async def stop(self, grace_s: float) -> None:
        """Ask every process to stop; kill those that still run after the grace time and a margin."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        self._stopping.set()
        for child in self._children:
            child.terminate()
        await asyncio.wait(tasks, timeout=grace_s + MARGIN_S)
        for child in self._children:
            log.error("process.killed", pid=child.pid, reason="it did not stop in time")
        self.kill_now()
        await asyncio.wait(tasks)

    def hang_up(self) -> None:
        """Ask every process to read its settings again."""
        for child in self._children:
            child.hang_up()

    def kill_now(self) -> None:
        """Kill all processes without a grace time."""
        for child in self._children:
            child.kill_now()

    async def _keep(self) -> None:
        """Keep one process running."""
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            how = await self._run_one()
            if self._stopping.is_set():
                return
            if time.monotonic() - began >= self._ran_well_s:
                failures = 0
            pause = restart_pause(failures)
            failures += 1
            log.warning("process.ended", **how, failures=failures, again_in_s=pause)
            await self._pause(pause)

    async def _run_one(self) -> dict[str, object]:
        """Run one process until it ends; the answer says how it ended."""
        try:
            child = ChildProcess(
                "reverie.__main__",
                self._arguments,
                descriptors=self._descriptors,
                environment=self._environment,
            )
        except OSError as error:
            return {"pid": None, "how": f"was not started: {error}"}
        log.info("process.started", pid=child.pid)
        self._children.add(child)
        try:
            return {"pid": child.pid, "how": describe_exit(await child.wait())}
        finally:
            self._children.discard(child)

    async def _pause(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._stopping.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
