"""Searches that were enhanced in the background: the next search with the same query uses their result.

`api_mix_search` asks the language model for further queries and for the best order, and follows links. Its
result is kept with the number of changes of the tenant, and is valid until a memory of the tenant changes.
"""

from __future__ import annotations

import hashlib
from heapq import merge
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from reverie.memory.finding import fitted
from reverie.memory.query import Filters, Hit
from reverie.message import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.memory.interface import MemoryStore, Tenant
    from reverie.memory.query import Found, SearchQuery

    KeptHits = tuple[tuple[str, float], ...]
    """The ids and scores of memories, best first."""

__all__ = [
    "LABEL",
    "LONGEST_QUERY",
    "MOST_KEPT",
    "KeepsSearches",
    "MixInput",
    "mix_message",
    "query_key",
    "search",
]

LABEL = "api_mix_search"
LONGEST_QUERY = 2000
"""How many characters of a query are enhanced."""

MOST_KEPT = 50
"""How many searches of a tenant are kept; older ones are forgotten."""


class MixInput(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an `api_mix_search` message; any other text is the query itself."""

    query: str


def mix_message(query: str, *, user_id: str, mem_cube_id: str = "") -> Message:
    """The message that enhances a search; while one of the same query waits, a second is not accepted."""
    return Message(
        user_id=user_id,
        mem_cube_id=mem_cube_id,
        label=LABEL,
        content=msgspec.json.encode(MixInput(query=query[:LONGEST_QUERY])).decode(),
        unique_key=query_key(query[:LONGEST_QUERY]),
    )


@runtime_checkable
class KeepsSearches(Protocol):
    """A store that keeps enhanced searches. They are written by the effect `KeepSearch`."""

    async def changes(self, tenant: Tenant) -> int:
        """How often the memories of a tenant were changed. Accesses are no changes."""
        ...

    async def kept_searches(
        self, user_id: str, mem_cube_ids: Sequence[str], query: str
    ) -> Mapping[str, KeptHits]:
        """Cube → the kept hits for the key of a query, for cubes whose memories have not changed since.

        Without ids, all cubes of the user are looked at.
        """
        ...


def query_key(text: str) -> str:
    """The key of a query: equal for texts that differ only in case, spaces and punctuation at the end."""
    normalised = " ".join(text.casefold().split()).rstrip(" .!?。！？")  # noqa: RUF001  Chinese punctuation
    return hashlib.sha256(normalised.encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def search(store: MemoryStore, query: SearchQuery) -> Found:
    """Search, and use what is kept for the query if that is still valid."""
    if not isinstance(store, KeepsSearches) or not _may_use_kept(query):
        return await store.search(query)
    kept = await store.kept_searches(query.user_id, query.mem_cube_ids, query_key(query.text[:LONGEST_QUERY]))
    if not kept:
        return await store.search(query)
    found = await store.search(msgspec.structs.replace(query, threshold=None, max_tokens=None))
    if {hit.item.mem_cube_id for hit in found.hits} <= kept.keys():
        hits = await _with_kept(store, query, found, kept)
        found = msgspec.structs.replace(found, hits=hits, enhanced=True)
    return fitted(query, found)


def _may_use_kept(query: SearchQuery) -> bool:
    """Whether a query asks for no more than what is kept: filters and links need a search of their own."""
    return (
        query.filters == Filters()
        and query.rerank
        and query.reference_time is None
        and query.diversity == "mmr"
        and not query.hops
    )


async def _with_kept(
    store: MemoryStore, query: SearchQuery, found: Found, kept: Mapping[str, KeptHits]
) -> list[Hit]:
    """The kept hits in their order, then the others."""
    by_id = {hit.item.id: hit for hit in found.hits}
    lists = []
    for cube, hits in kept.items():
        unknown = [memory_id for memory_id, _ in hits if memory_id not in by_id]
        items = {item.id: item for item in await store.items((query.user_id, cube), unknown)}
        own = []
        for memory_id, score in hits:
            if memory_id in by_id:
                own.append(msgspec.structs.replace(by_id[memory_id], score=score))
            elif memory_id in items and not (query.preferences and items[memory_id].kind == "preference"):
                item = items[memory_id]
                around = tuple(await store.neighbours(item, query.neighbours)) if query.neighbours else ()
                own.append(Hit(score=score, item=item, neighbours=around))
        lists.append(own)
    best = list(merge(*lists, key=lambda hit: -hit.score))
    named = {hit.item.id for hit in best}
    return best + [hit for hit in found.hits if hit.item.id not in named]
