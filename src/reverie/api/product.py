"""Memories: the routes that take in what should be remembered, and find it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.answers import Added, Found, FoundMemory
from reverie.api.envelope import answer
from reverie.api.models import AddRequest, SearchRequest
from reverie.api.routing import Route
from reverie.api.streams import unless_gone
from reverie.base.clock import from_epoch_ms
from reverie.capture.intake import add_message
from reverie.errors import BackendUnavailableError, InvalidMessageError, ItemTakenError, QueueFullError
from reverie.face.scheduler import AsyncScheduler
from reverie.message import new_item_id
from reverie.principal import Role
from reverie.turn import memory_id_of

if TYPE_CHECKING:
    from reverie.memory.interface import Hit

__all__ = ["ROUTES"]

MEMORY_TYPES = {
    "working": "WorkingMemory",
    "long_term": "LongTermMemory",
    "archive": "ArchivedMemory",
    "activation": "ActivationMemory",
    "parameter": "ParameterMemory",
}
"""tier → `memory_type`, as clients know it."""


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
            info=request.info,
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
    cubes = request.readable_cube_ids or ([request.mem_cube_id] if request.mem_cube_id else [])
    searching = scheduler.memory.search(
        request.query, user_id=request.user_id, mem_cube_ids=cubes, limit=request.top_k
    )
    hits = await unless_gone(client, searching)
    by_cube: dict[str, list[FoundMemory]] = defaultdict(list)
    for hit in hits:
        by_cube[hit.item.mem_cube_id].append(_found(hit))
    found: Found = {
        "text_mem": [{"cube_id": cube, "memories": memories} for cube, memories in by_cube.items()],
        "act_mem": [],
        "para_mem": [],
        "pref_mem": [],
        "words_left_out": hits.words_left_out,
    }
    return answer(found)


def _found(hit: Hit) -> FoundMemory:
    item = hit.item
    return {
        "id": item.id,
        "memory": item.text,
        "metadata": {
            "memory_type": MEMORY_TYPES.get(item.tier, item.tier),
            "kind": item.kind,
            "relativity": hit.score,
            "user_id": item.user_id,
            "session_id": item.session_id,
            "tags": list(item.tags),
            "info": item.info,
            "sources": [msgspec.structs.asdict(source) for source in item.sources],
            "created_at": from_epoch_ms(item.created_at).isoformat(),
            "updated_at": from_epoch_ms(item.updated_at).isoformat(),
        },
    }


ROUTES = (
    Route(
        "POST",
        "/product/add",
        add,
        role=Role.WRITER,
        answer=list[Added],
        errors=(InvalidMessageError, ItemTakenError, QueueFullError, BackendUnavailableError),
    ),
    Route(
        "POST",
        "/product/search",
        search,
        role=Role.READER,
        answer=Found,
        errors=(InvalidMessageError, BackendUnavailableError),
    ),
)
