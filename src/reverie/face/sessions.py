"""`scheduler.sessions`: the conversations of agents: list them, walk along one, delete one."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from reverie.access.paging import seen_page
from reverie.base.bridge import Bridge, blocking
from reverie.errors import InvalidSelectionError, MemoryDeletedError, UnknownMemoryError
from reverie.memory.query import Filters, SearchQuery
from reverie.memory.sessions import SessionPage, SessionQuery, SessionStatus
from reverie.message import check_ids
from reverie.principal import current_principal

if TYPE_CHECKING:
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.item import MemoryItem
    from reverie.memory.sessions import KeepsSessions, Session

    Rows = list[Session]
    Items = list[MemoryItem]  # `list` means a method below

__all__ = ["AsyncSessions", "Sessions"]

MOST_SESSIONS = 1000
MOST_ITEMS = 1000
"""The most items of one timeline, and of one step of a deletion."""


class AsyncSessions:
    """The sessions of users, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def list(
        self,
        *,
        user_id: str,
        mem_cube_id: str | None = None,
        status: SessionStatus | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """One page of a user's sessions, the one with the latest hook first."""
        if not 1 <= limit <= MOST_SESSIONS:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_SESSIONS}")
        if status is not None and status not in get_args(SessionStatus):
            raise InvalidSelectionError(
                f"status={status!r}: must be one of {', '.join(get_args(SessionStatus))}"
            )
        store = await self._store(user_id)

        async def read(after: str | None, limit: int) -> tuple[Rows, str | None]:
            query = SessionQuery(
                user_id=user_id, mem_cube_id=mem_cube_id, status=status, after=after, limit=limit
            )
            page = await store.sessions(query)
            return page.sessions, page.next

        sessions, follows = await seen_page(read, after, limit, _sees)
        return SessionPage(sessions=sessions, next=follows)

    async def get(self, session_id: str, *, user_id: str) -> Session | None:
        """One session; None if it is not known."""
        found = await (await self._store(user_id)).session(user_id, session_id)
        return found if found is not None and _sees(found) else None

    async def delete(self, session_id: str, *, user_id: str) -> int:
        """Delete a session and all memories of it; the answer is how many memories were deleted.

        What the session is still working on is not known here: delete it after its end.
        """
        store = await self._store(user_id)
        deleted = 0
        while items := await store.session_items(user_id, session_id, MOST_ITEMS):
            before = deleted
            for item in items:
                if not self._scheduler.runtime.reads.sees(item):
                    continue
                try:
                    await self._scheduler.memory.delete(item.id, user_id=user_id)
                except (MemoryDeletedError, UnknownMemoryError):
                    continue  # with an item that it was derived from
                deleted += 1
            if deleted == before:
                break
        known = await store.session(user_id, session_id)
        if known is not None and _sees(known):
            await store.forget_session(user_id, session_id)
        return deleted

    async def timeline(
        self,
        *,
        user_id: str,
        mem_cube_id: str | None = None,
        session_id: str | None = None,
        around: str | None = None,
        before: int = 10,
        after: int = 10,
        file: str | None = None,
    ) -> Items:
        """Memories in their order: of a session, around one memory, or about a file. Name one of these."""
        for name, number in (("before", before), ("after", after)):
            if not 0 <= number <= MOST_ITEMS:
                raise InvalidSelectionError(f"{name}={number}: must be 0 to {MOST_ITEMS}")
        if sum(given is not None for given in (session_id, around, file)) != 1:
            raise InvalidSelectionError("name one of session_id, around and file")
        await self._store(user_id)
        if around is not None:
            item = await self._scheduler.memory.get(around, user_id=user_id)
            if item is None:
                raise UnknownMemoryError(around)
            return await self._around(item, mem_cube_id, before, after)
        if session_id is not None:
            check_ids(self._scheduler.runtime.limits, session_id=session_id)
            found = await self._of_session(user_id, mem_cube_id, session_id)
            return found[max(0, len(found) - before - after - 1) :]
        return await self._about(user_id, mem_cube_id, file or "", before + after)

    async def _around(self, item: MemoryItem, cube: str | None, before: int, after: int) -> Items:
        """The items before and after one in its session; the item alone if it belongs to none."""
        near = [item]
        if item.session_id is not None:
            near = await self._of_session(item.user_id, cube, item.session_id)
        place = next((number for number, one in enumerate(near) if one.id == item.id), None)
        return [item] if place is None else near[max(0, place - before) : place + after + 1]

    async def _of_session(self, user_id: str, cube: str | None, session_id: str) -> Items:
        """The last items of a session that the caller may see, in their order."""
        runtime = self._scheduler.runtime
        items = await runtime.door.sessions.session_items(user_id, session_id, MOST_ITEMS)
        seen = [item for item in items if cube in {None, item.mem_cube_id} and runtime.reads.sees(item)]
        return sorted(seen, key=_place)

    async def _about(self, user_id: str, mem_cube_id: str | None, file: str, limit: int) -> Items:
        query = SearchQuery(
            text=file,
            user_id=user_id,
            mem_cube_ids=() if mem_cube_id is None else (mem_cube_id,),
            limit=max(1, limit),
            filters=Filters(tags=(f"file:{file}",)),
            diversity="no",
        )
        found = await self._scheduler.runtime.reads.search(query)
        return sorted((hit.item for hit in found.hits), key=_place)

    async def _store(self, user_id: str) -> KeepsSessions:
        check_ids(self._scheduler.runtime.limits, user_id=user_id)
        await self._scheduler.open()
        return self._scheduler.runtime.door.sessions


class Sessions:
    """Like `AsyncSessions`, for code that blocks."""

    def __init__(self, inner: AsyncSessions, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    list = blocking(AsyncSessions.list)
    get = blocking(AsyncSessions.get)
    delete = blocking(AsyncSessions.delete)
    timeline = blocking(AsyncSessions.timeline)


def _sees(session: Session) -> bool:
    return current_principal.get().may_touch(session.user_id, session.mem_cube_id)


def _place(item: MemoryItem) -> tuple[int, int]:
    """The place in a timeline: when it happened, then when it was learned; else items keep their order."""
    return item.held_at, item.created_at
