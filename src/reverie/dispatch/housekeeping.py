"""What handlers of housekeeping ask their worker, as plain values, and the answers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from reverie.errors import ReverieError
from reverie.memory.housekeeping import KeepsHouse, Which, changed_cubes
from reverie.memory.interface import KeepsIndex, Tenant

if TYPE_CHECKING:
    from reverie.memory.interface import MemoryStore

__all__ = [
    "CountItems",
    "HouseRequest",
    "ListCubes",
    "ListSomeTenants",
    "ReadExpired",
    "RefreshIndex",
    "answer_house",
]


class ReadExpired(msgspec.Struct, frozen=True, tag=True):
    """Read the items of one tenant whose time is over: ids and versions, the newest first."""

    answer: ClassVar[Any] = list[tuple[str, int]]
    user_id: str
    mem_cube_id: str
    rules: dict[str, int]
    limit: int


class CountItems(msgspec.Struct, frozen=True, tag=True):
    """Count the living items of one tenant: kind, tier, items."""

    answer: ClassVar[Any] = list[tuple[str, str, int]]
    user_id: str
    mem_cube_id: str


class ListCubes(msgspec.Struct, frozen=True, tag=True):
    """List the cubes of the message's user that have memories."""

    answer: ClassVar[Any] = list[str]
    user_id: str
    mem_cube_id: str
    changed_for: str | None = None
    """Only those that have changed since upkeep of this label has looked at them."""


class RefreshIndex(msgspec.Struct, frozen=True, tag=True):
    """Ask the indexer for a pass."""

    answer: ClassVar[Any] = None
    user_id: str
    mem_cube_id: str


class ListSomeTenants(msgspec.Struct, frozen=True, tag=True):
    """List tenants for which there is something to do. Only for messages of `_system`."""

    answer: ClassVar[Any] = list[Tenant]
    which: Which
    after: Tenant | None
    limit: int


HouseRequest = ReadExpired | CountItems | ListCubes | RefreshIndex | ListSomeTenants


async def answer_house(store: MemoryStore, request: HouseRequest, now: int) -> Any:
    """The answer of a store to a request, whose tenant was checked; `now` is the time."""
    if isinstance(request, RefreshIndex):
        if isinstance(store, KeepsIndex):
            store.try_late_again()
            store.on_unindexed()
        return None
    if not isinstance(store, KeepsHouse):
        raise ReverieError(f"the memory store {type(store).__name__} cannot be cleaned up (KeepsHouse)")
    if isinstance(request, ListSomeTenants):
        return await store.some_tenants(request.which, request.after, now, request.limit)
    tenant = (request.user_id, request.mem_cube_id)
    if isinstance(request, ReadExpired):
        return await store.expired(tenant, now, request.rules, request.limit)
    if isinstance(request, CountItems):
        return await store.counts(tenant)
    if request.changed_for is None:
        return await store.cubes(request.user_id)
    return await changed_cubes(store, request.user_id, request.changed_for)
