"""A memory store, and short words for what the tests do with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reverie.effect import Remember
from reverie.memory.indexer import Indexer
from reverie.memory.interface import Application
from reverie.memory.query import Filters, SearchQuery
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.message import Message
from reverie.models.interface import Models
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.effect import Effect
    from reverie.memory.interface import IndexProgress, MemoryStore
    from reverie.memory.query import Found
    from reverie.models.interface import Embedder

FILTERS = frozenset(Filters.__struct_fields__)


@dataclass
class Bench:
    """A memory store and its clock."""

    store: MemoryStore
    clock: ManualClock
    settings: MemorySettings
    embedder: Any

    async def apply(
        self, *effects: Effect, user_id: str = "ann", cube: str = "", message: Message | None = None
    ) -> str:
        """Apply effects as those of one new message; the answer is its state."""
        message = message or Message(user_id=user_id, mem_cube_id=cube, label="work")
        prepared = await self.store.prepare(effects)
        (applied,) = await self.store.apply(
            [Application(message=message, effects=effects, prepared=prepared)]
        )
        return applied.state

    async def add(self, user_id: str = "ann", cube: str = "", /, **texts: str | dict[str, Any]) -> None:
        """Remember texts; a dictionary has the fields of `Remember`."""
        effects = [
            Remember(memory_id=name, **({"text": given} if isinstance(given, str) else given))
            for name, given in texts.items()
        ]
        assert await self.apply(*effects, user_id=user_id, cube=cube) == "applied"

    async def search(self, text: str, user_id: str = "ann", **query: Any) -> Found:
        """Search; filters are given like the other parts of a query."""
        filters = {name: query.pop(name) for name in FILTERS & query.keys()}
        return await self.store.search(
            SearchQuery(text=text, user_id=user_id, filters=Filters(**filters), **query)
        )

    async def find(self, text: str, user_id: str = "ann", **query: Any) -> list[str]:
        return [hit.item.id for hit in await self.search(text, user_id, **query)]

    async def index(self) -> IndexProgress:
        """Let the indexer work until nothing is left that it could do."""
        return await Indexer(self.store, self.clock, self.settings).run()


@asynccontextmanager
async def open_file(
    path: Path | str, embedder: Embedder | None = None, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    """The store in a file, or in a new database in memory."""
    clock = clock or ManualClock()
    kept = MemorySettings(**settings)
    store = SqliteMemoryStore(Database(str(path), "normal"), clock, kept, Models(embedder=embedder))
    await store.open()
    try:
        yield Bench(store, clock, kept, embedder)
    finally:
        await store.close()
