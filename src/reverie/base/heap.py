"""The memory that a process with many threads keeps."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

__all__ = ["share_heaps"]

M_ARENA_MAX = -8
HEAPS = 2


def share_heaps() -> None:
    """Let all threads of this process share a few heaps. Call this before any thread is started.

    By default the C library of Linux gives each thread a heap, and each keeps what the largest search or
    write of that thread once needed.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library has no such option
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)
