"""The log of the worker in the background: kept small, shown, followed.

Several processes write to it, some of them only because they have inherited it. It is never replaced, but
copied and emptied, because every process goes on writing to the same file.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["keep_small", "rotate", "rotated", "show"]

LOOK_EVERY_S = 1.0
FOLLOW_EVERY_S = 0.2


def rotated(log: Path, number: int) -> Path:
    """The log that was set aside last (1), the one before it (2), and so on."""
    return log.with_name(f"{log.name}.{number}")


def keep_small(log: Path, max_bytes: int, files: int) -> None:
    """Rotate the log whenever it is too large, on a thread, as long as this process lives."""

    def look() -> None:
        while True:
            rotate(log, max_bytes, files)
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=look, name="reverie-log", daemon=True).start()


def rotate(log: Path, max_bytes: int, files: int) -> bool:
    """Set the log aside if it is larger than `max_bytes`; keep `files` old logs. Return whether it was."""
    try:
        if log.stat().st_size <= max_bytes:
            return False
        copy = log.with_name(f"{log.name}.new")
        _copy(log, copy)
        os.truncate(log, 0)
        for number in range(files - 1, 0, -1):
            if rotated(log, number).exists():
                rotated(log, number).replace(rotated(log, number + 1))
        copy.replace(rotated(log, 1)) if files else copy.unlink()
    except OSError:  # a full disk: the next look tries again
        return False
    return True


def show(log: Path, lines: int, *, follow: bool = False) -> Iterator[str]:
    """Yield the last lines, also from older logs if needed; with `follow`, go on with what is written."""
    with log.open(encoding="utf-8", errors="replace") as file:
        newest = file.read().splitlines(keepends=True)
        yield "".join([*_before(log, lines - len(newest)), *newest[max(0, len(newest) - lines) :]])
        while follow:
            if text := file.read():
                yield text
            elif log.stat().st_size < file.tell():
                file.seek(0)  # the log was emptied
            else:
                time.sleep(FOLLOW_EVERY_S)


def _before(log: Path, lines: int) -> list[str]:
    """The last lines of the logs that were set aside."""
    found: list[str] = []
    for path in _aside(log):
        if len(found) >= lines:
            break
        with path.open(encoding="utf-8", errors="replace") as file:
            found = [*deque(file, lines - len(found)), *found]
    return found


def _aside(log: Path) -> Iterator[Path]:
    for number in count(1):
        if not rotated(log, number).exists():
            return
        yield rotated(log, number)


def _copy(log: Path, aside: Path) -> None:
    """Copy until nothing is left to copy, so that almost nothing can be written before the log is emptied."""
    with (
        log.open("rb") as source,
        os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target,
    ):
        while source.tell() < os.fstat(source.fileno()).st_size:
            shutil.copyfileobj(source, target)
            target.flush()
