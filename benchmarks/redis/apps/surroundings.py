"""What the program of a neighbour knows: where its server is, and where its task says that it ran."""

from __future__ import annotations

import functools
import os
import struct
import time

__all__ = ["ENTRY", "RECORD", "SOCKET", "ran"]

SOCKET = "BENCHMARKS_SOCKET"
"""Names the variable with the path of the server's socket."""
RECORD = "BENCHMARKS_RECORD"
"""Names the variable with the path of a file: one entry for each task that ran."""
ENTRY = struct.Struct("d")
"""An entry is the moment at which the task began, by the clock that all processes share."""


@functools.cache
def _record() -> int:
    """The record, open."""
    return os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def ran() -> None:
    """Note that a task began now, by one short write at the file's end, which no other can tear."""
    os.write(_record(), ENTRY.pack(time.monotonic()))
