"""The producer: claims messages as long as the worker has room for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim, ClaimRequest
    from reverie.dispatch.pauses import Pauses

__all__ = ["Producer"]

log = get_logger(__name__)

BEGIN_S = 0.001
"""The pause after a claim, in which the claimed messages begin: the next claim would delay them."""


class Producer(LoopService):
    """Asks the queue for as many messages as the worker has room for, and hands them to the worker."""

    name = "producer"

    def __init__(
        self,
        queue: Queue,
        request: Callable[[], ClaimRequest],
        take: Callable[[Sequence[Claim]], None],
        pauses: Pauses,
    ) -> None:
        """`request` says what there is room for now; `take` is given the claims.

        The producer asks again when one of the `pauses` ends.
        """
        super().__init__()
        self._queue = queue
        self._request = request
        self._take = take
        self._pauses = pauses
        self._room = asyncio.Event()
        self._last: ClaimRequest | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`. Claims of the last standing request are run like the others."""
        await super().stop(grace_s)
        last, self._last = self._last, None
        if last is None:
            return
        if self._waiting is not None:
            await asyncio.wait({self._waiting})
        try:
            self._hand_over(await self._queue.claim(msgspec.structs.replace(last, wants={}, stands=False)))
        except ReverieError as error:
            log.info("producer.left_without_notice", error=str(error))

    def room(self) -> None:
        """Ask again, because there is more room than before."""
        self._room.set()

    async def _turn(self) -> None:
        self._room.clear()
        # Read this first, because a pause may end while the queue is asked.
        pause_ends = self._pauses.next_end() if self._pauses.labels else None
        request = self._last = msgspec.structs.replace(self._request(), stands=True)
        if request.wants:
            claims = await self._queue.claim(request)
            self._hand_over(claims)
            if claims:
                await asyncio.sleep(BEGIN_S)
            if request.enough is not None and len(claims) >= request.enough:
                return  # claim again at once, because there is surely more
        waits: list[Coroutine[Any, Any, Any]] = [self._room.wait()]
        if request.wants:
            waits.append(self._wait_for_work(tuple(request.wants)))
        if pause_ends is not None:
            waits.append(self._pauses.wait(pause_ends))
        await self._until_stopped(*waits)

    async def _wait_for_work(self, labels: Sequence[str]) -> None:
        self._waiting = asyncio.current_task()
        claims = await self._queue.wait(labels, None)
        self._hand_over(claims)
        if claims:
            await asyncio.sleep(BEGIN_S)

    def _hand_over(self, claims: Sequence[Claim]) -> None:
        """Give the worker its claims."""
        if claims:
            failpoint("after_claim")
            self._take(claims)
