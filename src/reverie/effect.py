"""Effects: changes to memory as plain values.

A handler does not write. It returns effects, and the memory store applies them in the step that settles the
message, so that a message which runs twice changes memory once. The tenant is never part of an effect: it
is the message's own, so no handler can write into another user's memory.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Effect", "Remember", "Source"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a memory comes from: one turn of one captured message."""

    item_id: str
    index: int = 0
    role: str | None = None
    chat_time: str | None = None
    info: dict[str, Any] | None = None


class Remember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="remember"):
    """Keep one new memory item. Applying it again with the same id changes nothing."""

    memory_id: str
    """Derive it from the message (`derived_id`), so that a repeated run names the same memory."""
    text: str
    kind: str = "fact"
    tier: str = "long_term"
    session_id: str | None = None
    tags: tuple[str, ...] = ()
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] = ()


Effect = Remember
"""Every kind of effect; a tagged union once there is more than one."""
