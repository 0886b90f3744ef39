"""The interface of a memory store: apply effects once for each message, and search memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from reverie.effect import Effect
from reverie.errors import InvalidSelectionError
from reverie.memory.item import MemoryItem
from reverie.message import Key, Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.memory.item import LinkedItem, Revision
    from reverie.memory.query import Found, SearchQuery
    from reverie.storage.sqlite import Database

__all__ = [
    "Application",
    "Applied",
    "EffectStore",
    "ForgetTurn",
    "InboxEntry",
    "IndexProgress",
    "KeepsInbox",
    "KeepsIndex",
    "ListsMemories",
    "MemoryPage",
    "MemoryStore",
    "PageQuery",
    "SharesDatabase",
    "Tenant",
]

ForgetTurn = Callable[["apsw.Connection", str, str, int], None]
"""Removes the words of one turn of a message: connection, user_id, item_id, number of the turn."""
LAST = 2**62
"""No time and no number of an item is larger."""
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


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which memories to list."""

    user_id: str
    mem_cube_id: str | None = None
    """None: of all cubes of the user."""
    kinds: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    session_id: str | None = None
    with_superseded: bool = False
    newest_first: bool = False
    after: str | None = None
    """The `next` of the page before."""
    limit: int = 100

    @property
    def place(self) -> tuple[int, int] | None:
        """What `after` stands for: when the last item was learned, and its number."""
        if self.after is None:
            return None
        try:
            created_at, seq = map(int, self.after.rsplit("-", 1))
        except ValueError as error:
            raise InvalidSelectionError(
                f"cursor={self.after[:80]!r}: must be the `next` of the page before"
            ) from error
        return max(-LAST, min(created_at, LAST)), max(-LAST, min(seq, LAST))


class MemoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of memories."""

    items: list[MemoryItem]
    next: str | None
    """What `after` must be for the next page; None on the last one."""


class IndexProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an index is up to date."""

    total: int
    """All items."""
    left: int
    """Items that are yet to be indexed, or at least to be looked at."""


@runtime_checkable
class KeepsIndex(Protocol):
    """A store whose index the indexer brings up to date."""

    on_unindexed: Callable[[], None]
    """Called, on any thread, when an item is left to the indexer."""

    async def index_progress(self) -> IndexProgress:
        """How much is left to index."""
        ...

    async def index_next(self, limit: int) -> int | None:
        """Index the next items, at most `limit`. The answer is how many were done; 0: nothing is left to do.

        None: another process is indexing. Items whose vectors the embedder does not give are put off until
        `try_late_again`.
        """
        ...

    async def index_items(self, tenant: Tenant, memory_ids: Sequence[str]) -> int:
        """Index these items of a tenant now if they are not up to date; the answer is how many were not."""
        ...

    def try_late_again(self) -> None:
        """Ask the embedder again for the vectors that it has not given."""
        ...

    async def rebuild(self) -> None:
        """Make all vectors anew."""
        ...


class ListsMemories(Protocol):
    """Lists tenants, and the memories of each with their links."""

    async def tenants(self, after: Tenant | None, limit: int) -> list[Tenant]:
        """The first `limit` tenants with memories after `after`, in order."""
        ...

    async def page(self, query: PageQuery) -> MemoryPage:
        """One page of a user's memories, in the order in which they were learned."""
        ...

    async def links(self, user_id: str, memory_id: str) -> list[LinkedItem]:
        """The links of a memory in both directions, and the memories at their other ends."""
        ...


class MemoryStore(EffectStore, ListsMemories, Protocol):
    """An effect store that can be searched."""

    async def open(self) -> None:
        """Connect, and create or upgrade the storage. Idempotent."""
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        ...

    async def search(self, query: SearchQuery) -> Found:
        """The memories that match best, best first. Superseded ones are left out.

        `ReadTimeoutError` if the search takes too long: what it would have found is not known.
        """
        ...

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """One memory of a user, superseded or not; None if there is none with this id."""
        ...

    async def is_deleted(self, user_id: str, memory_id: str) -> bool:
        """Whether a memory with this id was deleted: the id is never used again."""
        ...

    async def items(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[MemoryItem]:
        """The memories with these ids, in the order of the ids. Ids unknown to the tenant are left out."""
        ...

    async def history(self, user_id: str, memory_id: str) -> list[Revision]:
        """A memory as it was before its changes, oldest first."""
        ...

    async def neighbours(self, item: MemoryItem, reach: int) -> list[MemoryItem]:
        """The memories up to `reach` places before and after one in its conversation, in order."""
        ...

    async def change(self, tenant: Tenant, effects: Sequence[Effect]) -> None:
        """Apply effects that come from no message: a person changes memories. They hold when this returns.

        `VersionConflictError` if an item has another version than given; ValueError if an effect cannot be
        applied. Then nothing is changed.
        """
        ...


@runtime_checkable
class SharesDatabase(Protocol):
    """A store that can write effects in the transaction of a queue in the same database."""

    forget_turn: ForgetTurn | None
    """Removes the words of a turn from the queue's own copy, in the transaction that deletes its memory."""

    def effects_within(self, database: Database) -> ApplyEffects | None:
        """The function that writes effects in a transaction of `database`; None if the store is elsewhere."""
        ...
