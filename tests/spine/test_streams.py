"""Very many clients wait at once on a real server: attentive ones, slow ones, and ones that hang up."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.living import until
from support.places import SHARED, Place, Server
from support.scale import evidence, scaled

PATH = "/product/scheduler/wait/stream?user_name=ann&timeout_seconds=600&poll_interval=0.5"
ON_A_SERVER = pytest.mark.parametrize("place", SHARED, indirect=True)
CLIENTS = max(200, scaled(1000))


class Listener:
    """One client of the stream, down to its socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def come(cls, server: Server) -> Listener:
        address = urlsplit(str(server.client.base_url))
        listener = cls(*await asyncio.open_connection(address.hostname, address.port))
        request = f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        listener._writer.write(request.encode())
        return listener

    async def event(self) -> dict:
        while not (line := await self._reader.readline()).startswith(b"data: "):
            assert line, "the stream ended too early"
        return json.loads(line.removeprefix(b"data: "))

    async def last(self) -> str:
        """How the stream ends, read to its very end."""
        while (event := await self.event())["status"] == "running":
            pass
        await self._reader.read()
        await self.leave()
        return event["status"]

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def leave(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def open_sockets(server: Server) -> int:
    """How many sockets the server has. Files do not count: readers of the database open theirs late."""
    count = 0
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += file.readlink().name.startswith("socket:")
    return count


def ask(server: Server) -> int:
    """How much of the user's work the server sees."""
    lanes = server.client.get("/product/scheduler/task_queue_status", params={"user_id": "ann"}).json()
    return lanes["data"]["remaining_tasks_count"]


@ON_A_SERVER
@pytest.mark.scaled
@pytest.mark.timeout(300)
async def test_very_many_clients_wait_for_one_user(place: Place) -> None:
    with (
        evidence(f"streams-{place.kind}") as figures,
        place.server() as server,
        place.scheduler() as scheduler,
    ):
        scheduler.submit("nobody", user_id="ann")
        assert ask(server) == 1
        first = await Listener.come(server)  # what a first stream opens stays open
        await first.event()
        sockets = open_sockets(server)
        listeners = [await Listener.come(server) for _ in range(CLIENTS)]
        rude, slow, attentive = listeners[::3], listeners[1::3], listeners[2::3]
        for event in await asyncio.gather(*(one.event() for one in (*rude, *attentive))):
            assert (event["active_tasks"], event["status"]) == (1, "running")
        for one in rude:
            one.hang_up()
        await until(lambda: open_sockets(server) <= sockets + len(slow) + len(attentive))
        assert ask(server) == 1
        staying = [asyncio.ensure_future(one.last()) for one in (first, *attentive)]
        scheduler.control.cancel(user_id="ann")
        assert set(await asyncio.gather(*staying)) == {"idle"}
        assert {await one.last() for one in slow} == {"idle"}
        await until(lambda: open_sockets(server) < sockets + 1)
        assert ask(server) == 0
        figures.update(clients=CLIENTS, open_sockets_before=sockets, open_sockets_after=open_sockets(server))


@ON_A_SERVER
def test_a_server_may_open_as_many_files_as_the_system_allows(place: Place) -> None:
    few, most = 128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    try:
        with place.server() as server:
            allowed, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert few < allowed <= most


@ON_A_SERVER
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_told_to_stop_does_not_wait_for_those_who_wait(place: Place, sign) -> None:
    with place.server() as server, place.scheduler() as scheduler:
        scheduler.submit("nobody", user_id="ann")
        listeners = [await Listener.come(server) for _ in range(20)]
        for one in listeners:
            await one.event()
        server.process.send_signal(sign)
        for one in listeners:
            while (event := await one.event()).get("status") == "running":
                pass
            assert event["code"] == 503
            await one.leave()
        server.process.communicate(timeout=60)
        assert server.process.returncode == 0
