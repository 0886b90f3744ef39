"""A memory item, its earlier versions and its links."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from reverie.effect import Relation, Source

__all__ = ["LinkedItem", "MemoryItem", "Revision"]


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One memory. Times are epoch milliseconds."""

    id: str
    user_id: str
    mem_cube_id: str
    text: str
    kind: str
    """fact, event, preference, profile, observation, summary, turn, or a word of the user's own."""
    tier: str
    """working, long_term, archive, activation or parameter."""
    type: str | None = None
    """A finer kind, such as the tool that an observation is about."""
    title: str | None = None
    narrative: str | None = None
    facts: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    session_id: str | None = None
    device_id: str | None = None
    agent_id: str | None = None
    domain: str | None = None
    tags: tuple[str, ...] = ()
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] = ()
    importance: float = 0.5
    created_at: int = 0
    """When it was learned."""
    updated_at: int = 0
    valid_from: int | None = None
    """Since when it holds; None: since it was learned."""
    valid_to: int | None = None
    """Until when it held; None: it still holds."""
    expires_at: int | None = None
    version: int = 1
    """Grows with every change. An effect that changes the item carries the version that it was based on."""
    superseded_by: str | None = None
    """The id of the item that has replaced this one; a search no longer finds a superseded item."""
    access_count: int = 0
    accessed_at: int | None = None
    status: Literal["activated", "resolving", "archived"] = "activated"
    """resolving: the message that brings the item is accepted and has not been settled yet. archived: the
    item is in the archive, or superseded."""

    @property
    def held_at(self) -> int:
        """When it began to hold: `valid_from`, or when it was learned."""
        return self.created_at if self.valid_from is None else self.valid_from


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it was before one of its changes."""

    version: int
    text: str
    kind: str
    tier: str
    changed_at: int
    """When it was replaced by the next version, in epoch milliseconds."""
    change: str
    """The effect that replaced it: revise, move or supersede."""


class LinkedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A link of an item, and the item at its other end."""

    relation: Relation
    outgoing: bool
    """Whether the link leads from the item that was asked about to `item`."""
    item: MemoryItem
