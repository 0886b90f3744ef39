"""The work behind each label. A handler reads, thinks, and answers with an outcome; it does not write."""

from __future__ import annotations

from reverie.handlers.add import add

__all__ = ["BUILTIN"]

BUILTIN = {"add": add}
"""The handlers that every installation has, by label."""
