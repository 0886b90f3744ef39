"""Memories: the routes that take in what should be remembered, and find it."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.answers import Added, Found
from reverie.api.envelope import answer
from reverie.api.memory_models import SearchRequest
from reverie.api.memory_shape import found_by_cube
from reverie.api.models import AddRequest
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.capture.intake import add_message
from reverie.errors import BackendUnavailableError, InvalidMessageError, ItemTakenError, QueueFullError
from reverie.face.scheduler import AsyncScheduler
from reverie.message import new_item_id
from reverie.principal import Role
from reverie.turn import memory_id_of

__all__ = ["ROUTES"]

PREFERENCE_NOTE = "These are preferences of the user: heed them, unless the user now says otherwise."
"""`pref_note` of a search that has found preferences."""


async def add(scheduler: AsyncScheduler, request: AddRequest) -> JSONResponse:
    """Take in something to remember. It is on disk when this answers, and can be found soon after."""
    turns = request.turns
    messages = [
        add_message(
            turns,
            user_id=request.user_id,
            mem_cube_id=cube,
            item_id=request.item_id or new_item_id(),
            session_id=request.session_id,
            task_id=request.task_id,
            info=request.info_with_tags,
        )
        for cube in request.cubes
    ]
    runtime = scheduler.runtime
    receipts = await runtime.intake.submit(messages, spools=runtime.settings.spool.submits)
    if any(receipt.status == "conflict" for receipt in receipts):
        raise ItemTakenError(request.item_id)
    added: list[Added] = [
        {
            "memory": turn.content,
            "memory_id": memory_id_of(message, index),
            "memory_type": "LongTermMemory",
            "cube_id": message.mem_cube_id,
            "item_id": message.item_id,
            "status": receipt.status,
        }
        for message, receipt in zip(messages, receipts, strict=True)
        for index, turn in enumerate(turns)
        if turn.content.strip()
    ]
    return answer(added)


async def search(scheduler: AsyncScheduler, client: Request, request: SearchRequest) -> JSONResponse:
    """Find memories that fit a query, best first, by cube. The search ends when its client hangs up."""
    searching = scheduler.memory.search(request.query, **request.options(), note=False)
    found = await unless_gone(client, searching)
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
        errors=(InvalidMessageError, ItemTakenError, QueueFullError, BackendUnavailableError),
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
