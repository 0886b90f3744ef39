"""A scheduler whose queue is on a Redis server that a test breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apsw
import httpx

from reverie import AsyncScheduler, Done, Message, Remember
from reverie.server import create_app
from reverie.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.backends.views import ItemStatus

WAIT_S = 30


@dataclass
class RedisCase:
    """A scheduler, and what came of its messages. Item `1` of a label is content `1` of user `ann`."""

    scheduler: AsyncScheduler
    folder: Path
    ran: Counter[str] = field(default_factory=Counter)
    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Messages of the label `gated` that have begun."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets them end."""

    def __post_init__(self) -> None:
        @self.scheduler.handler("note", concurrency=4)
        async def note(message: Message) -> Done:
            self.ran[message.item_id] += 1
            return Done(effects=[Remember(memory_id=message.item_id, text=message.content)])

        @self.scheduler.handler("gated", concurrency=4)
        async def gated(message: Message) -> Done:
            self.begun.put_nowait(message.item_id)
            await self.go.wait()
            return await note(message)

    async def submit(self, *item_ids: str, label: str = "note") -> list[str]:
        messages = [Message(user_id="ann", label=label, item_id=one, content=one) for one in item_ids]
        return [answer.status for answer in await self.scheduler.submit_messages(messages)]

    async def start_forgetful(self) -> None:
        """Start a worker that does not renew its claims when the server's clock is moved."""
        await self.scheduler.start()
        (canceller,) = [one for one in self.scheduler.runtime.worker.services if one.name == "canceller"]
        await canceller.stop(WAIT_S)

    async def has_begun(self) -> str:
        return await asyncio.wait_for(self.begun.get(), WAIT_S)

    async def wait(self, *item_ids: str) -> list[ItemStatus]:
        return [await self.scheduler.wait(one, user_id="ann", timeout=WAIT_S) for one in item_ids]

    async def assert_each_once(self, *item_ids: str) -> None:
        """All of these are completed, each had its effect once, and no count is off."""
        for item in await self.wait(*item_ids):
            assert (item.status, item.attempts) == ("completed", 1)
        states = await self.scheduler.control.labels()
        assert sum(state.waiting + state.in_progress + state.failed for state in states) == 0
        assert sum(state.completed for state in states) == len(item_ids)
        assert sorted(self.remembered()) == sorted(item_ids)

    def remembered(self) -> list[str]:
        connection = apsw.Connection(str(self.folder / "memory.db"))
        try:
            return [text for (text,) in connection.execute("SELECT text FROM memory_items")]
        finally:
            connection.close()

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of this scheduler's server, which runs its worker."""
        app = create_app(self.scheduler)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client,
        ):
            yield client


@asynccontextmanager
async def redis_case(url: str, folder: Path, **queue: Any) -> AsyncIterator[RedisCase]:
    """A case whose worker does not run yet; `queue` are settings of its queue."""
    settings = load_settings(
        data_dir=folder,
        queue={"url": url, **queue},
        memory={"url": f"sqlite:///{folder / 'memory.db'}"},
        spool={"look_s": 0.05},
    )
    case = RedisCase(AsyncScheduler(settings=settings), folder)
    try:
        yield case
    finally:
        case.go.set()
        await case.scheduler.stop()
