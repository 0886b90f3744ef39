"""`reverie doctor`."""

from __future__ import annotations

__all__ = ["doctor"]


def doctor() -> None:
    """Say what is wrong."""
