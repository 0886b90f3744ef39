"""The search mode `fine`: the language model words the query in other ways, and judges what was found."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.api.asking import MODEL_FAILURES, ask_for_json, in_lines, one_line, prompt_of, reason_of
from reverie.memory.finding import fitted
from reverie.memory.query import SearchQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.query import Found, Hit
    from reverie.turn import Turn

__all__ = ["fine_search"]

MOST_QUERIES = 3
"""How many other wordings of a query are searched for."""
JUDGED = 30
"""How many hits the model judges."""
HISTORY = 10
"""How many of the last turns the model sees."""
LABEL = "search"
"""Under which label the ledger has the costs."""


async def fine_search(
    scheduler: AsyncScheduler, query: str, options: dict[str, Any], history: Sequence[Turn] = ()
) -> Found:
    """Search for a query and other wordings of it, and order the hits as the model judges them.

    `options` are the arguments of `AsyncMemory.search`. If the model does not answer, this is a fast search,
    and `degraded` of the answer says so.
    """
    search = _FineSearch(scheduler, query, options)
    try:
        return await search.run(history)
    except MODEL_FAILURES as error:
        reason = f"this is a fast search: {reason_of(error, search.allowed_s)}"
    found = await scheduler.memory.search(query, **options, note=False)
    return msgspec.structs.replace(found, degraded=(*found.degraded, reason))


class _FineSearch:
    def __init__(self, scheduler: AsyncScheduler, query: str, options: dict[str, Any]) -> None:
        self._scheduler = scheduler
        self._query = query
        self._options = options
        self.allowed_s = scheduler.runtime.settings.server.sync_timeout_s
        self._end = time.monotonic() + self.allowed_s

    async def run(self, history: Sequence[Turn]) -> Found:
        options, memory = self._options, self._scheduler.memory
        wordings = await self._wordings(history)
        pool = max(JUDGED, options["limit"])
        wide = options | {"limit": pool, "threshold": None, "max_tokens": None, "note": False}
        found = await memory.search(self._query, **wide)
        best = {hit.item.id: hit for hit in found.hits}
        for wording in wordings:
            for hit in await memory.search(wording, **wide | {"preferences": 0}):
                known = best.get(hit.item.id)
                if known is None or known.score < hit.score:
                    best[hit.item.id] = hit
        hits = sorted(best.values(), key=lambda hit: -hit.score)
        if options["rerank"] and hits:
            hits = await self._judged(hits)
        limits = {name: options[name] for name in ("limit", "threshold", "max_tokens")}
        asked = SearchQuery(text=self._query, user_id=options["user_id"], **limits)
        return fitted(asked, msgspec.structs.replace(found, hits=hits))

    async def _wordings(self, history: Sequence[Turn]) -> list[str]:
        """Other wordings of the query."""
        prompt = prompt_of("expand", query=one_line(self._query), history=in_lines(history[-HISTORY:]))
        text = {"type": "string", "minLength": 1, "maxLength": 300}
        queries = {"type": "array", "items": text, "maxItems": MOST_QUERIES}
        answer: list[str] = await self._ask(prompt, "queries", queries)
        return [wording for wording in answer if wording.strip()]

    async def _judged(self, hits: list[Hit]) -> list[Hit]:
        """The first hits with the scores that the model gives them, best first, and the others after them."""
        judged, others = hits[:JUDGED], hits[JUDGED:]
        lines = (f"{number}. {one_line(hit.text)}" for number, hit in enumerate(judged, 1))
        prompt = prompt_of("rerank", query=one_line(self._query), memories="\n".join(lines))
        score = {"type": "number", "minimum": 0, "maximum": 1}
        scores = {"type": "array", "items": score, "minItems": len(judged), "maxItems": len(judged)}
        answer: list[float] = await self._ask(prompt, "scores", scores)
        scored = [_scored(hit, float(score)) for hit, score in zip(judged, answer, strict=True)]
        return [*sorted(scored, key=lambda hit: -hit.score), *others]

    async def _ask(self, prompt: str, field: str, schema: dict[str, Any]) -> Any:
        """One field of the model's answer."""
        user_id, cubes = self._options["user_id"], self._options["mem_cube_ids"]
        answer = await ask_for_json(
            self._scheduler,
            prompt,
            {"type": "object", "properties": {field: schema}, "required": [field]},
            tenant=(user_id, cubes[0] if cubes else user_id),
            label=LABEL,
            within_s=max(0.0, self._end - time.monotonic()),
        )
        return answer[field]


def _scored(hit: Hit, score: float) -> Hit:
    signals = None if hit.signals is None else hit.signals | {"model": score}
    return msgspec.structs.replace(hit, score=score, signals=signals)
