"""The indexer: brings the index of the store up to date in the background, batch by batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.memory.interface import KeepsIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.base.clock import Clock
    from reverie.memory.interface import IndexProgress, MemoryStore
    from reverie.memory.settings import MemorySettings

__all__ = ["Indexer"]

log = get_logger(__name__)

COMMIT_S = 0.2
"""How long after the news of an item the indexer looks for it: the news comes before the commit."""
LOOKS = 5
"""How often the indexer looks for an item that it was told of; the pauses double."""
OTHER_AT_WORK_S = 1.0
"""How long to wait before looking again if another process is indexing."""


class Indexer(LoopService):
    """Indexes what writers left to it, what other versions wrote, and all items after a change of model."""

    name = "indexer"

    def __init__(self, store: MemoryStore, clock: Clock, settings: MemorySettings) -> None:
        super().__init__()
        self._store = store if isinstance(store, KeepsIndex) else None
        self._clock = clock
        self._batch = settings.index_batch
        self._look_s = settings.index_look_s
        self._news = asyncio.Event()
        self._looks = 1

    async def start(self) -> None:
        """See `Service.start`. A store that keeps no index needs no indexer."""
        if self._store is None:
            return
        self._news = asyncio.Event()
        loop, news = asyncio.get_running_loop(), self._news

        def tell() -> None:
            if not news.is_set() and not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self._store.on_unindexed = tell
        await super().start()

    async def run(self, on_progress: Callable[[IndexProgress], None] = lambda _: None) -> IndexProgress:
        """Index until nothing is left, or until what is left has to wait; the answer says how much that is.

        If another process is indexing, this waits for it.
        """
        store = self._store
        assert store is not None
        store.try_late_again()
        while True:
            on_progress(await store.index_progress())
            done = await store.index_next(self._batch)
            if done == 0:
                return await store.index_progress()
            if done is None:
                await asyncio.sleep(COMMIT_S)

    async def _turn(self) -> None:
        store = self._store
        assert store is not None
        done = await store.index_next(self._batch)
        if done:
            self._looks = LOOKS
            return
        if done is None:
            await self._until_stopped(asyncio.sleep(OTHER_AT_WORK_S))
            return
        if self._news.is_set() and self._looks < LOOKS:
            self._looks += 1
            await self._until_stopped(asyncio.sleep(COMMIT_S * 2 ** (self._looks - 2)))
            return
        self._news.clear()
        await self._until_stopped(self._news.wait(), asyncio.sleep(self._look_s))
        self._looks = 1 if self._news.is_set() else LOOKS
        if not self._news.is_set():
            store.try_late_again()
        else:
            await self._until_stopped(asyncio.sleep(COMMIT_S))
