"""What a handler is given beside its messages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The second argument of a handler that asks for one."""

    worker: str
    """The name of the worker that runs this."""
    timeout_s: float
    """How many seconds one call may take."""
