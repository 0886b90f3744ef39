"""The two ends of a search that need models: understanding the query, and choosing among the hits."""

from __future__ import annotations

import asyncio
from heapq import merge
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from reverie.base.logs import get_logger
from reverie.errors import ReverieError
from reverie.memory.names import names_in, strip_names
from reverie.memory.prepare import vectors_of
from reverie.memory.search import LONGEST_QUESTION, Understood
from reverie.models.tokens import tokens_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Found, Hit, SearchQuery
    from reverie.models.interface import Models

__all__ = ["finish_search", "fitted", "understand"]

log = get_logger(__name__)

RERANKED = 3
"""How many times as many hits as are asked for a reranker chooses from."""


async def understand(
    query: SearchQuery, models: Models, known_names: Sequence[str], now: int, *, within_s: float
) -> Understood:
    """The query with its vector and the speakers that it names.

    A vector that takes longer than `within_s` seconds is left out: an answer by words is better than none.
    """
    question = query.text[:LONGEST_QUESTION]
    names = frozenset(names_in(question, known_names)) if known_names else frozenset()
    pool = RERANKED * query.limit if query.rerank and models.reranker is not None else 0
    if models.embedder_name is None or not question.strip():
        return Understood(query, now, names=names, pool=pool)
    text = strip_names(question, names)
    try:
        async with asyncio.timeout(within_s):
            (vector,) = await vectors_of(models, [text], query=True)
    except (ReverieError, TimeoutError) as error:
        reason = str(error) or f"the embedder took longer than {within_s:g} s"
        return Understood(query, now, names=names, degraded=(f"only words count: {reason}",), pool=pool)
    return Understood(query, now, vector, models.embedder_name, names, pool=pool)


async def finish_search(query: SearchQuery, found: Found, models: Models) -> Found:
    """Let the reranker order the hits, then leave out those that the query does not ask for."""
    hits, degraded = found.hits, found.degraded
    if query.rerank and models.reranker is not None and hits:
        try:
            hits = await _reranked(query, hits, models)
        except Exception as error:  # noqa: BLE001  a reranker that fails must not cost the answer
            log.warning("reranker.failed", error=repr(error))
            degraded = (*degraded, f"the reranker has failed: {error}")
    return fitted(query, msgspec.structs.replace(found, hits=hits, degraded=degraded))


def fitted(query: SearchQuery, found: Found) -> Found:
    """The hits that the query asks for: not too many, none below the threshold, and none too long."""
    hits = found.hits[: query.limit]
    kept, dropped = _above(query.threshold, hits)
    preferences, dropped_too = _above(query.threshold, found.preferences)
    whole = msgspec.structs.replace(found, hits=kept, preferences=preferences, dropped=dropped + dropped_too)
    return whole if query.max_tokens is None else _fitting(query.max_tokens, whole)


async def _reranked(query: SearchQuery, hits: list[Hit], models: Models) -> list[Hit]:
    assert models.reranker is not None
    scores = await models.reranker.rerank(query.text, [hit.text for hit in hits])
    if len(scores) != len(hits):
        raise ValueError(f"it answered {len(scores)} scores for {len(hits)} texts")
    order = sorted(range(len(hits)), key=lambda index: -scores[index])
    return [hits[index] for index in order]


def _above(threshold: float | None, hits: list[Hit]) -> tuple[list[Hit], int]:
    if not threshold:
        return hits, 0
    kept = [hit for hit in hits if hit.score >= threshold]
    return kept, len(hits) - len(kept)


def _fitting(max_tokens: int, found: Found) -> Found:
    """The part of an answer whose texts have at most `max_tokens` together.

    Hits and preferences come first, the better of both before the other; then the memories around them, and
    those that links lead to.
    """
    left = max_tokens

    def fits(item: Hit | MemoryItem) -> bool:
        nonlocal left
        tokens = tokens_in(item.text)
        if tokens > left:
            return False
        left -= tokens
        return True

    def kept_of(hits: list[Hit]) -> list[Hit]:
        return [
            msgspec.structs.replace(
                hit,
                neighbours=tuple(takewhile(fits, hit.neighbours)),
                linked=tuple(takewhile(fits, hit.linked)),
            )
            for hit in hits
            if hit.item.id in kept
        ]

    best = merge(found.hits, found.preferences, key=lambda hit: -hit.score)
    kept = {hit.item.id for hit in takewhile(fits, best)}
    cut = len(found.hits) + len(found.preferences) - len(kept)
    return msgspec.structs.replace(
        found, hits=kept_of(found.hits), preferences=kept_of(found.preferences), cut=cut
    )
