"""Searches go first: long reads in the background wait at each step while a search runs.

Threads of one process take turns in running Python code. A user who searches would wait for each turn of a
read that nobody waits for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["RightOfWay"]

MOST_S = 0.03
"""How long a step waits at most, so that the background goes on while somebody searches all the time."""


class RightOfWay:
    """Counts the searches that run. It is held (`with`) as long as one of them runs."""

    def __init__(self) -> None:
        self._searches = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        """A search begins."""
        with self._changed:
            self._searches += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A search has ended."""
        with self._changed:
            self._searches -= 1
            if not self._searches:
                self._changed.notify_all()

    def give(self) -> None:
        """Wait until no search runs, or the time is over."""
        if self._searches:
            with self._changed:
                self._changed.wait_for(lambda: not self._searches, MOST_S)
