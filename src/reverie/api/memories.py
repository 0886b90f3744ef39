"""Single memories: the routes that read and delete them by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Body
from fastapi.responses import JSONResponse

from reverie.api.answers import DeletedMemories, FoundMemory, Memories
from reverie.api.envelope import answer
from reverie.api.memory_models import DeleteRequest
from reverie.api.memory_shape import memory_of
from reverie.api.models import Text
from reverie.api.routing import Example, Route
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ROUTES"]

PAGE = 200
"""How many memories of a conversation are listed at once, to be deleted."""


async def get_memory(scheduler: AsyncScheduler, memory_id: str, user_id: str) -> JSONResponse:
    """Read one memory of a user. `data` is null if there is none with this id."""
    item = await scheduler.memory.get(memory_id, user_id=user_id)
    if item is None:
        return answer(None, str(UnknownMemoryError(memory_id)))
    return answer(memory_of(item))


async def get_memory_by_ids(
    scheduler: AsyncScheduler, user_id: str, memory_ids: Annotated[list[Text], Body(max_length=1000)]
) -> JSONResponse:
    """Read memories of a user, in the order of the ids. Unknown and deleted ones are left out."""
    found: list[FoundMemory] = []
    for memory_id in dict.fromkeys(memory_ids):
        try:
            item = await scheduler.memory.get(memory_id, user_id=user_id)
        except MemoryDeletedError:
            continue
        if item is not None:
            found.append(memory_of(item))
    return answer(Memories(memories=found))


async def delete_memory(scheduler: AsyncScheduler, request: DeleteRequest) -> JSONResponse:
    """Delete memories of a user, by their ids or those of a conversation. They are gone when this answers."""
    request.check()
    if request.session is not None and not request.memory_ids:
        count = await _delete_session(scheduler, request, request.session)
        return answer(DeletedMemories(status="success"), f"deleted memories: {count}")
    unknown = [
        memory_id
        for memory_id in dict.fromkeys(request.memory_ids or ())
        if not await _delete_one(scheduler, request, memory_id)
    ]
    if unknown:
        return answer(DeletedMemories(status="failure"), str(UnknownMemoryError(unknown[0])))
    return answer(DeletedMemories(status="success"))


async def _delete_one(scheduler: AsyncScheduler, request: DeleteRequest, memory_id: str) -> bool:
    """Delete a memory; False if there is none with this id in the cubes of the request."""
    memory = scheduler.memory
    try:
        if request.writable_cube_ids:
            item = await memory.get(memory_id, user_id=request.user_id, follow=False)
            if item is None or item.mem_cube_id not in request.writable_cube_ids:
                return False
        await memory.delete(memory_id, user_id=request.user_id)
    except MemoryDeletedError:
        return True
    except UnknownMemoryError:
        return False
    return True


async def _delete_session(scheduler: AsyncScheduler, request: DeleteRequest, session_id: str) -> int:
    """Delete all memories of a conversation, superseded ones too, and count them."""
    count = 0
    cubes: Sequence[str | None] = request.writable_cube_ids or (None,)
    for cube in cubes:
        after: str | None = None
        while True:
            page = await scheduler.memory.page(
                user_id=request.user_id,
                mem_cube_id=cube,
                session_id=session_id,
                with_superseded=True,
                after=after,
                limit=PAGE,
            )
            for item in page.items:
                await scheduler.memory.delete(item.id, user_id=request.user_id)
            count += len(page.items)
            after = page.next
            if after is None:
                break
    return count


ROUTES = (
    Route(
        "GET",
        "/product/get_memory/{memory_id}",
        get_memory,
        role=Role.READ_ONLY,
        answer=FoundMemory | None,
        errors=(InvalidMessageError, MemoryDeletedError, BackendUnavailableError),
        example=Example(path={"memory_id": "tea.0"}, query={"user_id": "ann"}),
    ),
    Route(
        "POST",
        "/product/get_memory_by_ids",
        get_memory_by_ids,
        role=Role.READ_ONLY,
        answer=Memories,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(query={"user_id": "ann"}, body=["tea.0"]),
    ),
    Route(
        "POST",
        "/product/delete_memory",
        delete_memory,
        role=Role.USER,
        answer=DeletedMemories,
        errors=(InvalidMessageError, InvalidSelectionError, VersionConflictError, BackendUnavailableError),
        example=Example(body={"user_id": "ann", "memory_ids": ["tea.0"]}),
    ),
)
