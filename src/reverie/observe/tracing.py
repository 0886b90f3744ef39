"""Trace ids: they travel from a request through its message to the handler and to what that submits."""

from __future__ import annotations

import re
from contextvars import ContextVar

from reverie.message import new_item_id

__all__ = ["current_trace_id", "new_trace_id", "trace_id_of"]

current_trace_id: ContextVar[str | None] = ContextVar("reverie_trace_id", default=None)
"""The trace of the code that runs now; messages submitted without a trace id get this one."""

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""The header `traceparent` as W3C defines it."""
NONE = "0" * 32


def new_trace_id() -> str:
    """Make a fresh trace id."""
    return new_item_id().replace("-", "")


def trace_id_of(traceparent: str) -> str | None:
    """The trace id in a `traceparent` header; None if there is none that can be read."""
    found = TRACEPARENT.fullmatch(traceparent.strip().lower())
    return found[1] if found and found[1] != NONE else None
