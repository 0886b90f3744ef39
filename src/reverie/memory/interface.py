"""The interface of a memory store: apply effects once for each message, and search memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from reverie.effect import Effect, Source
from reverie.message import Key, Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.storage.sqlite import Database

__all__ = [
    "Application",
    "Applied",
    "EffectStore",
    "Hit",
    "Hits",
    "InboxEntry",
    "KeepsInbox",
    "MemoryItem",
    "MemoryStore",
    "SearchQuery",
    "SharesDatabase",
    "Tenant",
]

Tenant = tuple[str, str]
"""user_id and mem_cube_id."""


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of one message, to be applied once."""

    message: Message
    effects: tuple[Effect, ...] = ()
    prepared: Any = None
    """The answer of `prepare` for these effects; None if nothing was prepared."""
    follow_ups: tuple[Message, ...] = ()
    """Stored with the inbox row, so that a repeated run submits the follow-ups of the first run."""
    close: bool = False
    """Whether the message ends without effects, and effects that another run brings later are refused."""
    submitted_at: int | None = None
    """When the queue accepted the message, in epoch milliseconds by the queue's clock.

    It tells one acceptance of an id from the next: the queue forgets an id some time after its end, and
    accepts it again then. None: unknown, and taken for the acceptance whose row is found.
    """
    lease_until: int | None = None
    """The end of the lease under which the message ran, by the queue's clock. None: without a lease."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one application."""

    key: Key
    state: Literal["applied", "already", "closed", "stale", "conflict", "rejected"]
    """already: an earlier run was applied, and its follow-ups are the valid ones. closed: the message has
    ended without effects, or its id was accepted anew since; nothing was applied. stale: the lease ended
    longer ago than the store remembers messages; nothing was applied. conflict: an item has another version
    than the handler has read, or an earlier message of the same lane met a conflict in this batch; nothing
    was applied. rejected: the effects could not be applied, and nothing was."""
    follow_ups: tuple[Message, ...] = ()
    error: str | None = None


class InboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the inbox that nobody has used for long."""

    key: Key
    accepted_by: int
    """A message under this id that was accepted later is another acceptance. By the queue's clock."""
    used_at: int
    """When the row was written, or last found by a run."""


class EffectStore(Protocol):
    """Applies effects exactly once per message, however often the handler ran."""

    async def prepare(self, effects: Sequence[Effect]) -> Any:
        """Compute index words, vectors and the like before the transaction, off the thread that writes.

        The answer is passed to `apply` with the effects. The caller may cancel this at any moment, and then
        passes None.
        """
        ...

    async def apply(self, batch: Sequence[Application]) -> list[Applied]:
        """Apply each message's effects together with its row in the inbox, in one transaction.

        An inbox row of the same acceptance that is already there wins: its effects were applied before, or it
        was closed. The row of an earlier acceptance is replaced, that of a later one wins. Answers come in
        the order of the batch. A rejected message does not affect the others. After a conflict, the later
        messages of the same lane are not applied either.
        """
        ...


@runtime_checkable
class KeepsInbox(Protocol):
    """A store whose inbox can be pruned."""

    async def old_entries(self, limit: int) -> list[InboxEntry]:
        """At most `limit` rows that need be kept only if their message may still run again, oldest first."""
        ...

    async def prune_inbox(self, gone: Sequence[InboxEntry], needed: Mapping[InboxEntry, int]) -> None:
        """Remove the rows in `gone`, and keep those in `needed` for as long again.

        `needed` maps each row to the time when the queue accepted its message. A row that was used meanwhile
        stays as it is.
        """
        ...


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One memory. Times are epoch milliseconds."""

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
    version: int = 1
    """Grows with every change. An effect that changes the item carries the version that it was based on."""
    superseded_by: str | None = None
    """The id of the item that has replaced this one; a search no longer finds a superseded item."""
    access_count: int = 0
    accessed_at: int | None = None


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The text to search for, and the user whose memories are searched."""

    text: str
    user_id: str
    mem_cube_ids: tuple[str, ...] = ()
    """The cubes to search; empty means all cubes of the user."""
    limit: int = 10


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that matches a query."""

    score: float
    """Above 0; the best hit has 1. Scores are comparable only within one answer."""
    item: MemoryItem

    @property
    def text(self) -> str:
        """The text of the memory."""
        return self.item.text

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the memory."""
        return self.item.sources


class Hits(list[Hit]):
    """The memories that match a query, best first."""

    words_left_out: int = 0
    """How many words of the query were not searched for, because the query has very many.

    Of very long queries this is estimated.
    """


class MemoryStore(EffectStore, Protocol):
    """An effect store that can be searched."""

    async def open(self) -> None:
        """Connect, and create or upgrade the storage. Idempotent."""
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        ...

    async def search(self, query: SearchQuery) -> Hits:
        """The memories that match best, best first. Superseded ones are left out.

        `ReadTimeoutError` if the search takes too long: what it would have found is not known.
        """
        ...

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """One memory of a user, superseded or not; None if there is none with this id."""
        ...

    async def items(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[MemoryItem]:
        """The memories with these ids, in the order of the ids. Ids unknown to the tenant are left out."""
        ...

    async def tenants(self, after: Tenant | None, limit: int) -> list[Tenant]:
        """The first `limit` tenants with memories after `after`, in order."""
        ...


@runtime_checkable
class SharesDatabase(Protocol):
    """A store that can write effects in the transaction of a queue in the same database."""

    def effects_within(self, database: Database) -> ApplyEffects | None:
        """The function that writes effects in a transaction of `database`; None if the store is elsewhere."""
        ...
