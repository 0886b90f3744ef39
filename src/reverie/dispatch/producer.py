"""The producer: claims work as long as there is room for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reverie.failpoints import failpoint
from reverie.service import LoopService

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim, ClaimRequest
    from reverie.dispatch.pauses import Pauses

__all__ = ["Producer"]


class Producer(LoopService):
    """Asks the queue for what the worker has room for, and hands it over."""

    name = "producer"

    def __init__(
        self,
        queue: Queue,
        request: Callable[[], ClaimRequest],
        take: Callable[[Sequence[Claim]], None],
        pauses: Pauses,
    ) -> None:
        """`request` says what there is room for now; `take` is given what was claimed.

        It looks again when one of the `pauses` ends.
        """
        super().__init__()
        self._queue = queue
        self._request = request
        self._take = take
        self._pauses = pauses
        self._room = asyncio.Event()

    def room(self) -> None:
        """There is more room than before."""
        self._room.set()

    async def _turn(self) -> None:
        self._room.clear()
        pause_ends = self._pauses.next_end()  # known before, lest one ends while the queue is asked
        request = self._request()
        if request.wants and (claims := await self._queue.claim(request)):
            failpoint("after_claim")
            self._take(claims)
            await asyncio.sleep(0.001)  # what was taken begins first; to claim more would delay it
            return
        waits: list[Coroutine[Any, Any, Any]] = [self._room.wait()]
        if request.wants:
            waits.append(self._queue.wait(tuple(request.wants), None))
        if pause_ends is not None:
            waits.append(self._pauses.wait(pause_ends))
        await self._until_stopped(*waits)
