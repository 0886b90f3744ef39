"""The last queries of a tenant and the answers to them: what the present is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.interface import Tenant

__all__ = ["QUERIES_KEPT", "KeepsQueries", "KeepsUnread", "NotedQuery"]

QUERIES_KEPT = 20
"""How many queries of a tenant are kept; older ones are forgotten."""


class NotedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query, and its answer if one was recorded."""

    id: str
    """The item_id of the message that brought the query."""
    query: str
    session_id: str | None = None
    found: tuple[str, ...] = ()
    """The memories that a search has found for it."""
    asked_at: int = 0
    answer: str | None = None
    used: tuple[str, ...] = ()
    """The memories that the answer has used."""


@runtime_checkable
class KeepsQueries(Protocol):
    """A store that keeps the last queries. They are written by the effects `NoteQuery` and `NoteAnswer`."""

    async def queries(self, tenant: Tenant) -> list[NotedQuery]:
        """The last queries of a tenant, the newest first."""
        ...


@runtime_checkable
class KeepsUnread(Protocol):
    """A store that knows which turns no run has read for facts yet."""

    async def unread_turns(self, tenant: Tenant, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Turns that were not read yet, oldest first, as (number, id, text); those after a number."""
        ...

    async def unread(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[str]:
        """Those of some items that were not read yet, in any order."""
        ...
