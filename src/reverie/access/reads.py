"""The reads of memories on behalf of a caller: the one place where keys and governance hide memories.

The caller is `current_principal`. A memory that the caller may not read looks like one that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.access.governance import AllowAll
from reverie.access.paging import seen_page
from reverie.memory.finding import fitted
from reverie.memory.interface import MemoryPage, PageQuery
from reverie.memory.kept_searches import search
from reverie.memory.query import Found
from reverie.memory.tenants import tenants_of
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from reverie.access.governance import Governance
    from reverie.memory.interface import MemoryStore, Tenant
    from reverie.memory.item import LinkedItem, MemoryItem, Revision
    from reverie.memory.query import Hit, SearchQuery
    from reverie.principal import Principal

__all__ = ["MemoryReads"]

WIDER = 3
"""How many times as many hits as are asked for a governed search looks at first."""
MOST_LOOKED_AT = 1000
"""How many hits a governed search looks at to find enough that may be read."""


class MemoryReads:
    """Reads a memory store as the present caller may see it."""

    def __init__(self, store: MemoryStore, governance: Governance) -> None:
        self._store = store
        self._governance = governance
        self.is_governed = not isinstance(governance, AllowAll)
        """Whether an object of the installation's own decides who may read which memory."""

    def sees(self, item: MemoryItem) -> bool:
        """Whether the present caller may read a memory."""
        principal = current_principal.get()
        if not principal.may_touch(item.user_id, item.mem_cube_id):
            return False
        return not self.is_governed or self._governance.may_read(principal, item)

    def _sees_all(self, principal: Principal) -> bool:
        """Whether a caller may read all memories of the users that the caller may touch."""
        return principal.cubes is None and not self.is_governed

    def check_ungoverned(self, what: str) -> None:
        """Under governance, refuse callers below admin; `what` goes through hidden memories, too."""
        if self.is_governed:
            current_principal.get().check_role(Role.ADMIN, f"{what} under governance")

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        item = await self._store.get(user_id, memory_id)
        return item if item is not None and self.sees(item) else None

    async def is_deleted(self, user_id: str, memory_id: str) -> bool:
        """See `MemoryStore.is_deleted`. Nobody knows in which cube a deleted memory was."""
        principal = current_principal.get()
        if principal.cubes is not None or not principal.may_touch(user_id):
            return False
        return await self._store.is_deleted(user_id, memory_id)

    async def links(self, user_id: str, memory_id: str) -> list[LinkedItem]:
        """See `MemoryStore.links`; links to memories that may not be read are left out."""
        if not await self._may_see(user_id, memory_id):
            return []
        return [link for link in await self._store.links(user_id, memory_id) if self.sees(link.item)]

    async def history(self, user_id: str, memory_id: str) -> list[Revision]:
        """See `MemoryStore.history`."""
        if not await self._may_see(user_id, memory_id):
            return []
        return await self._store.history(user_id, memory_id)

    async def tenants(self, after: Tenant | None, limit: int) -> list[Tenant]:
        """See `MemoryStore.tenants`."""
        return await self._store.tenants(after, limit)

    async def cubes(self, user_id: str, after: str, limit: int) -> list[str]:
        """The first cubes of a user after `after`, by name, in which the caller may read a memory."""
        principal = current_principal.get()
        found: list[str] = []
        async for cube in self._cubes(principal, user_id, after):
            query = PageQuery(user_id=user_id, mem_cube_id=cube, limit=1)
            if self._sees_all(principal) or (await self.page(query)).items:
                found.append(cube)
                if len(found) == limit:
                    break
        return found

    async def _cubes(self, principal: Principal, user_id: str, after: str) -> AsyncIterator[str]:
        """The cubes that a caller's key names, or else all cubes of a user that have memories."""
        if principal.cubes is not None:
            for cube in sorted(principal.cubes):
                if cube > after:
                    yield cube
            return
        async for _, cube in tenants_of(self._store, user_id=user_id, first=(user_id, after)):
            if cube > after:
                yield cube

    async def _may_see(self, user_id: str, memory_id: str) -> bool:
        principal = current_principal.get()
        if not principal.may_touch(user_id):
            return False
        return self._sees_all(principal) or await self.get(user_id, memory_id) is not None

    async def page(self, query: PageQuery) -> MemoryPage:
        """See `MemoryStore.page`; memories that may be read take the place of those that may not."""
        principal = current_principal.get()
        if not principal.may_touch(query.user_id):
            return MemoryPage(items=[], next=None)
        if self._sees_all(principal):
            return await self._store.page(query)

        async def read(after: str | None, limit: int) -> tuple[list[MemoryItem], str | None]:
            page = await self._store.page(msgspec.structs.replace(query, after=after, limit=limit))
            return page.items, page.next

        items, follows = await seen_page(read, query.after, query.limit, self.sees)
        return MemoryPage(items=items, next=follows)

    async def search(self, query: SearchQuery) -> Found:
        """See `MemoryStore.search`; what may not be read is neither found nor counted."""
        principal = current_principal.get()
        if not principal.may_touch(query.user_id):
            return Found()
        if self._sees_all(principal):
            return await search(self._store, query)
        if principal.cubes is not None:
            own = [cube for cube in query.mem_cube_ids or sorted(principal.cubes) if cube in principal.cubes]
            if not own:
                return Found()
            query = msgspec.structs.replace(query, mem_cube_ids=tuple(own))
        if not self.is_governed:
            return self._readable(await search(self._store, query))
        return await self._search_wider(query)

    async def _search_wider(self, query: SearchQuery) -> Found:
        """Search for more hits than are asked for, until enough may be read, and choose among these."""
        wide = msgspec.structs.replace(query, threshold=None, max_tokens=None, limit=0)
        limit, preferences = query.limit * WIDER, query.preferences * WIDER
        while True:
            limit, preferences = min(limit, MOST_LOOKED_AT), min(preferences, MOST_LOOKED_AT)
            wide = msgspec.structs.replace(wide, limit=limit, preferences=preferences)
            found = await self._store.search(wide)
            seen = self._readable(found)
            is_enough = len(seen.hits) >= query.limit or len(found.hits) < limit
            is_enough &= len(seen.preferences) >= query.preferences or len(found.preferences) < preferences
            if is_enough or max(limit, preferences) >= MOST_LOOKED_AT:
                break
            limit, preferences = limit * WIDER, preferences * WIDER
        wanted = seen.preferences[: query.preferences] if query.preferences else seen.preferences
        return fitted(query, msgspec.structs.replace(seen, preferences=wanted))

    def _readable(self, found: Found) -> Found:
        """The hits that may be read, each with the neighbours and linked memories that may be read."""
        return msgspec.structs.replace(
            found, hits=self._hits(found.hits), preferences=self._hits(found.preferences)
        )

    def _hits(self, hits: Sequence[Hit]) -> list[Hit]:
        return [
            msgspec.structs.replace(
                hit,
                neighbours=tuple(filter(self.sees, hit.neighbours)),
                linked=tuple(filter(self.sees, hit.linked)),
            )
            for hit in hits
            if self.sees(hit.item)
        ]
