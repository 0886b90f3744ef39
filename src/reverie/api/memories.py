"""Single memories: the routes that read and delete them by their ids, and those that delete many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Body, Query, Request
from fastapi.responses import JSONResponse

from reverie.api.answers import DeletedMemories, FoundMemory, Memories
from reverie.api.envelope import answer
from reverie.api.memory_filters import read_filter
from reverie.api.memory_models import DeleteRequest, IdsRequest
from reverie.api.memory_shape import memory_of
from reverie.api.models import Text
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    ForeignDataError,
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    NotSupportedError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.item import MemoryItem

__all__ = ["ROUTES", "delete_memories", "find_memory"]

PAGE = 200
"""How many memories are listed at once, to be deleted."""
MOST_NAMELESS = 100
"""How many ids of one request may be without a user: each is looked for at every user of the key."""

Whose = Annotated[
    str | None, Query(description="whose memory it is; may be left out if one user of the key has the id")
]


async def get_memory(scheduler: AsyncScheduler, memory_id: str, user_id: Whose = None) -> JSONResponse:
    """Read one memory. `data` is null if there is none with this id.

    Without `user_id`, the id is looked for at the users that the caller's key may touch.
    """
    item = await find_memory(scheduler, memory_id, user_id)
    if item is None:
        return answer(None, str(UnknownMemoryError(memory_id)))
    return answer(memory_of(item))


async def get_memory_by_ids(
    scheduler: AsyncScheduler,
    memory_ids: Annotated[list[Text], Body(max_length=1000)],
    user_id: Whose = None,
) -> JSONResponse:
    """Read memories, in the order of the ids. Unknown and deleted ones are left out."""
    found: list[FoundMemory] = []
    for memory_id in _distinct(memory_ids, user_id):
        try:
            item = await find_memory(scheduler, memory_id, user_id)
        except MemoryDeletedError:
            continue
        if item is not None:
            found.append(memory_of(item))
    return answer(Memories(memories=found))


async def get_user_names_by_memory_ids(scheduler: AsyncScheduler, request: IdsRequest) -> JSONResponse:
    """Which user each id belongs to; null if none of the users that the caller may touch has it."""
    owners: dict[str, str | None] = {}
    for memory_id in request.memory_ids:
        owners[memory_id] = await _owner_of(scheduler, memory_id, None)
    return answer(owners)


async def delete_memory(scheduler: AsyncScheduler, client: Request, request: DeleteRequest) -> JSONResponse:
    """Delete memories: by their ids, or all of a user, of a conversation, or that pass a filter.

    They are gone when this answers.
    """
    is_done, message = await delete_memories(scheduler, client, request)
    return answer(DeletedMemories(status="success" if is_done else "failure"), message)


async def delete_memories(
    scheduler: AsyncScheduler, client: Request, request: DeleteRequest
) -> tuple[bool, str]:
    """Delete what a request means: whether all of it is deleted, and a sentence about it.

    If several users have one of the ids, nothing is deleted.
    """
    request.check()
    if request.user_id is not None:
        current_principal.get().check_touch(request.user_id, request.cubes)
    if request.memory_ids is None:
        count = await unless_gone(client, _delete_many(scheduler, request))
        return True, f"deleted memories: {count}"
    owners: dict[str, str | None] = {}
    for memory_id in _distinct(request.memory_ids, request.user_id):
        owners[memory_id] = await _owner_of(scheduler, memory_id, request.user_id)
    unknown = [
        memory_id
        for memory_id, owner in owners.items()
        if owner is None or not await _delete_one(scheduler, request, memory_id, owner)
    ]
    return (False, str(UnknownMemoryError(unknown[0]))) if unknown else (True, "ok")


def _distinct(memory_ids: Sequence[str], user_id: str | None) -> list[str]:
    if user_id is None and len(memory_ids) > MOST_NAMELESS:
        raise InvalidSelectionError(
            f"{len(memory_ids)} ids without a user: give user_id, or at most {MOST_NAMELESS} ids"
        )
    return list(dict.fromkeys(memory_ids))


async def find_memory(scheduler: AsyncScheduler, memory_id: str, user_id: str | None) -> MemoryItem | None:
    """The memory with this id, of the user who has it; None if there is none."""
    owner = await _owner_of(scheduler, memory_id, user_id)
    return None if owner is None else await scheduler.memory.get(memory_id, user_id=owner)


async def _owner_of(scheduler: AsyncScheduler, memory_id: str, user_id: str | None) -> str | None:
    """The user that an id belongs to; None if there is none. See `AsyncMemory.owner_of`."""
    try:
        return await scheduler.memory.owner_of(memory_id, user_id)
    except UnknownMemoryError:
        return None


async def _delete_one(scheduler: AsyncScheduler, request: DeleteRequest, memory_id: str, owner: str) -> bool:
    """Delete a memory; False if there is none with this id in the cubes of the request."""
    memory = scheduler.memory
    try:
        if request.cubes:
            item = await memory.get(memory_id, user_id=owner, follow=False)
            if item is None or item.mem_cube_id not in request.cubes:
                return False
        await memory.delete(memory_id, user_id=owner)
    except MemoryDeletedError:
        return True
    except UnknownMemoryError:
        return False
    return True


async def _delete_many(scheduler: AsyncScheduler, request: DeleteRequest) -> int:
    """Delete all memories that the request means, superseded ones too, and count them."""
    user_id = request.user_id or _only_user()
    filters = read_filter(request.filter or {})
    count = 0
    for cube in request.cubes or (None,):
        after: str | None = None
        while True:
            page = await scheduler.memory.page(
                user_id=user_id,
                mem_cube_id=cube,
                session_id=request.session,
                with_superseded=True,
                after=after,
                limit=PAGE,
            )
            meant = [item for item in page.items if filters.allow(item)]
            for item in meant:
                await scheduler.memory.delete(item.id, user_id=user_id)
            count += len(meant)
            after = page.next
            if after is None:
                break
    return count


def _only_user() -> str:
    """The user of a caller whose key names only one."""
    users = current_principal.get().users
    if users is None or len(users) != 1:
        raise InvalidSelectionError("this key may touch several users: say whose memories, with user_id")
    return next(iter(users))


ROUTES = (
    Route(
        "GET",
        "/product/get_memory/{memory_id}",
        get_memory,
        role=Role.READ_ONLY,
        reach="own",
        answer=FoundMemory | None,
        errors=(
            InvalidMessageError,
            InvalidSelectionError,
            ForeignDataError,
            AmbiguousIdError,
            MemoryDeletedError,
            BackendUnavailableError,
        ),
        example=Example(path={"memory_id": "tea.0"}, query={"user_id": "ann"}),
    ),
    Route(
        "POST",
        "/product/get_memory_by_ids",
        get_memory_by_ids,
        role=Role.READ_ONLY,
        reach="own",
        answer=Memories,
        errors=(
            InvalidMessageError,
            InvalidSelectionError,
            ForeignDataError,
            AmbiguousIdError,
            BackendUnavailableError,
        ),
        example=Example(query={"user_id": "ann"}, body=["tea.0"]),
    ),
    Route(
        "POST",
        "/product/get_user_names_by_memory_ids",
        get_user_names_by_memory_ids,
        role=Role.READ_ONLY,
        reach="own",
        answer=dict[str, str | None],
        errors=(InvalidMessageError, InvalidSelectionError, AmbiguousIdError, BackendUnavailableError),
        example=Example(body={"memory_ids": ["tea.0"]}),
    ),
    Route(
        "POST",
        "/product/delete_memory",
        delete_memory,
        role=Role.USER,
        reach="own",
        answer=DeletedMemories,
        errors=(
            InvalidMessageError,
            InvalidSelectionError,
            ForeignDataError,
            AmbiguousIdError,
            VersionConflictError,
            NotSupportedError,
            BackendUnavailableError,
        ),
        example=Example(body={"user_id": "ann", "memory_ids": ["tea.0"]}),
    ),
)
