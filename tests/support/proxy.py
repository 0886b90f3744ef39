"""A proxy between a queue and its server, on loopback: it can lose answers and lead elsewhere."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Proxy:
    """What comes in goes to the socket `target`: connections that stand go on to where they were led."""

    def __init__(self, target: str, path: str) -> None:
        self.url = f"unix://{path}"
        self.target = target
        self._to_lose = b""
        self._lost = asyncio.Event()
        self._leading: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def losing(self, function: str) -> AsyncIterator[None]:
        """Lose the answer to the next call of a function: the server has done it, and nobody hears of it."""
        self._to_lose = f"_{function}\r\n".encode()
        self._lost.clear()
        yield
        async with asyncio.timeout(30):
            await self._lost.wait()

    async def lead(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Carry one connection until one of its ends closes it."""
        with self._noted(), closing(to_client), suppress(OSError):
            server, to_server = await asyncio.open_unix_connection(self.target)
            losing = asyncio.Event()
            ways = {
                asyncio.ensure_future(self._ask(client, to_server, losing)),
                asyncio.ensure_future(self._answer(server, to_client, losing)),
            }
            with closing(to_server):
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()

    async def _ask(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await client.read(65536):
                if self._to_lose and self._to_lose in data:
                    self._to_lose = b""
                    losing.set()
                server.write(data)
                await server.drain()

    async def _answer(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await server.read(65536):
                if losing.is_set():
                    self._lost.set()
                    return
                client.write(data)
                await client.drain()

    async def hang_up(self) -> None:
        """End all connections."""
        for task in self._leading:
            task.cancel()
        if self._leading:
            await asyncio.wait(self._leading)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._leading.add(task)
        try:
            yield
        finally:
            self._leading.discard(task)


@asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    """A proxy to the server at the unix socket `target`."""
    with tempfile.TemporaryDirectory(prefix="reverie-") as folder:
        opened = Proxy(target, f"{folder}/proxy")
        listener = await asyncio.start_unix_server(opened.lead, f"{folder}/proxy")
        try:
            yield opened
        finally:
            listener.close()
            await opened.hang_up()
