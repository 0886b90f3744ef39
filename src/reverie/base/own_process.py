"""What a process with many threads is set to if it is Reverie's own: the worker and the server."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["freeze_heap", "run_process", "set_up_process"]

T = TypeVar("T")

M_ARENA_MAX = -8
HEAPS = 2
SWITCH_S = 0.002
"""How long a thread may keep others from running Python code; by default 5 ms. Much less slows searches."""


def set_up_process() -> None:
    """Let threads share a few heaps, and take turns often. Call this before any thread is started.

    By default the C library of Linux gives each thread a heap, and each keeps what the largest search or
    write of that thread once needed. The thread that writes to SQLite gives way at each statement: while
    others compute, it would wait each time for as long as they may run, and keep the write lock meanwhile.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library has no such option
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)
    sys.setswitchinterval(SWITCH_S)


def freeze_heap() -> None:
    """Exempt all present objects from garbage collection. Call this once the process has started.

    Modules, routes and models stay until the end. A full collection that looks at them all would stop every
    thread for about 50 ms, twice a second under load.
    """
    gc.collect()
    gc.freeze()


def run_process(work: Coroutine[Any, Any, T]) -> T:
    """Run the work of the whole process on an event loop, the fastest there is on this system."""
    if sys.platform == "win32":
        return asyncio.run(work)
    answer: T = import_module("uvloop").run(work)
    return answer
