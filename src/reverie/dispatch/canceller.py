"""The canceller: learns of cancel requests for running messages at once, not only at the next renewal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.wakeup import CANCELLED
from reverie.base.service import LoopService

if TYPE_CHECKING:
    from reverie.backends.interface import Queue
    from reverie.dispatch.renewer import Renewer

__all__ = ["Canceller"]


class Canceller(LoopService):
    """Lets the renewer ask for cancel requests as soon as the queue announces some."""

    name = "canceller"

    def __init__(self, queue: Queue, renewer: Renewer) -> None:
        super().__init__()
        self._queue = queue
        self._renewer = renewer

    async def _turn(self) -> None:
        await self._until_stopped(self._queue.wait((CANCELLED,), None))
        if self._renewer.has_claims:
            await self._renewer.renew()
