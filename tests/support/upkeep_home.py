"""A scheduler with the memories of one tenant, to be kept in order."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from reverie import AsyncScheduler, Remember
from reverie.memory.interface import PageQuery
from reverie.models.usage import UsageQuery
from reverie.settings import load_settings
from reverie.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.memory.item import MemoryItem
    from support.scripted_model import ScriptedModel

__all__ = ["ANN", "DAY_MS", "DAY_S", "Home", "home"]

ANN = ("ann", "ann")
DAY_S = 24 * 3600
DAY_MS = DAY_S * 1000


class Home:
    """A scheduler with the memories of one tenant."""

    def __init__(self, scheduler: AsyncScheduler, clock: ManualClock) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.store: Any = scheduler.runtime.store

    async def keep(self, tenant: tuple[str, str] = ANN, **memories: str | dict[str, Any]) -> None:
        """Remember facts; a dictionary has the fields of `Remember`."""
        effects = [
            Remember(memory_id=name, **({"text": given} if isinstance(given, str) else given))
            for name, given in memories.items()
        ]
        await self.store.change(tenant, effects)

    async def run(self, label: str, content: Any = "", **fields: Any) -> None:
        """Let a message of upkeep and all that follows from it run."""
        await self.scheduler.submit(label, user_id="ann", content=content, **fields)
        await self.scheduler.runtime.drain()

    async def living(self) -> dict[str, MemoryItem]:
        """The memories that are not superseded, by text."""
        page = await self.store.page(PageQuery(user_id="ann", limit=1000))
        assert len({item.text for item in page.items}) == len(page.items)
        return {item.text: item for item in page.items}

    async def get(self, name: str) -> MemoryItem:
        item = await self.store.get("ann", name)
        assert item is not None
        return item

    async def tokens(self, label: str) -> int:
        usage = await self.store.usage(UsageQuery(user_id="ann"))
        return sum(one.tokens for one in usage if one.label == label)

    async def states(self) -> list[str]:
        return [str(item.status) for item in await self.scheduler.status("ann")]


@asynccontextmanager
async def home(
    model: ScriptedModel | None = None, embedding: str = "none", **settings: Any
) -> AsyncIterator[Home]:
    clock = ManualClock()
    given: dict[str, Any] = {"queue": {"url": "memory://"}, "scheduler": {"enabled": False}} | settings
    given["memory"] = {"url": "memory://", "embedding": embedding} | settings.get("memory", {})
    if model is not None:
        given["llm"] = {"preset": "custom", "url": model.url, "model": "tiny", "tries": 1} | settings.get(
            "llm", {}
        )
    scheduler = AsyncScheduler(settings=load_settings(**given), clock=clock)
    await scheduler.open()
    try:
        yield Home(scheduler, clock)
    finally:
        await scheduler.stop()
