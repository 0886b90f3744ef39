"""`scheduler.memory`: adds and finds memories, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.base.bridge import Bridge, blocking, submitting
from reverie.capture.intake import add_message
from reverie.errors import InvalidMessageError
from reverie.memory.interface import SearchQuery
from reverie.message import check_ids, new_item_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Submitted
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.interface import Hits, MemoryItem
    from reverie.turn import Turn

__all__ = ["AsyncMemory", "Memory"]


class AsyncMemory:
    """Adds and finds memories, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def add(
        self,
        text: str | Sequence[Turn],
        *,
        user_id: str,
        mem_cube_id: str = "",
        item_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Submitted:
        """Submit something to remember. When this returns, it is kept; soon after, a search finds it."""
        message = add_message(
            text,
            user_id=user_id,
            mem_cube_id=mem_cube_id,
            item_id=item_id or new_item_id(),
            session_id=session_id,
            task_id=task_id,
            info=info,
        )
        return (await self._scheduler.submit_messages([message]))[0]

    async def search(
        self, query: str, *, user_id: str, mem_cube_ids: Sequence[str] = (), limit: int = 10
    ) -> Hits:
        """Find the memories of a user that match a query best, best first.

        Of a query with very many words the rarest are searched for; `words_left_out` of the answer counts the
        others. `ReadTimeoutError` if the search takes longer than `memory.search_timeout_s`.
        """
        runtime = self._scheduler.runtime
        check_ids(runtime.limits, user_id=user_id)
        for cube in mem_cube_ids:
            check_ids(runtime.limits, mem_cube_id=cube)
        if len(query) > runtime.limits.max_content_bytes:
            allowed = runtime.limits.max_content_bytes
            raise InvalidMessageError(
                "query", query, f"may have at most {allowed} characters (limits.max_content_bytes)"
            )
        if not runtime.opened:
            await runtime.open()
        search = SearchQuery(text=query, user_id=user_id, mem_cube_ids=tuple(mem_cube_ids), limit=limit)
        return await runtime.store.search(search)

    async def get(self, memory_id: str, *, user_id: str) -> MemoryItem | None:
        """Read one memory of a user; None if it is unknown."""
        check_ids(self._scheduler.runtime.limits, user_id=user_id, memory_id=memory_id)
        await self._scheduler.open()
        return await self._scheduler.runtime.store.get(user_id, memory_id)


class Memory:
    """Like `AsyncMemory`, for code that blocks."""

    def __init__(self, inner: AsyncMemory, bridge: Bridge, direct: Callable[[], AsyncMemory | None]) -> None:
        self._inner = inner
        self._bridge = bridge
        self._direct = direct

    add = submitting(AsyncMemory.add)
    search = blocking(AsyncMemory.search)
    get = blocking(AsyncMemory.get)
