"""What a memory store does: apply effects once, and find what was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from reverie.effect import Effect, Source
from reverie.message import Key, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Application", "Applied", "EffectStore", "Hit", "MemoryItem", "MemoryStore", "SearchQuery"]


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of one message, to be applied once."""

    message: Message
    effects: tuple[Effect, ...] = ()
    follow_ups: tuple[Message, ...] = ()
    """Kept beside the effects, so that a repeated run submits what the first one decided."""
    close: bool = False
    """The message ends without effects: a later answer of another run must find it closed."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one application."""

    key: Key
    state: Literal["applied", "already", "closed", "rejected", "conflict"]
    """already: an earlier run was applied, and its follow-ups hold. closed: the message has ended without
    effects, so none were applied. rejected: they could not be applied, and nothing was. conflict: they met
    another version of an item, and nothing was applied."""
    follow_ups: tuple[Message, ...] = ()
    error: str | None = None


class EffectStore(Protocol):
    """Applies effects exactly once per message, however often its handler ran."""

    async def apply(self, batch: Sequence[Application]) -> list[Applied]:
        """Apply each message's effects together with its row in the inbox, in one transaction.

        A row that is already there wins: its effects were applied before, or it was closed. Answers come
        in the order of the batch; one that is rejected does not touch its neighbours.
        """
        ...


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is remembered. Times are epoch milliseconds."""

    id: str
    user_id: str
    mem_cube_id: str
    text: str
    kind: str
    tier: str
    session_id: str | None = None
    tags: tuple[str, ...] = ()
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] = ()
    created_at: int = 0
    updated_at: int = 0


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for, and whose."""

    text: str
    user_id: str
    mem_cube_ids: tuple[str, ...] = ()
    """Only in these cubes; default: all of the user."""
    limit: int = 10


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that fits a query."""

    score: float
    """Above 0, and 1 for the best; comparable only within one answer."""
    item: MemoryItem

    @property
    def text(self) -> str:
        """What is remembered."""
        return self.item.text

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where it comes from."""
        return self.item.sources


class MemoryStore(EffectStore, Protocol):
    """An effect store that can be searched."""

    async def open(self) -> None:
        """Create or upgrade what is missing. Idempotent."""
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...

    async def search(self, query: SearchQuery) -> list[Hit]:
        """The memories that fit best, best first."""
        ...

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """One memory of a user."""
        ...
