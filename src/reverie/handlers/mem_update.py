"""The handler of the label `mem_update`: working memory is what the last queries were about.

It ranks the memories that were found for the last queries and moves the best of them to the tier `working`;
what is no longer among them goes back to `long_term`. If the message names memories, it indexes them, if the
indexer has not come to them yet. If no search has found some of these, it searches for the queries again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from reverie.effect import Move
from reverie.failures import InvalidWorkError
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.item import MemoryItem
    from reverie.memory.queries import NotedQuery
    from reverie.message import Key, Message

__all__ = ["UpdateInput", "mem_update"]

FADING = 0.85
"""What a query weighs compared with the one after it."""
PER_QUERY = 10
"""How many memories each query may bring."""
RANKED = 8
"""How many of the last queries count."""
TIERS = ("working", "long_term")


class UpdateInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a `mem_update` message."""

    memory_ids: tuple[str, ...] = ()
    """Memories whose index must be up to date."""


async def mem_update(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Index the named memories, and rank working memory anew. A message runs alone."""
    (message,) = messages
    try:
        asked = msgspec.json.decode(message.content or "{}", type=UpdateInput)
    except msgspec.DecodeError as error:
        raise InvalidWorkError(f"the content of a mem_update message is wrong: {error}") from error
    if asked.memory_ids:
        await ctx.memory.index(asked.memory_ids)
    options: HandlerOptions = await ctx.options()
    queries: list[NotedQuery] = await ctx.memory.queries()
    found = {memory_id for noted in queries for memory_id in noted.found}
    anew = not found.issuperset(asked.memory_ids)  # some may be newer than the searches
    wanted = await _ranked(queries[:RANKED], ctx, options.working_limit, anew=anew)
    present: list[MemoryItem] = await ctx.memory.tier("working")
    kept = {item.id for item in wanted}
    moves = [
        Move(memory_id=item.id, version=item.version, tier="long_term")
        for item in present
        if item.id not in kept
    ]
    moves += [
        Move(memory_id=item.id, version=item.version, tier="working")
        for item in wanted
        if item.tier == "long_term"
    ]
    return {message.key: Done(effects=moves if queries else [])}


async def _ranked(queries: list[NotedQuery], ctx: Context, most: int, *, anew: bool) -> list[MemoryItem]:
    """The memories that fit the last queries best; later queries weigh more, and so do better hits.

    What a search has found is kept with its query. A query without that is searched for; `anew`: each one is.
    """
    searched: dict[str, tuple[str, ...]] = {}
    scores: defaultdict[str, float] = defaultdict(float)
    for age, asked in enumerate(queries):
        found = searched.get(asked.query) if anew or not asked.found else asked.found
        if found is None:
            hits = await ctx.memory.search(asked.query, limit=PER_QUERY)
            found = searched[asked.query] = tuple(hit.item.id for hit in hits)
        for place, memory_id in enumerate(found[:PER_QUERY]):
            scores[memory_id] += FADING**age * (1 - place / PER_QUERY)
    items = [item for item in await ctx.memory.items(list(scores)) if item.tier in TIERS]
    present = [item for item in items if item.superseded_by is None]
    return sorted(present, key=lambda item: (-scores[item.id], item.id))[:most]
