"""Whole cubes: the routes that list all memories of a user, or those of a cube page by page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.answers import AllInCube, FoundInCube, Listed
from reverie.api.cubes import owner_of_cube
from reverie.api.envelope import answer
from reverie.api.memory_filters import read_filter
from reverie.api.memory_models import PREFERENCE, AllRequest, ListRequest
from reverie.api.memory_shape import memory_of, type_of
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    ForeignDataError,
    InvalidMessageError,
    InvalidSelectionError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from reverie.memory.item import MemoryItem

__all__ = ["ROUTES", "Window", "page_of"]

PAGE = 1000
"""How many memories are read at once."""
MOST_LISTED = 10_000
"""How many memories one answer has at most. `get_memory` lists more of them page by page."""
TIERS_OF_TYPE = {"act_mem": ("activation",), "param_mem": ("parameter",), "para_mem": ("parameter",)}
TEXT_TIERS = ("working", "long_term", "archive")
"""The tiers of `text_mem`."""
TITLE = 40
"""How many characters of a memory are the name of its node."""


async def get_all(scheduler: AsyncScheduler, client: Request, request: AllRequest) -> JSONResponse:
    """All memories of a user, by cube; of very many the first, and the message says so."""
    return await unless_gone(client, _get_all(scheduler, request))


async def get_memories(scheduler: AsyncScheduler, client: Request, request: ListRequest) -> JSONResponse:
    """The memories of a cube in the order in which they were learned, all of them or one page."""
    return await unless_gone(client, _get_memories(scheduler, request))


async def _get_all(scheduler: AsyncScheduler, request: AllRequest) -> JSONResponse:
    tiers = TIERS_OF_TYPE.get(request.memory_type, TEXT_TIERS)
    message = "ok"
    items: list[MemoryItem] = []
    if request.search_query:
        found = await scheduler.memory.search(
            request.search_query,
            user_id=request.user_id,
            mem_cube_ids=request.mem_cube_ids or (),
            tiers=tiers,
            limit=100,
            note=False,
        )
        items = [hit.item for hit in found.hits]
    else:
        async for item in _walk(scheduler, request.user_id, request.mem_cube_ids or (None,), tiers):
            if len(items) == MOST_LISTED:
                message = f"these are the first {MOST_LISTED} memories: get_memory lists all, page by page"
                break
            items.append(item)
    cubes: dict[str, list[MemoryItem]] = {}
    for item in items:
        cubes.setdefault(item.mem_cube_id, []).append(item)
    return answer([_whole(cube, own) for cube, own in cubes.items()], message)


async def _get_memories(scheduler: AsyncScheduler, request: ListRequest) -> JSONResponse:
    cube = request.mem_cube_id
    user_id = await owner_of_cube(scheduler, cube, request.user_id)
    size = request.page_size or MOST_LISTED
    texts, preferences = await page_of(
        scheduler, user_id, cube, given=request.filter, page=request.page or 1, size=size
    )
    listed: Listed = {
        "text_mem": [_found(cube, texts)],
        "pref_mem": [_found(cube, preferences)] if request.include_preference else [],
        "tool_mem": [],
        "skill_mem": [],
    }
    is_cut = request.page_size is None and max(texts.total, preferences.total) > MOST_LISTED
    return answer(listed, f"a page has at most {MOST_LISTED} memories: ask for pages" if is_cut else "ok")


class Window:
    """The part of many memories that is on one page."""

    def __init__(self, first: int, size: int) -> None:
        self._range = range(first, first + size)
        self.items: list[MemoryItem] = []
        self.total = 0

    def pass_by(self, item: MemoryItem) -> None:
        """Count a memory, and keep it if it is on the page."""
        if self.total in self._range:
            self.items.append(item)
        self.total += 1


async def page_of(
    scheduler: AsyncScheduler,
    user_id: str | None,
    cube: str | None,
    *,
    given: dict[str, Any] | None,
    page: int,
    size: int,
) -> tuple[Window, Window]:
    """A page of the memories that pass a filter, and one of the preferences; without a cube, of all cubes."""
    filters = read_filter(given or {})
    first = (page - 1) * size
    texts, preferences = Window(first, size), Window(first, size)
    if user_id is not None:
        async for item in _walk(scheduler, user_id, (cube,), TEXT_TIERS):
            if filters.allow(item):
                (preferences if item.kind == PREFERENCE else texts).pass_by(item)
    return texts, preferences


def _found(cube: str, window: Window) -> FoundInCube:
    return {
        "cube_id": cube,
        "memories": [memory_of(item) for item in window.items],
        "total_nodes": window.total,
    }


async def _walk(
    scheduler: AsyncScheduler, user_id: str, cubes: Iterable[str | None], tiers: Sequence[str]
) -> AsyncIterator[MemoryItem]:
    """The memories of cubes of a user, each cube in the order in which they were learned."""
    for cube in cubes:
        after: str | None = None
        while True:
            page = await scheduler.memory.page(
                user_id=user_id, mem_cube_id=cube, tiers=tiers, after=after, limit=PAGE
            )
            for item in page.items:
                yield item
            after = page.next
            if after is None:
                break


def _whole(cube: str, items: Sequence[MemoryItem]) -> AllInCube:
    by_type: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        kind = type_of(item)
        node = {"id": item.id, "node_name": item.text[:TITLE], "memory_type": kind, "children": []}
        by_type.setdefault(kind, []).append(node)
    children = [
        {"id": kind, "node_name": kind, "memory_type": kind, "children": nodes}
        for kind, nodes in by_type.items()
    ]
    return {
        "cube_id": cube,
        "memories": [
            {
                "nodes": [memory_of(item) for item in items],
                "tree_structure": {"id": "root", "node_name": cube, "children": children},
            }
        ],
        "memory_statistics": dict(Counter(map(type_of, items))),
    }


ROUTES = (
    Route(
        "POST",
        "/product/get_all",
        get_all,
        role=Role.READ_ONLY,
        answer=list[AllInCube],
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(body={"user_id": "ann", "memory_type": "text_mem"}),
    ),
    Route(
        "POST",
        "/product/get_memory",
        get_memories,
        role=Role.READ_ONLY,
        reach="own",
        answer=Listed,
        errors=(
            InvalidMessageError,
            InvalidSelectionError,
            ForeignDataError,
            AmbiguousIdError,
            BackendUnavailableError,
        ),
        example=Example(body={"mem_cube_id": "ann", "user_id": "ann", "page": 1, "page_size": 10}),
    ),
)
