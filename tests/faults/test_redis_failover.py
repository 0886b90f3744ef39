"""Two servers, of which one follows the other, while their roles and their state change."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as NoConnectionError

from reverie.errors import BackendUnavailableError
from support.living import until
from support.proxy import proxy
from support.servers import Valkey, valkey_server

from .redis_case import redis_case
from .two_servers import follow, promote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from .redis_case import RedisCase

pytestmark = pytest.mark.usefixtures("brief_pauses")


def replicate(server: Valkey) -> None:
    """Wait until its replica has confirmed all it was told."""
    with server.client() as client:
        client.set("last", "1")  # what comes before this was confirmed with it
        assert client.wait(1, 10_000) == 1


async def refusal(case: RedisCase) -> str:
    """What a submit says now; it is refused, and the worker goes on trying."""
    with pytest.raises(BackendUnavailableError) as refused:
        await case.submit("refused")
    return str(refused.value)


async def test_a_primary_that_becomes_a_replica(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    """Readable, but it takes nothing; work that runs is settled when it is the primary again."""
    async with redis_case(primary.url, tmp_path) as case, case.http() as client:
        await case.submit("1", label="gated")
        await case.has_begun()
        replicate(primary)
        promote(replica)
        follow(primary, replica)
        assert await refusal(case) == (
            f"{primary.url} cannot be used now: it is a replica: "
            "writes go to its primary, or here once it is promoted (READONLY)"
        )
        assert [item.item_id for item in await case.scheduler.status("ann")] == ["1"]  # reading goes on
        wrong = [one for one in (await client.get("/ready")).json()["dependencies"] if not one["ok"]]
        assert [one["name"] for one in wrong] == ["queue"]
        assert "(READONLY)" in wrong[0]["why"]
        case.go.set()
        await until(lambda: case.remembered() == ["1"])
        promote(primary)
        (item,) = await case.wait("1")
        assert (item.losses, item.attempts) == (0, 1)
        assert await case.submit("2") == ["accepted"]
        await case.assert_each_once("1", "2")


async def test_a_failover_behind_one_address(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    """Connections still lead to the old primary when the address leads to the new one: they are left."""
    async with proxy(primary.socket) as address, redis_case(address.url, tmp_path) as case:
        await case.scheduler.start()
        await asyncio.gather(*(case.submit(f"n{number}") for number in range(20)))  # over many connections
        await case.wait(*(f"n{number}" for number in range(20)))
        await case.submit("1", label="gated")
        await case.has_begun()
        replicate(primary)
        promote(replica)
        follow(primary, replica)
        address.target = replica.socket
        assert "(READONLY)" in await refusal(case)
        answers = await asyncio.gather(*(case.submit(f"m{number}") for number in range(20)))
        assert answers == [["accepted"]] * 20
        case.go.set()
        await case.assert_each_once("1", *(f"{kind}{number}" for kind in "mn" for number in range(20)))
        with primary.client() as client:
            assert client.info("clients")["blocked_clients"] == 0


@pytest.mark.parametrize("functions", ["replicated", "missing"])
async def test_a_primary_that_is_lost(
    primary: Valkey, replica: Valkey, tmp_path: Path, functions: str
) -> None:
    """What a replica has confirmed survives the promotion: what waits, what runs, and what has ended."""
    async with proxy(primary.socket) as address, redis_case(address.url, tmp_path) as case:
        await case.scheduler.start()
        await case.submit("ended")
        await case.wait("ended")
        await case.submit("1", "2", label="gated")
        await case.has_begun()
        replicate(primary)
        primary.kill()
        assert "did not answer" in await refusal(case)
        promote(replica)
        if functions == "missing":
            with replica.client() as client:
                client.function_flush()
        address.target = replica.socket
        case.go.set()
        items = await case.wait("1", "2")
        assert [(item.losses, item.attempts) for item in items] == [(0, 1), (0, 1)]
        assert await case.submit("ended", "3") == ["duplicate", "accepted"]
        await case.assert_each_once("ended", "1", "2", "3")


async def test_a_replica_without_its_primary(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    with replica.client() as client:
        client.config_set("replica-serve-stale-data", "no")
    async with redis_case(primary.url, tmp_path) as case:
        await case.submit("1")
        replicate(primary)
    primary.kill()
    with replica.client() as client:
        await until(lambda: client.info("replication")["master_link_status"] == "down")
    async with redis_case(replica.url, tmp_path) as case:
        assert await refusal(case) == (
            f"{replica.url} cannot be used now: it is a replica without a primary: "
            "writes go to the primary, or here once it is promoted (MASTERDOWN)"
        )
        promote(replica)
        await case.scheduler.start()
        await case.assert_each_once("1")


async def test_a_primary_without_enough_replicas(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    async with redis_case(primary.url, tmp_path) as case:
        await case.scheduler.start()
        await case.submit("1", label="gated")
        await case.has_begun()
        with primary.client() as client:
            client.config_set("min-replicas-to-write", 1)
        assert await case.submit("2") == ["accepted"]
        replica.kill()
        with primary.client() as client:
            await until(lambda: client.info("replication")["connected_slaves"] == 0)
        assert await refusal(case) == (
            f"{primary.url} cannot be used now: "
            "it has fewer replicas than its min-replicas-to-write (NOREPLICAS)"
        )
        case.go.set()
        await until(lambda: "1" in case.remembered())
        replica.start()
        follow(replica, primary)
        with primary.client() as client:
            await until(lambda: client.info("replication")["min_slaves_good_slaves"] == 1)
        (item,) = await case.wait("1")
        assert (item.losses, item.attempts) == (0, 1)
        await case.assert_each_once("1", "2")


@asynccontextmanager
async def loading(server: Valkey) -> AsyncIterator[None]:
    """Start a server that was killed, and let it load its data as long as the block lasts."""
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    with server.client() as client:

        def is_loading() -> bool:
            try:
                client.get("any")
            except BusyLoadingError:
                return True
            except NoConnectionError:
                return False
            pytest.fail("it has loaded too fast")

        await until(is_loading)
        try:
            yield
        finally:
            client.config_set("key-load-delay", 0)
            await starting


async def test_a_server_that_still_loads(tmp_path: Path) -> None:
    with valkey_server(**SLOW) as server:
        with server.client() as client, client.pipeline(transaction=False) as filling:
            for number in range(LOADED):
                filling.set(f"filler:{number}", "")
            filling.execute()
        async with redis_case(server.url, tmp_path) as case:
            await case.scheduler.start()
            await case.submit("1", label="gated")
            await case.has_begun()
            server.kill()
            async with loading(server):
                told = (
                    f"{server.url} cannot be used now: it has just started and is loading its data (LOADING)"
                )
                assert await refusal(case) == told
                async with redis_case(server.url, tmp_path) as other:
                    with pytest.raises(BackendUnavailableError, match="LOADING"):
                        await other.scheduler.start()
                case.go.set()
                await until(lambda: case.remembered() == ["1"])
            (item,) = await case.wait("1")
            assert (item.losses, item.attempts) == (0, 1)
            await case.submit("2")
            await case.assert_each_once("1", "2")


LOADED = 40_000
"""Commands that the server reads again when it starts; it looks up at each 1024th of them."""
SLOW = {"appendfsync": "always", "key-load-delay": "50"}
"""With so many microseconds for each of these it would load for seconds."""
