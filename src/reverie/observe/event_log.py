"""Events as lines of a log: one JSON object each, through the logger `reverie.events`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from reverie.base.escapes import escape_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.observe.events import Event

__all__ = ["log_events"]

_log = logging.getLogger("reverie.events")
_encode = msgspec.json.Encoder().encode


def log_events(events: Sequence[Event]) -> None:
    """Write one line for each event."""
    if _log.isEnabledFor(logging.INFO):
        for event in events:  # built by hand: `_log.info` would spend most of its time on finding the caller
            line = escape_json(_encode(event)).decode()
            _log.handle(logging.LogRecord(_log.name, logging.INFO, __file__, 0, line, None, None))
