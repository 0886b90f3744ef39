"""Walking through the memories of several tenants, in the order of the tenants."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.errors import InvalidSelectionError
from reverie.memory.interface import MemoryPage, PageQuery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.memory.interface import ListsMemories, Tenant
    from reverie.memory.item import MemoryItem

__all__ = ["page_of_all", "tenants_of"]

AT_ONCE = 500
"""How many tenants are read in one step."""


async def tenants_of(
    store: ListsMemories,
    *,
    user_id: str | None = None,
    mem_cube_id: str | None = None,
    first: Tenant | None = None,
) -> AsyncIterator[Tenant]:
    """The tenants with memories, in order, from `first` on; only those of a user and of a cube if given."""
    after = first
    if first is not None:
        yield first
    elif user_id is not None:
        after = (user_id, "")
    while True:
        tenants = await store.tenants(after, AT_ONCE)
        for tenant in tenants:
            if user_id is not None and tenant[0] != user_id:
                return
            if mem_cube_id in {None, tenant[1]}:
                yield tenant
        if len(tenants) < AT_ONCE:
            return
        after = tenants[-1]


async def page_of_all(
    store: ListsMemories,
    *,
    mem_cube_id: str | None = None,
    after: str | None = None,
    limit: int,
    **chosen: Any,
) -> MemoryPage:
    """One page of the memories of all users; `chosen` are further fields of `PageQuery`."""
    place = None if after is None else _decode(after)
    first = None if place is None else (place[0], place[1])
    items: list[MemoryItem] = []
    full: str | None = None
    async for tenant in tenants_of(store, mem_cube_id=mem_cube_id, first=first):
        if tenant == first and place is not None and place[2] is None:
            continue  # the page before has ended with the last memory of this tenant
        page = await store.page(
            PageQuery(
                user_id=tenant[0],
                mem_cube_id=tenant[1],
                after=place[2] if place is not None and tenant == first else None,
                limit=1 if full else limit - len(items),
                **chosen,
            )
        )
        if full and page.items:
            return MemoryPage(items=items, next=full)
        items += page.items
        if page.next is not None:
            return MemoryPage(items=items, next=_encode(tenant, page.next))
        if len(items) == limit and full is None:
            full = _encode(tenant, None)
    return MemoryPage(items=items, next=None)


def _encode(tenant: Tenant, after: str | None) -> str:
    return urlsafe_b64encode(msgspec.json.encode([*tenant, after])).decode().rstrip("=")


def _decode(cursor: str) -> tuple[str, str, str | None]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return msgspec.json.decode(urlsafe_b64decode(padded), type=tuple[str, str, str | None])
    except (binascii.Error, ValueError) as error:
        raise InvalidSelectionError(f"cursor={cursor!r}: must be the `next` of the page before") from error
