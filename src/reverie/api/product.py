"""Remembering and finding: the routes of `/product` that are about memories."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.models import AddRequest, SearchRequest
from reverie.base.clock import from_epoch_ms
from reverie.capture.intake import add_message
from reverie.message import new_item_id
from reverie.turn import memory_id_of

if TYPE_CHECKING:
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.interface import Hit

__all__ = ["product_routes"]

MEMORY_TYPES = {
    "working": "WorkingMemory",
    "long_term": "LongTermMemory",
    "archive": "ArchivedMemory",
    "activation": "ActivationMemory",
    "parameter": "ParameterMemory",
}


def product_routes(scheduler: AsyncScheduler) -> APIRouter:
    """The routes, bound to one scheduler."""
    routes = APIRouter(prefix="/product", default_response_class=JSONResponse)

    @routes.post("/add")
    async def add(request: AddRequest) -> JSONResponse:
        """Take in something to remember. It is kept when this answers, and found soon after."""
        messages = [
            add_message(
                request.turns,
                user_id=request.user_id,
                mem_cube_id=cube,
                item_id=request.item_id or new_item_id(),
                session_id=request.session_id,
                task_id=request.task_id,
                info=request.info,
            )
            for cube in request.cubes
        ]
        receipts = await scheduler.submit_messages(messages)
        if any(receipt.status == "conflict" for receipt in receipts):
            return answer(None, f"item_id {request.item_id!r} is taken by another message of this user", 409)
        return answer(
            [
                {
                    "memory": turn.content,
                    "memory_id": memory_id_of(message, index),
                    "memory_type": "LongTermMemory",
                    "cube_id": message.mem_cube_id,
                    "item_id": message.item_id,
                    "status": receipt.status,
                }
                for message, receipt in zip(messages, receipts, strict=True)
                for index, turn in enumerate(request.turns)
                if turn.content.strip()
            ]
        )

    @routes.post("/search")
    async def search(request: SearchRequest) -> JSONResponse:
        """Find what fits, best first, by cube."""
        hits = await scheduler.memory.search(
            request.query, user_id=request.user_id, mem_cube_ids=request.cubes, limit=request.top_k
        )
        by_cube: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for hit in hits:
            by_cube[hit.item.mem_cube_id].append(_memory(hit))
        text = [{"cube_id": cube, "memories": found} for cube, found in by_cube.items()]
        return answer({"text_mem": text, "act_mem": [], "para_mem": [], "pref_mem": []})

    return routes


def _memory(hit: Hit) -> dict[str, Any]:
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
