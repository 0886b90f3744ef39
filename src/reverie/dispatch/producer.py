"""The producer: claims work as long as there is room for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reverie.dispatch.service import LoopService
from reverie.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim, ClaimRequest

__all__ = ["Producer"]


class Producer(LoopService):
    """Asks the queue for what the worker has room for, and hands it over."""

    name = "producer"

    def __init__(
        self,
        queue: Queue,
        request: Callable[[], ClaimRequest],
        take: Callable[[Sequence[Claim]], None],
    ) -> None:
        """`request` says what there is room for now; `take` is given what was claimed."""
        super().__init__()
        self._queue = queue
        self._request = request
        self._take = take
        self._room = asyncio.Event()

    def room(self) -> None:
        """There is more room than before."""
        self._room.set()

    async def _turn(self) -> None:
        self._room.clear()
        request = self._request()
        if not request.wants:
            await self._until_stopped(self._room.wait())
        elif claims := await self._queue.claim(request):
            failpoint("after_claim")
            self._take(claims)
        else:
            await self._until_stopped(self._queue.wait(tuple(request.wants), None), self._room.wait())
