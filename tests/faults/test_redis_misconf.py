"""A server that cannot write its snapshots refuses writes: nothing is lost, and work goes on when it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie.errors import BackendUnavailableError
from support.living import until, wait_until
from support.servers import Valkey, valkey_server

from .redis_case import redis_case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("brief_pauses")


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey_server(**{"save": "3600 1000000", "enable-protected-configs": "yes"}) as server:
        yield server


def save(server: Valkey) -> str:
    """Let it write a snapshot; how that ended."""
    with server.client() as client:
        client.bgsave()
        wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"])
        status: str = client.info("persistence")["rdb_last_bgsave_status"]
        return status


def put_snapshots_in(server: Valkey, folder: Path) -> None:
    with server.client() as client:
        client.config_set("dir", str(folder))


async def test_a_server_that_cannot_write_its_snapshots(server: Valkey, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    told = f"{server.url} cannot be used now: it cannot write to its disk; its log says why (MISCONF)"
    async with redis_case(server.url, tmp_path) as case, case.http() as client:
        await case.submit("1", label="gated")
        await case.has_begun()
        put_snapshots_in(server, folder)
        folder.rmdir()
        assert save(server) == "err"
        with pytest.raises(BackendUnavailableError) as refused:
            await case.submit("refused")
        assert str(refused.value) == told
        body = {"messages": [{"user_id": "ann", "label": "note", "content": "more"}]}
        answer = await client.post("/product/scheduler/submit", json=body)
        assert (answer.status_code, answer.json()["message"]) == (503, told)
        assert answer.headers["retry-after"] == "5"
        wrong = [one for one in (await client.get("/ready")).json()["dependencies"] if not one["ok"]]
        assert [(one["name"], one["why"]) for one in wrong] == [("queue", told)]
        assert [item.item_id for item in await case.scheduler.status("ann")] == ["1"]  # reading goes on
        spooled = await case.scheduler.capture("note", user_id="ann", item_id="2", content="2")
        assert spooled.status == "spooled"
        case.go.set()
        await until(lambda: case.remembered() == ["1"])  # it has ended, and nobody could be told
        async with redis_case(server.url, tmp_path) as other:  # one that is new there
            with pytest.raises(BackendUnavailableError, match="MISCONF"):
                await other.submit("refused")
        folder.mkdir()
        put_snapshots_in(server, folder)
        assert save(server) == "ok"
        (item,) = await case.wait("1")
        assert (item.losses, item.attempts) == (0, 1)
        assert await case.submit("3") == ["accepted"]
        await until(lambda: case.ran["2"])
        await case.assert_each_once("1", "2", "3")
