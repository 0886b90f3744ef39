"""The server goes away and comes back, with its data, with or without its functions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from reverie.backends.redis.connection import Connections
from reverie.backends.redis.library import QUEUE
from reverie.errors import BackendUnavailableError
from support.living import passes, until, wait_until
from support.servers import RedisClock, Valkey, valkey_server
from support.spooling import waiting

from .redis_case import RedisCase, redis_case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx
    from redis import Redis

pytestmark = pytest.mark.usefixtures("brief_pauses")

START_MS = 1_800_000_000_000


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey_server(appendfsync="always") as server:
        yield server


@pytest.fixture
async def case(server: Valkey, tmp_path: Path) -> AsyncIterator[RedisCase]:
    async with redis_case(server.url, tmp_path) as case:
        yield case


async def dependencies(client: httpx.AsyncClient) -> dict[str, str]:
    """What `/ready` says is wrong, by name."""
    answer = await client.get("/ready")
    wrong = {one["name"]: one["why"] for one in answer.json()["dependencies"] if not one["ok"]}
    assert answer.status_code == (503 if wrong else 200)
    assert answer.headers.get("retry-after") == ("5" if wrong else None)
    return wrong


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while await dependencies(client):
            pass


async def blocked(server: Valkey) -> None:
    """Wait until the worker has nothing to do and blocks."""
    with server.client() as client:
        await until(lambda: client.info("clients")["blocked_clients"] >= 3)


# -- the connection ----------------------------------------------------------------------------------


def cut_all(client: Redis) -> None:
    """Cut the connections of all others, and see that they are."""
    cut = {other["id"] for other in client.client_list(_type="normal")} - {str(client.client_id())}
    client.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: not cut & {other["id"] for other in client.client_list(_type="normal")})


async def test_connections_that_are_cut(server: Valkey, case: RedisCase) -> None:
    """Once for each kind that a worker has, while it waits and while it works."""
    await case.scheduler.start()
    await blocked(server)
    with server.client() as client:
        for number in range(5):
            await case.submit(f"g{number}", label="gated")
            await case.has_begun()
            await asyncio.to_thread(cut_all, client)
            case.go.set()
            (item,) = await case.wait(f"g{number}")
            assert (item.losses, item.attempts) == (0, 1)
            case.go.clear()
    await case.assert_each_once(*(f"g{number}" for number in range(5)))


async def test_who_gives_up_waiting_takes_nothing_from_others(server: Valkey) -> None:
    """It is over when the server says so: until then, what is there would still be given to this wait."""
    connections = Connections(server.url)
    connections.open()
    with server.client() as client:
        for _ in range(2):
            wait = asyncio.create_task(connections.block(30, "BLPOP", "tokens", "30", late=[].append))
            await until(lambda: client.info("clients")["blocked_clients"] == 1)
            server.suspend()
            wait.cancel()
            await passes(10)
            assert not wait.done()
            server.resume()
            with pytest.raises(asyncio.CancelledError):
                await wait
            assert client.info("clients")["blocked_clients"] == 0
        assert client.rpush("tokens", "1") == 1
        assert await connections.block(30, "BLPOP", "tokens", "30", late=[].append) == [b"tokens", b"1"]
        assert client.info("clients")["connected_clients"] == 3  # each wait went over the same connection
    await connections.close()


async def test_a_wait_that_is_given_up_before_the_server_knows_of_it(server: Valkey) -> None:
    connections = Connections(server.url)
    connections.open()
    await connections.call("PING")
    with server.client() as client:
        for turns in range(40):
            wait = asyncio.create_task(connections.block(30, "BLPOP", "tokens", "30", late=[].append))
            await passes(turns)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
        await until(lambda: client.info("clients")["blocked_clients"] == 0)
        client.rpush("tokens", "1")
        assert await connections.block(30, "BLPOP", "tokens", "30", late=[].append) == [b"tokens", b"1"]
    await connections.close()


async def test_a_server_that_is_killed_and_comes_back(server: Valkey, case: RedisCase) -> None:
    async with case.http() as client:
        await case.submit("before", label="gated")
        await case.has_begun()
        assert await dependencies(client) == {}
        server.kill()

        wrong = await dependencies(client)
        assert set(wrong) == {"queue", "worker"}
        assert wrong["queue"].startswith(f"{server.url} did not answer: ")
        message = {"label": "note", "user_id": "ann", "item_id": "refused", "content": "refused"}
        answer = await client.post("/product/scheduler/submit", json={"messages": [message]})
        assert (answer.status_code, answer.json()["data"]) == (503, None)
        assert f"{server.url} did not answer" in answer.json()["message"]
        assert answer.headers["retry-after"] == "5"
        async with asyncio.timeout(5):  # it was refused, and nobody waits for more
            with pytest.raises(BackendUnavailableError, match="did not answer"):
                await case.submit("refused")
        spooled = await case.scheduler.capture("note", user_id="ann", item_id="spooled", content="spooled")
        assert spooled.status == "spooled"
        case.go.set()  # it ends, and nobody hears of it
        await until(lambda: case.ran["before"] == 1)
        await until(lambda: case.remembered() == ["before"])

        server.start()
        await until_ready(client)
        (item,) = await case.wait("before")
        assert (item.losses, item.attempts) == (0, 1)
        await until(lambda: waiting(case.scheduler.runtime.settings.spool_dir) == [])
        assert await case.submit("after") == ["accepted"]
        await case.assert_each_once("before", "spooled", "after")


async def test_a_server_that_is_away_for_longer_than_the_lease(server: Valkey, case: RedisCase) -> None:
    prefix = case.scheduler.runtime.settings.queue.redis_prefix
    clock = RedisClock(server.url, prefix, START_MS)
    await case.submit("1", label="gated")
    await case.start_forgetful()
    await case.has_begun()
    server.kill()
    server.start()
    clock.advance(60)
    assert await case.has_begun() == "1"  # it was handed on, to whoever asked first
    case.go.set()
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (1, 1)
    await until(lambda: case.ran["1"] == 2)
    await case.assert_each_once("1")
    clock.close()


async def test_a_worker_that_stops_while_the_server_is_away(
    server: Valkey, case: RedisCase, tmp_path: Path
) -> None:
    clock = RedisClock(server.url, case.scheduler.runtime.settings.queue.redis_prefix, START_MS)
    await case.submit("1", label="gated")
    await case.scheduler.start()
    await case.has_begun()
    server.kill()
    case.go.set()
    await case.scheduler.stop()
    server.start()
    clock.advance(60)
    async with redis_case(server.url, tmp_path) as other:
        other.go.set()
        await other.scheduler.start()
        (item,) = await other.wait("1")
        assert (item.losses, item.attempts) == (1, 1)
        await other.assert_each_once("1")
    clock.close()


async def test_a_server_that_hangs(server: Valkey, case: RedisCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes too late is nobody's: no other call takes it for its own."""
    monkeypatch.setattr("reverie.backends.redis.connection.ANSWER_TIMEOUT_S", 1.0)
    clock = RedisClock(server.url, case.scheduler.runtime.settings.queue.redis_prefix, START_MS)
    await case.submit("1", label="gated")
    await case.scheduler.start()
    await case.has_begun()
    server.suspend()
    try:
        with pytest.raises(BackendUnavailableError, match="did not answer: nothing came within 1 s"):
            await case.submit("2", "3")
        case.go.set()
        await until(lambda: case.scheduler.runtime.worker.services[1].failures)
    finally:
        server.resume()
    answers = await case.submit("2", "3")
    assert answers in (["accepted"] * 2, ["duplicate"] * 2)
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (0, 1)
    clock.advance(60)  # the server may have done a claim of which nobody knows
    await case.assert_each_once("1", "2", "3")
    clock.close()


async def test_nothing_starts_without_a_server(server: Valkey, case: RedisCase) -> None:
    server.kill()
    with pytest.raises(BackendUnavailableError, match="did not answer"):
        await case.scheduler.start()
    server.start()
    await case.scheduler.start()
    await case.submit("1")
    await case.assert_each_once("1")


async def test_a_server_that_somebody_keeps_busy(server: Valkey, case: RedisCase) -> None:
    """It refuses what the worker reports, and that is not the message's fault."""
    await case.scheduler.start()
    await case.submit("1", label="gated")
    await case.has_begun()
    with server.client() as client, server.client() as other:
        client.config_set("busy-reply-threshold", 1)
        endless = asyncio.ensure_future(asyncio.to_thread(other.eval, "while true do end", 0))
        await until(lambda: is_busy(client))
        with pytest.raises(BackendUnavailableError, match=r"a script has kept it busy .* \(BUSY\)"):
            await case.submit("refused")
        case.go.set()
        settler = case.scheduler.runtime.worker.services[1]
        await until(lambda: settler.failures >= 2)
        client.script_kill()
        with pytest.raises(ResponseError, match="killed"):
            await endless
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (0, 1)
    await case.assert_each_once("1")


def is_busy(client: Redis) -> bool:
    try:
        return not client.ping()
    except ResponseError as error:
        return str(error).startswith("BUSY ")


# -- the functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("functions", ["kept", "flushed", "lost with all data"])
async def test_workers_that_block_wake_after_a_restart(
    server: Valkey, case: RedisCase, tmp_path: Path, functions: str
) -> None:
    await case.submit("before")
    await case.scheduler.start()
    await case.wait("before")
    await blocked(server)
    if functions == "flushed":
        with server.client() as client:
            client.function_flush()
    server.kill()
    if functions == "lost with all data":
        server.forget()
    server.start()
    with server.client() as client:
        names = [entry[1].decode() for entry in client.function_list()]
        assert (QUEUE.name in names) == (functions == "kept")
    async with redis_case(server.url, tmp_path) as other:
        assert await other.submit("after") == ["accepted"]
        await case.wait("after")
        await blocked(server)
        assert await other.submit("more") == ["accepted"]
        await case.wait("more")
    assert case.ran == {"before": 1, "after": 1, "more": 1}


async def test_whoever_comes_first_brings_the_functions_again(server: Valkey, case: RedisCase) -> None:
    await case.submit("1")
    backend = case.scheduler.runtime.backend
    calls = {
        "views": backend.views.labels,
        "advance": lambda: backend.queue.advance(10),
        "shared": backend.shared.open_breakers,
        "all at once": lambda: asyncio.gather(*(case.submit(f"n{number}") for number in range(50))),
    }
    with server.client() as client:
        for call in calls.values():
            client.function_flush()
            await call()
    await case.scheduler.start()
    with server.client() as client:
        client.function_flush()
    await case.assert_each_once("1", *(f"n{number}" for number in range(50)))
