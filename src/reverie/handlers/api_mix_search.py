"""The handler of the label `api_mix_search`: a search is enhanced in the background, for the next time.

The language model writes further queries and orders what all of them find; links lead to more. Without a
model, only links are followed. The result is kept for the next search of the tenant with the same query,
until one of its memories changes.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.effect import KeepSearch
from reverie.failures import InvalidWorkError
from reverie.handlers.content import read_json
from reverie.handlers.extraction import numbers, one_line
from reverie.handlers.mem_read import room_for_turns
from reverie.memory.kept_searches import LABEL, LONGEST_QUERY, MixInput, query_key
from reverie.models.tokens import tokens_in
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Found, Hit
    from reverie.message import Key, Message

__all__ = ["api_mix_search"]

PROMPTS = files(__package__).joinpath("prompts")
EXPAND = Template(PROMPTS.joinpath("expand.txt").read_text("utf-8"))
RERANK = Template(PROMPTS.joinpath("rerank.txt").read_text("utf-8"))
POOL = 30
"""How many memories each query may bring, and how many are kept in all."""
RERANKED = 20
"""How many memories the language model orders."""
MOST_QUERIES = 4
"""How many further queries the language model may write."""
LONGEST_TEXT = 400
"""How many characters of a memory the language model is shown."""
FURTHER = 0.9
"""What a hit of a further query counts, compared with one of the query itself."""
LINKED = 0.6
"""What a memory counts that a link leads to, compared with the hit where the link begins."""


async def api_mix_search(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Search in more ways than a person would wait for, and keep the result. A message runs alone."""
    (message,) = messages
    query = _query_of(message)
    options: HandlerOptions = await ctx.options()
    changes: int = await ctx.memory.changes()  # before the first read: what changes later makes it worthless
    found: Found = await ctx.memory.search(query, limit=POOL, hops=1)
    mixed = _Mixed()
    mixed.add(found.hits, 1)
    if options.has_language_model:
        for further in await _further_queries(query, ctx):
            mixed.add((await ctx.memory.search(further, limit=POOL, hops=1)).hits, FURTHER)
    best = mixed.best()
    if options.has_language_model and len(best) > 1:
        best = await _reranked(query, best, ctx, options)
    if not best:
        return {message.key: Done()}
    kept = tuple((item.id, round(score, 4)) for item, score in best)
    return {
        message.key: Done(
            effects=[KeepSearch(query=query_key(query[:LONGEST_QUERY]), changes=changes, hits=kept)]
        )
    }


def _query_of(message: Message) -> str:
    """The query of the message; any text that is no JSON object is the query."""
    given: MixInput | None = read_json(message, MixInput)
    query = message.content if given is None else given.query
    if not query.strip():
        raise InvalidWorkError(f"the query of an {LABEL} message is empty")
    return query


class _Mixed:
    """The memories that several queries have found, each with its best score."""

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._items: dict[str, MemoryItem] = {}

    def add(self, hits: list[Hit], weight: float) -> None:
        """Take the hits of one query, and the memories that links lead to."""
        for hit in hits:
            self._put(hit.item, weight * hit.score)
            for item in hit.linked:
                if item.tier != "archive" and not _is_source(item, hit.item):
                    self._put(item, weight * LINKED * hit.score)

    def _put(self, item: MemoryItem, score: float) -> None:
        self._items[item.id] = item
        self._scores[item.id] = max(score, self._scores.get(item.id, 0.0))

    def best(self) -> list[tuple[MemoryItem, float]]:
        """The best of them, best first."""
        order = sorted(self._scores, key=lambda memory_id: (-self._scores[memory_id], memory_id))
        return [(self._items[memory_id], self._scores[memory_id]) for memory_id in order[:POOL]]


def _is_source(one: MemoryItem, other: MemoryItem) -> bool:
    """Whether one of two memories is a turn that the other comes from: a search shows only one of them."""
    for turn, fact in ((one, other), (other, one)):
        if turn.kind == "turn" and turn.id in {
            f"{source.item_id}.{source.index}" for source in fact.sources
        } - {fact.id}:
            return True
    return False


async def _further_queries(query: str, ctx: Context) -> list[str]:
    """Other queries for the same thing. A later run gets the same ones, and pays nothing."""
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    listed = {"type": "array", "items": text, "maxItems": MOST_QUERIES}
    schema = {"type": "object", "properties": {"queries": listed}, "required": ["queries"]}

    async def complete() -> list[str]:
        prompt = EXPAND.substitute(query=one_line(query[:LONGEST_QUERY]), most=MOST_QUERIES)
        answer = await ctx.models.complete(prompt, schema=schema)
        queries: list[str] = msgspec.json.decode(answer.text)["queries"]
        return queries

    found = await ctx.memo("expand", complete)
    return [further for further in dict.fromkeys(found) if further.strip()]


async def _reranked(
    query: str, best: list[tuple[MemoryItem, float]], ctx: Context, options: HandlerOptions
) -> list[tuple[MemoryItem, float]]:
    """The first memories in the order of the language model. Scores stay in their places, best first."""
    shown: list[str] = []
    room = room_for_turns(options)
    for number, (item, _) in enumerate(best[:RERANKED], 1):
        line = f"{number}. {one_line(item.text[:LONGEST_TEXT])}"
        room -= tokens_in(line) + 1
        if room < 0:
            break
        shown.append(line)
    if len(shown) < 2:
        return best
    schema = {"type": "object", "properties": {"order": numbers(len(shown))}, "required": ["order"]}

    async def complete() -> dict[str, Any]:
        prompt = RERANK.substitute(query=one_line(query[:LONGEST_QUERY]), memories="\n".join(shown))
        answer = await ctx.models.complete(prompt, schema=schema)
        order = msgspec.json.decode(answer.text)["order"]
        return {"shown": [item.id for item, _ in best[: len(shown)]], "order": [int(one) for one in order]}

    kept = await ctx.memo("rerank", complete)
    first = [kept["shown"][number - 1] for number in kept["order"] if number <= len(kept["shown"])]
    items = {item.id: item for item, _ in best}
    order = [memory_id for memory_id in dict.fromkeys([*first, *items]) if memory_id in items]
    return [(items[memory_id], score) for memory_id, (_, score) in zip(order, best, strict=True)]
