"""Memories as resources, under `/product/memories`: listed, changed, their past and their links."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.answers import FoundMemory, History, LinkedMemory, LinkPage, ListedMemories
from reverie.api.envelope import answer
from reverie.api.memory_models import Moment
from reverie.api.memory_shape import memory_of
from reverie.api.models import Cursor, PageLimit, Tags, Text
from reverie.api.routing import Example, Route
from reverie.backends.views import check_cursor
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

__all__ = ["ROUTES"]

Kinds = Annotated[list[str], Query(description="only of these kinds; may be repeated")]
Tiers = Annotated[list[str], Query(description="only in these tiers; may be repeated")]
Whose = Annotated[
    str | None, Query(description="whose memory; may be left out if only one user of the caller has the id")
]


class UpdateRequest(BaseModel):
    """What a memory shall be. Fields that are missing or null stay as they are."""

    user_id: Text | None = Field(
        None, description="whose memory; may be left out if only one user of the caller has the id"
    )
    text: Text | None = None
    kind: Text | None = Field(None, min_length=1)
    title: Text | None = None
    tags: Tags | None = None
    info: dict[str, Any] | None = None
    importance: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    valid_from: Moment = None
    valid_to: Moment = None
    version: int | None = Field(
        None, ge=1, le=2**53, description="refuse if the memory has another version by now"
    )


async def list_memories(
    scheduler: AsyncScheduler,
    user_id: str,
    *,
    mem_cube_id: str | None = None,
    kind: Kinds = [],  # noqa: B006  FastAPI makes a list of its own
    tier: Tiers = [],  # noqa: B006
    session_id: str | None = None,
    with_superseded: bool = False,
    newest_first: bool = False,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> JSONResponse:
    """List memories of a user in the order in which they were learned."""
    cursors = scheduler.runtime.cursors
    page = await scheduler.memory.page(
        user_id=user_id,
        mem_cube_id=mem_cube_id,
        kinds=kind,
        tiers=tier,
        session_id=session_id,
        with_superseded=with_superseded,
        newest_first=newest_first,
        after=await cursors.open(cursor),
        limit=limit,
    )
    memories = [memory_of(item) for item in page.items]
    return answer(ListedMemories(memories=memories, next=await cursors.seal(page.next)))


async def update_memory(scheduler: AsyncScheduler, memory_id: str, request: UpdateRequest) -> JSONResponse:
    """Change a memory. It holds when this answers; what the memory was stays in its history."""
    owner = await scheduler.memory.owner_of(memory_id, request.user_id)
    changes = request.model_dump(exclude={"user_id"})
    return answer(memory_of(await scheduler.memory.update(memory_id, user_id=owner, **changes)))


async def history(
    scheduler: AsyncScheduler,
    memory_id: str,
    user_id: Whose = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> JSONResponse:
    """Read a memory as it was before each of its changes, oldest first."""
    check_cursor("cursor", cursor)
    owner = await _owner(scheduler, memory_id, user_id)
    after = int(cursor or 0)
    rest = [old for old in await scheduler.memory.history(memory_id, user_id=owner) if old.version > after]
    page = rest[:limit]
    return answer(History(revisions=page, next=str(page[-1].version) if len(rest) > limit else None))


async def links(
    scheduler: AsyncScheduler,
    memory_id: str,
    user_id: Whose = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> JSONResponse:
    """Read the memories that a memory is linked to, in both directions."""
    owner = await _owner(scheduler, memory_id, user_id)
    found = {
        f"{link.item.id} {link.relation} {'to' if link.outgoing else 'from'}": link
        for link in await scheduler.memory.links(memory_id, user_id=owner)
    }
    rest = sorted(place for place in found if place > (cursor or ""))
    page: list[LinkedMemory] = [
        {
            "relation": found[place].relation,
            "outgoing": found[place].outgoing,
            "memory": memory_of(found[place].item),
        }
        for place in rest[:limit]
    ]
    return answer(LinkPage(links=page, next=rest[limit - 1] if len(rest) > limit else None))


async def _owner(scheduler: AsyncScheduler, memory_id: str, user_id: str | None) -> str:
    """The user that a memory belongs to, superseded or not; `UnknownMemoryError` if there is no such one."""
    owner = await scheduler.memory.owner_of(memory_id, user_id)
    if await scheduler.memory.get(memory_id, user_id=owner, follow=False) is None:
        raise UnknownMemoryError(memory_id)
    return owner


REFUSED = (InvalidMessageError, InvalidSelectionError, BackendUnavailableError)
BY_ID = (UnknownMemoryError, AmbiguousIdError, MemoryDeletedError, *REFUSED)
TEA = {"memory_id": "tea.0"}

ROUTES = (
    Route(
        "GET",
        "/product/memories",
        list_memories,
        role=Role.READ_ONLY,
        answer=ListedMemories,
        errors=REFUSED,
        example=Example(query={"user_id": "ann", "newest_first": True, "limit": 10}),
    ),
    Route(
        "PATCH",
        "/product/memories/{memory_id}",
        update_memory,
        role=Role.USER,
        reach="own",
        answer=FoundMemory,
        errors=(VersionConflictError, *BY_ID),
        example=Example(path=TEA, body={"user_id": "ann", "text": "I like white tea", "tags": ["tea"]}),
    ),
    Route(
        "GET",
        "/product/memories/{memory_id}/history",
        history,
        role=Role.READ_ONLY,
        reach="own",
        answer=History,
        errors=BY_ID,
        example=Example(path=TEA, query={"user_id": "ann"}),
    ),
    Route(
        "GET",
        "/product/memories/{memory_id}/links",
        links,
        role=Role.READ_ONLY,
        reach="own",
        answer=LinkPage,
        errors=BY_ID,
        example=Example(path=TEA, query={"user_id": "ann"}),
    ),
)
