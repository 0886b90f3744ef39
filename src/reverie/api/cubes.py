"""Cubes: the routes that create them by name, list them, and say whether there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.answers import CreatedCube, CubePage, ListedCube
from reverie.api.envelope import answer
from reverie.api.models import Text
from reverie.api.routing import Example, Route, Touched
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    ForeignDataError,
    InvalidMessageError,
    InvalidSelectionError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.memory.tenants import tenants_of
from reverie.message import check_ids, derived_id
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["ROUTES", "owner_of_cube"]

LONGEST_NAME = 200
MOST_OWNERS = 2
"""How many owners of a cube are looked for: with two it is already unclear whose is meant."""


class CreateRequest(BaseModel):
    """A cube to create."""

    cube_name: Text = Field(min_length=1, max_length=LONGEST_NAME)
    owner_id: Text
    cube_path: Text | None = Field(None, max_length=4096, description="kept, and never read")
    cube_id: Text | None = Field(None, description="default: an id made of the owner and the name")

    def touched(self) -> list[Touched]:
        """The owner and the cube."""
        return [Touched(self.owner_id, () if self.cube_id is None else (self.cube_id,))]


class RegisterRequest(BaseModel):
    """A cube to make known by its name or path."""

    mem_cube_name_or_path: Text = Field(min_length=1, max_length=LONGEST_NAME)
    mem_cube_id: Text | None = Field(None, description="default: the name")
    user_id: Text | None = Field(None, description="may be left out if the key is for one user")


class ExistsRequest(BaseModel):
    """A cube to look for."""

    mem_cube_id: Text


async def create_cube(scheduler: AsyncScheduler, request: CreateRequest) -> JSONResponse:
    """Create a cube of a user, or give a known one another name."""
    cube_id = request.cube_id or derived_id("cube", request.owner_id, request.cube_name)
    return await _create(scheduler, cube_id, request.cube_name, request.owner_id, path=request.cube_path)


async def register_cube(scheduler: AsyncScheduler, request: RegisterRequest) -> JSONResponse:
    """Make a cube of a user known; one that is known stays as it is. Nothing is read from a path."""
    cube_id = request.mem_cube_id or request.mem_cube_name_or_path
    users = current_principal.get().users
    owner_id = request.user_id or (next(iter(users)) if users is not None and len(users) == 1 else None)
    if owner_id is None:
        raise InvalidSelectionError("this key may touch several users: say whose cube it is, with user_id")
    return await _create(scheduler, cube_id, request.mem_cube_name_or_path, owner_id, keep=True)


async def exist_mem_cube_id(scheduler: AsyncScheduler, request: ExistsRequest) -> JSONResponse:
    """Whether a user whom the caller may touch has a cube with this id: `{id: true or false}`."""
    check_ids(scheduler.runtime.limits, mem_cube_id=request.mem_cube_id)
    owners = await _owners(scheduler, request.mem_cube_id)
    return answer({request.mem_cube_id: bool(owners)})


async def list_cubes(
    scheduler: AsyncScheduler,
    user_id: str,
    cursor: Annotated[str, Query(description="the `next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="cubes of one page")] = 100,
) -> JSONResponse:
    """The cubes of a user, by id: those that were created, and those that have memories."""
    check_ids(scheduler.runtime.limits, user_id=user_id)
    principal, runtime = current_principal.get(), scheduler.runtime
    await scheduler.open()
    created = {cube.cube_id: cube for cube in await runtime.cubes.of_owner(user_id)}
    known = {cube for cube in created if cube > cursor and principal.may_touch(user_id, cube)}
    ids = sorted(known.union(await runtime.reads.cubes(user_id, cursor, limit + 1)))[: limit + 1]
    cubes: list[ListedCube] = [
        {"cube_id": cube, "cube_name": created[cube].cube_name if cube in created else cube}
        for cube in ids[:limit]
    ]
    page: CubePage = {"cubes": cubes, "next": ids[limit - 1] if len(ids) > limit else None}
    return answer(page)


async def owner_of_cube(scheduler: AsyncScheduler, cube_id: str, user_id: str | None) -> str | None:
    """The user who has a cube: the one that is given, else the one of the caller's; None if there is none.

    `AmbiguousIdError` if several have it.
    """
    check_ids(scheduler.runtime.limits, user_id=user_id, mem_cube_id=cube_id)
    if user_id is not None:
        current_principal.get().check_touch(user_id, [cube_id])
        return user_id
    owners = await _owners(scheduler, cube_id)
    if len(owners) > 1:
        raise AmbiguousIdError(cube_id, "cube")
    return owners[0] if owners else None


async def _owners(scheduler: AsyncScheduler, cube_id: str) -> list[str]:
    """The users of the caller who have a cube with this id: two, if there are more.

    For a caller of all users these are the user of the same name, those who have created it, and those who
    have memories in it.
    """
    await scheduler.open()
    principal = current_principal.get()
    cubes = scheduler.runtime.cubes
    found: set[str] = set()
    async for user_id in _possible_owners(scheduler, cube_id):
        if user_id in found or not principal.may_touch(user_id, cube_id) or user_id.startswith("_"):
            continue
        if await cubes.has(user_id, cube_id) or await _has_memories(scheduler, user_id, cube_id):
            found.add(user_id)
            if len(found) == MOST_OWNERS:
                break
    return sorted(found)


async def _possible_owners(scheduler: AsyncScheduler, cube_id: str) -> AsyncIterator[str]:
    """The users of the caller who may have a cube with this id; some of them twice."""
    runtime = scheduler.runtime
    users = current_principal.get().users
    for user_id in sorted({cube_id, *await runtime.cubes.owners_of(cube_id)} if users is None else users):
        yield user_id
    if users is None:
        async for user_id, _ in tenants_of(runtime.reads, mem_cube_id=cube_id):
            yield user_id


async def _has_memories(scheduler: AsyncScheduler, user_id: str, cube_id: str) -> bool:
    return bool((await scheduler.memory.page(user_id=user_id, mem_cube_id=cube_id, limit=1)).items)


async def _create(
    scheduler: AsyncScheduler,
    cube_id: str,
    name: str,
    owner_id: str,
    *,
    path: str | None = None,
    keep: bool = False,
) -> JSONResponse:
    check_ids(scheduler.runtime.limits, user_id=owner_id, mem_cube_id=cube_id)
    for field, value in (("owner_id", owner_id), ("cube_id", cube_id)):
        if value.startswith("_"):
            raise InvalidMessageError(field, value, "ids that begin with _ are reserved")
    current_principal.get().check_touch(owner_id, [cube_id])
    await scheduler.open()
    cube = await scheduler.runtime.cubes.create(cube_id, name, owner_id, path=path, keep=keep)
    return answer(CreatedCube(cube_id=cube.cube_id, cube_name=cube.cube_name, owner_id=cube.owner_id))


CREATING = (InvalidMessageError, InvalidSelectionError, ForeignDataError, BackendUnavailableError)

ROUTES = (
    Route(
        "POST",
        "/product/create_cube",
        create_cube,
        role=Role.USER,
        answer=CreatedCube,
        errors=CREATING,
        example=Example(body={"cube_name": "At home", "owner_id": "ann", "cube_id": "home"}),
    ),
    Route(
        "POST",
        "/product/register_cube",
        register_cube,
        role=Role.USER,
        reach="own",
        answer=CreatedCube,
        errors=CREATING,
        example=Example(body={"mem_cube_name_or_path": "home", "user_id": "ann"}),
    ),
    Route(
        "POST",
        "/product/exist_mem_cube_id",
        exist_mem_cube_id,
        role=Role.READ_ONLY,
        reach="own",
        answer=dict[str, bool],
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(body={"mem_cube_id": "ann"}),
    ),
    Route(
        "GET",
        "/product/cubes",
        list_cubes,
        role=Role.READ_ONLY,
        answer=CubePage,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(query={"user_id": "ann"}),
    ),
)
