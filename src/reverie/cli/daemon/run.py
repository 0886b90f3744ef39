"""Run a worker in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Literal

from reverie.base.logs import get_logger
from reverie.base.own_process import freeze_heap
from reverie.cli.signals import on_stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.face.scheduler import AsyncScheduler
    from reverie.runtime import Runtime

__all__ = ["run_until_drained", "run_until_stopped", "start_anew"]

log = get_logger(__name__)

IDLE_LOOK_S = 15.0
"""The longest time between two looks whether the worker is idle."""


async def run_until_stopped(
    scheduler: AsyncScheduler,
    lifeline: int | None = None,
    on_ready: Callable[[], None] | None = None,
    on_start: Callable[[], None] | None = None,
    idle_exit_s: float | None = None,
) -> bool:
    """Run handlers until SIGINT or SIGTERM, or until the parent is gone; then stop cleanly.

    `lifeline` is a pipe that closes with the parent; `on_start` and then `on_ready` are called when the
    worker takes work. `idle_exit_s` are the seconds without work or hooks after which the worker stops, too.
    Returns True if the worker stopped because too many handlers hang, which only a new
    process can cure.
    """
    stopping = asyncio.Event()
    on_stop_signals(stopping.set, _end_at_once)
    if lifeline is not None:
        _follow(lifeline, stopping)
    async with scheduler:
        if on_start is not None:
            on_start()
        freeze_heap()
        if on_ready is not None:
            on_ready()
        exhausted = scheduler.runtime.worker.exhausted
        waits = [asyncio.ensure_future(event.wait()) for event in (stopping, exhausted)]
        if idle_exit_s is not None:
            waits.append(asyncio.ensure_future(_until_idle(scheduler.runtime, idle_exit_s)))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    return exhausted.is_set() and not stopping.is_set()


async def _until_idle(runtime: Runtime, seconds: float) -> Literal[True]:
    """Return once this process has settled nothing and heard no hook for `seconds`."""
    seen: tuple[int, int] | None = None
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        await asyncio.sleep(min(seconds / 4, IDLE_LOOK_S))
        now = (runtime.finishes.total, runtime.context_server.asked)
        if now != seen:
            seen, since = now, time.monotonic()
    log.info("worker.idle", seconds=seconds)
    return True


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
