"""Keeping several worker processes running, in the foreground."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reverie.cli.signals import on_stop_signals

if TYPE_CHECKING:
    from reverie.dispatch.supervisor import Supervisor

__all__ = ["supervise"]


async def supervise(supervisor: Supervisor, grace_s: float) -> None:
    """Run until SIGINT or SIGTERM, then stop all processes cleanly; a second Ctrl-C ends them at once."""
    stopping = asyncio.Event()
    on_stop_signals(stopping.set, supervisor.kill_now)
    await supervisor.start()
    await stopping.wait()
    await supervisor.stop(grace_s)
