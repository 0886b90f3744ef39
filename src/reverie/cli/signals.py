"""Being asked to stop: SIGTERM, Ctrl-C, and Ctrl-C again by someone who does not want to wait."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["on_stop_signals", "undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a Ctrl-C wait until this is over: for short steps that must not be left half done."""
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
