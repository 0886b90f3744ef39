"""A server in this process whose answers under `/product` must be those that its document names."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie import AsyncScheduler
from reverie.principal import LOCAL_ADMIN
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from reverie.principal import Principal

__all__ = ["Answer", "Product", "model_settings", "serving"]

JSON = {"content-type": "application/json"}


class Answer(NamedTuple):
    """An answer `{code, message, data}`."""

    code: int
    message: str
    data: Any


class Product:
    """The HTTP face of a scheduler."""

    def __init__(self, scheduler: AsyncScheduler, client: httpx.AsyncClient) -> None:
        self.scheduler = scheduler
        self.client = client

    async def send(self, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """The whole response; without a body, to GET."""
        method = "GET" if body is None else "POST"
        content = None if body is None else json.dumps(body)
        return await self.client.request(
            method, f"/product/{path}", content=content, params=query, headers=JSON
        )

    async def ask(self, path: str, body: Any = None, **query: Any) -> Answer:
        """The answer, in the one shape."""
        response = await self.send(path, body, **query)
        told = response.json()
        assert ("detail" in told) == (response.status_code == 422)
        answer = Answer(told["code"], told["message"], told["data"])
        assert answer.code == response.status_code
        assert answer.code < 400 or answer.data is None
        return answer

    async def done(self, path: str, body: Any = None, **query: Any) -> Any:
        """The data of an answer with success."""
        code, message, data = await self.ask(path, body, **query)
        assert code == 200, message
        return data

    async def add(self, *texts: str, **fields: Any) -> list[dict[str, Any]]:
        """Add texts of ann, and wait until they are written."""
        body = {"user_id": "ann", "messages": [{"role": "user", "content": text} for text in texts]}
        added = await self.done("add", body | {"async_mode": "sync", "mode": "fast"} | fields)
        assert {entry["status"] for entry in added} == {"activated"}
        return added

    @asynccontextmanager
    async def asked_by(self, caller: Principal) -> AsyncIterator[Product]:
        """The same server, for another caller."""
        app = create_app(self.scheduler, caller=caller)
        async with documented_client(app) as client:
            yield Product(self.scheduler, client)

    async def texts(self, query: str, **fields: Any) -> list[str]:
        """The texts that a search of ann finds, in the order of the alphabet."""
        body = {"user_id": "ann", "query": query, "relativity": 0, "dedup": "no", **fields}
        found = await self.done("search", body)
        return sorted(memory["memory"] for cube in found["text_mem"] for memory in cube["memories"])


def model_settings(url: str, **llm: Any) -> dict[str, Any]:
    """The settings that use the scripted model at `url`."""
    return {"llm": {"preset": "custom", "url": url, "model": "scripted", "tries": 1, **llm}}


@asynccontextmanager
async def serving(
    *,
    works: bool = True,
    caller: Principal = LOCAL_ADMIN,
    scheduler: AsyncScheduler | None = None,
    **settings: Any,
) -> AsyncIterator[Product]:
    """A server of a scheduler, or of one with these settings; with `works`, a worker runs in it."""
    given = {"queue": {"url": "memory://"}, "memory": {"embedding": "none"}, **settings}
    scheduler = scheduler or AsyncScheduler(settings=load_settings(**given))
    if works:
        await scheduler.start()
    else:
        await scheduler.open()
    try:
        async with documented_client(create_app(scheduler, run_worker=works, caller=caller)) as client:
            yield Product(scheduler, client)
    finally:
        await scheduler.stop()
