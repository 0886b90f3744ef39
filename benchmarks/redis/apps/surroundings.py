"""What a neighbour's program needs to know: where its server is, and where its task records that it ran."""

from __future__ import annotations

import functools
import os
import struct
import time

__all__ = ["ENTRY", "RECORD", "SOCKET", "ran"]

SOCKET = "BENCHMARKS_SOCKET"
"""The variable with the path of the server's socket."""
RECORD = "BENCHMARKS_RECORD"
"""The variable with the path of the record, a file with one entry for each task that ran."""
ENTRY = struct.Struct("d")
"""An entry is the moment at which the task began, by the clock that all processes share."""


@functools.cache
def _record() -> int:
    """Open the record once."""
    return os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def ran() -> None:
    """Record that a task began now, by one short append that no other process can split."""
    os.write(_record(), ENTRY.pack(time.monotonic()))
