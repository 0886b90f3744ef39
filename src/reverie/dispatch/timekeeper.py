"""The timekeeper: does what time asks for, at the moment it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.dispatch.service import LoopService

if TYPE_CHECKING:
    from reverie.backends.interface import Queue

__all__ = ["Timekeeper"]

LIMIT = 1000
"""How many messages of each kind one step moves."""


class Timekeeper(LoopService):
    """Stages what is due, hands on what was lost, forgets what was kept long enough; then sleeps."""

    name = "timekeeper"

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    async def _turn(self) -> None:
        done = await self._queue.advance(LIMIT)
        if not done.more:
            await self._until_stopped(self._queue.wait((), done.next_due))
