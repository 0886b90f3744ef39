"""The words of `queue.durability`: what a queue promises about accepted messages."""

from __future__ import annotations

import re

__all__ = ["WORDS", "is_durability", "replicas_of", "survives_power_cuts"]

WORDS = "full, normal, always, everysec, or replicated(n) with n of 1 to 99"
REPLICATED = re.compile(r"replicated\(([1-9][0-9]?)\)")


def is_durability(text: str) -> bool:
    """Whether a text is one of the words."""
    return text in {"full", "normal", "always", "everysec"} or replicas_of(text) > 0


def replicas_of(durability: str | None) -> int:
    """How many replicas must confirm each submit; 0 if none must."""
    asked = REPLICATED.fullmatch(durability or "")
    return int(asked[1]) if asked else 0


def survives_power_cuts(durability: str | None) -> bool:
    """Whether all accepted messages must survive a power cut: `full` on SQLite, `always` on Redis."""
    return durability in {"full", "always"}
