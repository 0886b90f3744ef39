"""Memories: the routes that take in what should be remembered, and find it."""

from __future__ import annotations

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.adding import add_now, add_soon, messages_of
from reverie.api.answers import Added, Found
from reverie.api.envelope import answer
from reverie.api.feedback import add_feedback
from reverie.api.fine_search import fine_search
from reverie.api.memory_models import SearchRequest
from reverie.api.memory_shape import found_by_cube
from reverie.api.models import AddRequest
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ItemTakenError,
    NotSupportedError,
    NoWorkerError,
    QueueFullError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.memory.kept_searches import mix_message
from reverie.memory.query import Found as Finding
from reverie.principal import Role, current_principal

__all__ = ["PREFERENCE_NOTE", "ROUTES", "find"]

PREFERENCE_NOTE = "These are preferences of the user: heed them, unless the user now says otherwise."
"""`pref_note` of a search that has found preferences."""
NO_INTERNET = "the internet was not searched: this server does not do that"


async def add(scheduler: AsyncScheduler, client: Request, request: AddRequest) -> JSONResponse:
    """Take in something to remember. It is on disk when this answers.

    With `async_mode` sync, a search finds it when this answers, unless its entries have the status
    `resolving`: then the work takes longer than `server.sync_timeout_s`.
    """
    if request.is_feedback:
        return await add_feedback(scheduler, client, request)
    messages = await messages_of(scheduler, request)
    if request.waits:
        added = await add_now(scheduler, client, messages, with_facts=request.waits_for_facts)
    else:
        added = await add_soon(scheduler, messages)
    return answer(added.entries, added.message)


async def find(scheduler: AsyncScheduler, request: SearchRequest) -> Finding:
    """The answer to a search in its mode. The query is noted, unless the caller may only read.

    In the mode `mixture`, the search is also enhanced in the background, for the next one with this query,
    unless the caller may only read.
    """
    principal = current_principal.get()
    options = request.options()
    options["mem_cube_ids"] = principal.cubes_among(request.cubes)
    if request.mode == "fine":
        history = [model.turn() for model in request.chat_history or ()]
        found = await fine_search(scheduler, request.query, options, history)
    else:
        found = await scheduler.memory.search(request.query, **options, note=False)
    scheduler.memory.note_query(
        request.query,
        found,
        user_id=request.user_id,
        mem_cube_ids=options["mem_cube_ids"],
        session_id=options["session_id"],
    )
    if request.mode == "mixture" and scheduler.runtime.started and principal.role > Role.READ_ONLY:
        cubes = options["mem_cube_ids"] or [request.user_id]
        scheduler.runtime.query_notes.note(
            [mix_message(request.query, user_id=request.user_id, mem_cube_id=cube) for cube in cubes]
        )
    if request.internet_search:
        found = msgspec.structs.replace(found, degraded=(*found.degraded, NO_INTERNET))
    return found


async def search(scheduler: AsyncScheduler, client: Request, request: SearchRequest) -> JSONResponse:
    """Find memories that fit a query, best first, by cube. The search ends when its client hangs up."""
    found = await unless_gone(client, find(scheduler, request))
    related = request.neighbor_discovery
    data: Found = {
        "text_mem": found_by_cube(found.hits, related=related),
        "pref_mem": found_by_cube(found.preferences, related=related),
        "act_mem": [],
        "para_mem": [],
        "tool_mem": [],
        "skill_mem": [],
        "pref_string": "\n".join(f"- {hit.text}" for hit in found.preferences),
        "pref_note": PREFERENCE_NOTE if found.preferences else "",
        "dropped": found.dropped,
        "cut": found.cut,
        "words_left_out": found.words_left_out,
        "degraded": list(found.degraded),
    }
    if request.explain:
        data["timings_ms"] = found.timings_ms or {}
        data["explanation"] = found.explanation or {}
    return answer(data)


ROUTES = (
    Route(
        "POST",
        "/product/add",
        add,
        role=Role.USER,
        answer=list[Added],
        errors=(
            InvalidMessageError,
            ItemTakenError,
            QueueFullError,
            NotSupportedError,
            NoWorkerError,
            BackendUnavailableError,
        ),
        example=Example(
            body={
                "user_id": "ann",
                "item_id": "tea",
                "session_id": "may",
                "messages": [{"role": "user", "content": "I like green tea"}],
            }
        ),
    ),
    Route(
        "POST",
        "/product/search",
        search,
        role=Role.READ_ONLY,
        answer=Found,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(body={"user_id": "ann", "query": "What does Ann drink?"}),
    ),
)
