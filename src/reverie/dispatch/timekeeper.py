"""The timekeeper: moves messages whose time has come: due, lost, or kept long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.service import LoopService
from reverie.memory.interface import Application

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.memory.interface import EffectStore
    from reverie.message import Message
    from reverie.webhooks.notices import Notices

__all__ = ["Timekeeper"]

LIMIT = 1000
"""The most messages of each kind that one step moves."""


class Timekeeper(LoopService):
    """Stages due messages, hands on lost ones, removes old statuses; then sleeps until more is due."""

    name = "timekeeper"

    def __init__(
        self,
        backend: Backend,
        store: EffectStore,
        on_ended: Callable[[Sequence[Message]], None],
        notices: Notices | None = None,
    ) -> None:
        """`on_ended` and `notices` are told of messages that failed: past a deadline, or lost too often."""
        super().__init__()
        self._queue = backend.queue
        self._store = None if backend.capabilities.applies_effects else store
        self._on_ended = on_ended
        self._notices = notices

    async def advance(self) -> bool:
        """Move the messages that are due now; the answer is whether there are more."""
        done = await self._queue.advance(LIMIT)
        self._next_due = done.next_due
        if done.ended and self._store is not None:
            # Two databases: a late answer of a worker that lost the message must find it closed.
            await self._store.apply(
                [
                    Application(message=ended.message, submitted_at=ended.submitted_at, close=True)
                    for ended in done.ended
                ]
            )
        if done.ended:
            self._on_ended([ended.message for ended in done.ended])
            if self._notices is not None:
                await self._notices.tell_ended(done.ended)
        return done.more

    async def _turn(self) -> None:
        if not await self.advance():
            await self._until_stopped(self._queue.wait((), self._next_due))
