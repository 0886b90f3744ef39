"""Notes of searches: each search of a running scheduler is handed over as a `query` message, best effort.

A search never waits for its note, and never fails because of it. Notes of many searches are handed over
together, a few times a second. They are dropped while too many wait, and while the queue is more than half
full.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.message import Message

__all__ = ["QueryNotes"]

log = get_logger(__name__)

MOST_WAITING = 1000
"""Notes that wait to be handed over; further ones are dropped."""
REST_S = 0.25
"""How long notes are collected after others were handed over. The first one does not wait."""
END_S = 1.0
"""How long the last notes may take to be handed over at the end."""


class QueryNotes:
    """Hands notes over, all that have come up since the last time together."""

    def __init__(
        self,
        submit: Callable[[Sequence[Message]], Awaitable[object]],
        is_half_full: Callable[[], Awaitable[bool]],
    ) -> None:
        self._submit = submit
        self._is_half_full = is_half_full
        self._waiting: list[Message] = []
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, messages: Sequence[Message]) -> None:
        """Hand messages over soon. Call this on the event loop."""
        if len(self._waiting) + len(messages) > MOST_WAITING:
            return
        self._waiting += messages
        if self._task is None or self._task.done():
            self._closing = asyncio.Event()  # the last task may have been on another event loop
            self._task = asyncio.create_task(self._hand_over())

    async def close(self) -> None:
        """Wait a moment for the last notes."""
        if self._task is not None and not self._task.done():
            self._closing.set()
            await asyncio.wait([self._task], timeout=END_S)
            self._task.cancel()
        self._task = None

    async def _hand_over(self) -> None:
        while self._waiting:
            messages, self._waiting = self._waiting, []
            try:
                if not await self._is_half_full():
                    await self._submit(messages)
            except ReverieError as error:
                log.info("query.not_noted", queries=len(messages), kind=type(error).__name__)
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_S):
                    await self._closing.wait()
