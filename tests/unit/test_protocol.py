"""HTTP over one connection, over real sockets: what arrives together, and what is sent together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvicorn

from reverie.api.protocol import ARRIVED, timed_protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

LONGER_THAN_ANY_TEST_S = 600


class Application:
    """Answers as the path says."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.arrived = asyncio.Queue[bool]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.arrived.put_nowait(ARRIVED in scope)
        while (await receive()).get("more_body"):
            pass
        words = scope["path"].encode()
        headers = [(b"content-length", b"%d" % len(words))]
        if scope["path"] == "/none":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
            return
        if scope["path"] == "/stream":
            headers = []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/stream":
            await self.may_end.wait()
            await send({"type": "http.response.body", "body": b"slow, ", "more_body": True})
        await send({"type": "http.response.body", "body": words})


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, method: str, path: str, *, body: bytes = b"", late: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body + late)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def send_more(self, body: bytes) -> None:
        self._writer.write(body)
        await self._writer.drain()

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> bytes:
        """The next answer, with its body."""
        head = await self.head()
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        return await self._reader.readexactly(int(length or 0))

    async def rest(self) -> bytes:
        return await self._reader.readuntil(b"0\r\n\r\n")


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def client(application: Application) -> AsyncIterator[Client]:
    config = uvicorn.Config(
        application, http=timed_protocol(LONGER_THAN_ANY_TEST_S), log_config=None, lifespan="off"
    )
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: config.http_protocol_class(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield Client(reader, writer)
    writer.close()
    server.close()
    await asyncio.gather(*state.tasks)


async def test_requests_that_are_sent_at_once_are_answered_in_order(client: Client) -> None:
    for path in ("/1", "/2", "/3"):
        await client.send("POST", path, body=b"abc")
    assert [await client.answer() for _ in range(3)] == [b"/1", b"/2", b"/3"]


async def test_an_answer_without_a_body_is_sent(client: Client) -> None:
    await client.send("POST", "/none")
    assert (await client.head()).startswith(b"HTTP/1.1 204 ")
    await client.send("POST", "/after")
    assert await client.answer() == b"/after"


async def test_the_head_of_a_stream_does_not_wait_for_its_first_part(
    client: Client, application: Application
) -> None:
    await client.send("GET", "/stream")
    assert b"transfer-encoding: chunked" in await client.head()
    application.may_end.set()
    assert await client.rest() == b"6\r\nslow, \r\n7\r\n/stream\r\n0\r\n\r\n"


async def test_a_request_says_whether_it_has_arrived_whole(client: Client, application: Application) -> None:
    await client.send("POST", "/whole", body=b"abc")
    assert await application.arrived.get()
    await client.send("POST", "/half", body=b"a", late=b"bc")
    assert not await application.arrived.get()
    await client.send_more(b"bc")
    assert [await client.answer() for _ in range(2)] == [b"/whole", b"/half"]


@pytest.mark.parametrize("target", ["http://evil.example/1", "evil.example/1", "http:/1"])
async def test_only_a_path_is_asked_for(client: Client, application: Application, target: str) -> None:
    await client.send("GET", target)
    assert (await client.head()).startswith(b"HTTP/1.1 400 ")
    assert application.arrived.empty()
