"""What handlers of upkeep ask their worker, as plain values, and the answers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from reverie.errors import ReverieError
from reverie.memory.interface import Tenant
from reverie.memory.item import MemoryItem
from reverie.memory.upkeep import ChangedItem, KeepsUpkeep, Similar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reverie.memory.interface import MemoryStore

__all__ = [
    "ReadChanged",
    "ReadColdest",
    "ReadJudged",
    "ReadSimilar",
    "ReadTierCounts",
    "ReadUpkeepUntil",
    "UpkeepRequest",
    "answer_upkeep",
    "upkeep_of",
]


class ReadChanged(msgspec.Struct, frozen=True, tag=True):
    """Read living items that were written or changed since a moment, after a number."""

    answer: ClassVar[Any] = list[ChangedItem]
    tenant: Tenant
    since: int
    after: int
    limit: int


class ReadSimilar(msgspec.Struct, frozen=True, tag=True):
    """Find the living items that resemble each of some items."""

    answer: ClassVar[Any] = list[Similar]
    tenant: Tenant
    memory_ids: tuple[str, ...]
    least_cosine: float
    least_overlap: float


class ReadColdest(msgspec.Struct, frozen=True, tag=True):
    """Read the items of a tier that nobody has used since a moment."""

    answer: ClassVar[Any] = list[MemoryItem]
    tenant: Tenant
    tier: str
    before: int
    limit: int


class ReadTierCounts(msgspec.Struct, frozen=True, tag=True):
    """Count the living items in each tier."""

    answer: ClassVar[Any] = dict[str, int]
    tenant: Tenant


class ReadJudged(msgspec.Struct, frozen=True, tag=True):
    """Ask which groups were decided upon."""

    answer: ClassVar[Any] = list[str]
    tenant: Tenant
    keys: tuple[str, ...]


class ReadUpkeepUntil(msgspec.Struct, frozen=True, tag=True):
    """Ask until when upkeep of a label has looked at all changes."""

    answer: ClassVar[Any] = int | None
    tenant: Tenant
    label: str


UpkeepRequest = ReadChanged | ReadSimilar | ReadColdest | ReadTierCounts | ReadJudged | ReadUpkeepUntil


def upkeep_of(store: MemoryStore) -> KeepsUpkeep:
    """The store, if its memories can be kept in order."""
    if not isinstance(store, KeepsUpkeep):
        raise ReverieError(f"the memory store {type(store).__name__} has no upkeep (KeepsUpkeep)")
    return store


async def answer_upkeep(store: MemoryStore, request: UpkeepRequest) -> Any:
    """The answer of a store to a request."""
    return await _ANSWERS[type(request)](upkeep_of(store), request)


_ANSWERS: dict[type, Callable[[KeepsUpkeep, Any], Coroutine[Any, Any, Any]]] = {
    ReadChanged: lambda store, asked: store.changed(asked.tenant, asked.since, asked.after, asked.limit),
    ReadSimilar: lambda store, asked: store.similar(
        asked.tenant,
        asked.memory_ids,
        least_cosine=asked.least_cosine,
        least_overlap=asked.least_overlap,
    ),
    ReadColdest: lambda store, asked: store.coldest(asked.tenant, asked.tier, asked.before, asked.limit),
    ReadTierCounts: lambda store, asked: store.tier_counts(asked.tenant),
    ReadJudged: lambda store, asked: store.judged(asked.tenant, asked.keys),
    ReadUpkeepUntil: lambda store, asked: store.upkeep_until(asked.tenant, asked.label),
}
