"""Signals that ask a process to stop, or to read its settings anew.

SIGTERM and Ctrl-C stop the process; a second Ctrl-C stops it without waiting. SIGHUP asks it to read the
settings anew. The system also sends SIGHUP when a terminal is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["Hangups", "on_stop_signals", "undisturbed"]

log = get_logger(__name__)


class Hangups:
    """Reads the settings anew at SIGHUP, or stops the process if its terminal was closed.

    A process that was started to ignore SIGHUP, as by nohup, is not stopped.
    """

    def __init__(self) -> None:
        """Listen from now on; a signal that comes before `follow` is handled after it."""
        self._stops = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        signal.signal(signal.SIGHUP, lambda *_: self._heard.set())

    def follow(self, reload: Callable[[], Awaitable[object]]) -> None:
        """Handle signals on this event loop from now on, one after the other."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._heard.set)
        self._task = loop.create_task(self._follow(reload), name="reverie-reload")

    async def _follow(self, reload: Callable[[], Awaitable[object]]) -> None:
        while True:
            await self._heard.wait()
            self._heard.clear()
            if self._stops and not _has_terminal():
                log.warning("terminal.closed")
                signal.raise_signal(signal.SIGTERM)
                return
            try:
                await reload()
            except Exception:
                log.exception("settings.not_reloaded", hint="the old ones stay in force")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C until the block ends: for short steps that must not be left half done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_stop_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, `stop_now` at a SIGINT after that."""
    loop = asyncio.get_running_loop()

    def heard() -> None:
        loop.add_signal_handler(signal.SIGINT, stop_now)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
