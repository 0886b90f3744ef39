"""How memories are shown to the language model: one numbered line for each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.memory.item import MemoryItem

__all__ = ["memory_lines"]


def memory_lines(members: Iterable[MemoryItem]) -> str:
    """Each memory with its number, the day since when it holds, and who said it."""
    return "\n".join(_line(number, item) for number, item in enumerate(members, 1))


def _line(number: int, item: MemoryItem) -> str:
    until = "" if item.valid_to is None else f" until {_day(item.valid_to)}"
    name = next((source.name for source in item.sources if source.name), None)
    speaker = f"{name}: " if name is not None and item.kind == "turn" else ""
    return f"{number}. ({_day(item.held_at)}{until}) {speaker}{' '.join(item.text.split())}"


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%d")
