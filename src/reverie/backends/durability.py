"""What a queue may promise of what it has accepted: the words of `queue.durability`."""

from __future__ import annotations

import re

__all__ = ["WORDS", "is_durability", "replicas_of", "survives_power_cuts"]

WORDS = "full, normal, always, everysec, or replicated(n) with n of 1 to 99"
REPLICATED = re.compile(r"replicated\(([1-9][0-9]?)\)")


def is_durability(text: str) -> bool:
    """Whether this is one of the words."""
    return text in {"full", "normal", "always", "everysec"} or replicas_of(text) > 0


def replicas_of(durability: str | None) -> int:
    """How many replicas must have confirmed what is accepted; 0 if that is not asked for."""
    asked = REPLICATED.fullmatch(durability or "")
    return int(asked[1]) if asked else 0


def survives_power_cuts(durability: str | None) -> bool:
    """Whether nothing that was accepted may be lost with the machine: SQLite and Redis have a word for it."""
    return durability in {"full", "always"}
