"""Running a worker in the foreground."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reverie.scheduler import AsyncScheduler

__all__ = ["run_until_drained", "run_until_stopped"]


async def run_until_stopped(scheduler: AsyncScheduler) -> None:
    """Run handlers until SIGINT or SIGTERM, then stop cleanly."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with scheduler:
        await stopping.wait()


async def run_until_drained(scheduler: AsyncScheduler) -> None:
    """Run all that is ready now and what follows from it, then end."""
    await scheduler.open()
    try:
        await scheduler.runtime.worker.drain()
    finally:
        await scheduler.stop()
