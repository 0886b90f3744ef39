"""The buffer sweeper: finds buffers whose run was lost, and prunes rows that are done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import InvalidMessageError, QueueFullError
from reverie.memory.buffers import KeepsBuffers, read_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.base.clock import Clock
    from reverie.memory.buffers import BufferKey, BufferSettings
    from reverie.memory.interface import MemoryStore
    from reverie.message import Message

    Submit = Callable[[Sequence[Message]], Awaitable[Any]]

__all__ = ["BufferSweeper"]

log = get_logger(__name__)

BUFFERS_AT_ONCE = 1000
"""The most buffers that one sweep submits messages for; the others follow in the next sweeps."""
PRUNED_AT_ONCE = 1000
"""The most rows that are removed in one transaction."""


class BufferSweeper(LoopService):
    """Submits a message for each buffer that is full or too old.

    The run of a full buffer is asked for when its last row is put, that of an old one is due by then. The
    sweeper finds buffers where that was forgotten, because a process has died in between.
    """

    name = "buffer-sweeper"

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        settings: BufferSettings,
        *,
        submit: Submit,
        wanted: Callable[[], bool],
    ) -> None:
        """`wanted` is asked at the start: whether this process reads buffers at all."""
        super().__init__()
        self._store = store if isinstance(store, KeepsBuffers) else None
        self._clock = clock
        self._settings = settings
        self._submit = submit
        self._wanted = wanted

    async def start(self) -> None:
        """See `Service.start`. Without buffers, or if others read them, there is nothing to do."""
        if self._store is not None and self._wanted():
            await super().start()

    async def sweep(self) -> int:
        """Submit a message for each buffer that is full or too old; the answer is how many were found."""
        assert self._store is not None
        settings = self._settings
        late_ms = round((settings.max_age_s + settings.sweep_s) * 1000)  # the run that is due comes first
        found = await self._store.full_buffers(
            tokens=settings.max_tokens, before=self._clock.now() - late_ms, limit=BUFFERS_AT_ONCE
        )
        await asyncio.gather(*(self._ask_for_reading(state.key) for state in found))
        return len(found)

    async def _ask_for_reading(self, key: BufferKey) -> None:
        try:
            await self._submit([read_message(key)])  # alone, because a refusal of this tenant hits no other
        except (QueueFullError, InvalidMessageError) as error:
            log.warning("buffer.not_submitted", error=str(error), hint="tried again in the next sweep")

    async def prune(self) -> int:
        """Remove rows that have been done for long; the answer is how many.

        A row is kept at least as long as a lease: a run that has lost the row must find it done.
        """
        assert self._store is not None
        kept_s = max(self._settings.retention_s, self._settings.lease_s)
        before = self._clock.now() - round(kept_s * 1000)
        pruned = 0
        while not self._stopping.is_set():
            count = await self._store.prune_buffers(before, PRUNED_AT_ONCE)
            pruned += count
            if count < PRUNED_AT_ONCE:
                break
        return pruned

    async def _turn(self) -> None:
        await self.sweep()
        await self.prune()
        await self._rest(self._clock, self._settings.sweep_s)
