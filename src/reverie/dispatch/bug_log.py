"""Alerts about bugs in handlers, logged no more often than someone can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.logs import get_logger

if TYPE_CHECKING:
    from reverie.base.clock import Clock

__all__ = ["BugAlerts"]

log = get_logger(__name__)

MOST_KINDS = 1000
"""The most kinds of bugs (label and cause) that are remembered at a time."""


class BugAlerts:
    """Logs `handler.bug` at most every `every_s` seconds for each label and cause, and counts the rest."""

    def __init__(self, clock: Clock, every_s: float = 60.0) -> None:
        self._clock = clock
        self._every_ms = round(every_s * 1000)
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        """(label, cause) → (when it was last logged, how often it has occurred since)."""

    def __call__(self, label: str, cause: str, reason: str) -> None:
        """Log or count a failure of a handler of `label`, because of `cause`."""
        now = self._clock.now()
        at, since = self._last.get((label, cause), (None, 0))
        if at is not None and now - at < self._every_ms:
            self._last[label, cause] = (at, since + 1)
            return
        if len(self._last) >= MOST_KINDS:
            self._last.clear()
        self._last[label, cause] = (now, 0)
        log.error("handler.bug", label=label, cause=cause, unlogged=since, error=reason)
