"""Keep several worker processes running, in the foreground."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from reverie.cli.signals import on_stop_signals
from reverie.dispatch.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["supervise"]


async def supervise(
    arguments: Sequence[str],
    *,
    processes: int,
    grace_s: float,
    on_ready: Callable[[], None],
    on_start: Callable[[Supervisor], None],
) -> None:
    """Run until SIGINT or SIGTERM, then stop all processes cleanly; a second Ctrl-C ends them at once.

    `on_start` is called when the processes are started, `on_ready` when all of them take work.
    """
    stopping = asyncio.Event()
    heard, tell = os.pipe()
    supervisor = Supervisor([*arguments, "--ready", str(tell)], processes=processes, descriptors=[tell])
    on_stop_signals(stopping.set, supervisor.kill_now)
    _count(heard, processes, on_ready)
    await supervisor.start()
    on_start(supervisor)
    await stopping.wait()
    await supervisor.stop(grace_s)


def _count(heard: int, processes: int, on_ready: Callable[[], None]) -> None:
    """Call `on_ready` once, when all processes have reported that they are ready."""
    os.set_blocking(heard, False)
    missing = processes

    def hear() -> None:
        nonlocal missing
        before = missing
        with suppress(BlockingIOError):
            missing -= len(os.read(heard, 4096))
        if missing <= 0 < before:
            on_ready()

    asyncio.get_running_loop().add_reader(heard, hear)
