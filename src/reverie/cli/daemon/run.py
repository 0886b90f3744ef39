"""Run a worker in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.cli.signals import on_stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.face.scheduler import AsyncScheduler

__all__ = ["run_until_drained", "run_until_stopped", "start_anew"]

log = get_logger(__name__)


async def run_until_stopped(
    scheduler: AsyncScheduler,
    lifeline: int | None = None,
    on_ready: Callable[[], None] | None = None,
    on_start: Callable[[], None] | None = None,
) -> bool:
    """Run handlers until SIGINT or SIGTERM, or until the parent is gone; then stop cleanly.

    `lifeline` is a pipe that closes with the parent; `on_start` and then `on_ready` are called when the
    worker takes work. Returns True if the worker stopped because too many handlers hang, which only a new
    process can cure.
    """
    stopping = asyncio.Event()
    on_stop_signals(stopping.set, _end_at_once)
    if lifeline is not None:
        _follow(lifeline, stopping)
    async with scheduler:
        if on_start is not None:
            on_start()
        if on_ready is not None:
            on_ready()
        exhausted = scheduler.runtime.worker.exhausted
        waits = [asyncio.ensure_future(event.wait()) for event in (stopping, exhausted)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    return not stopping.is_set()


async def run_until_drained(scheduler: AsyncScheduler) -> None:
    """Run all messages that are ready now and those that follow from them, then stop."""
    await scheduler.open()
    try:
        await scheduler.runtime.drain()
    finally:
        await scheduler.stop()


def start_anew() -> None:
    """Replace this process by a new one with the same command line and the same id."""
    log.warning("worker.restarting", reason="too many handlers hang", pid=os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  our own command line


def _follow(lifeline: int, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def parent_gone() -> None:
        loop.remove_reader(lifeline)
        log.warning("worker.parent_gone")
        stopping.set()

    loop.add_reader(lifeline, parent_gone)


def _end_at_once() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
