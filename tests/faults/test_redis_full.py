"""A server whose memory is full: it takes nothing new, and all that is there goes on, which makes room."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from reverie.backends.breaker_state import Signal, SignalKind
from reverie.backends.control import CancelItems, DeleteItems, PauseLabel, RequeueItems, ResumeLabel
from reverie.backends.moves import Move, Presence
from reverie.backends.views import StatusQuery
from reverie.errors import BackendUnavailableError
from support.redis_bench import Bench, message, open_bench
from support.servers import Valkey, valkey_server

from .redis_case import redis_case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("brief_pauses")


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey_server() as server:
        yield server


@pytest.fixture
async def bench(server: Valkey) -> AsyncIterator[Bench]:
    async with open_bench(server.url) as bench:
        yield bench


def limit(server: Valkey, maxmemory: int) -> None:
    """Let it have so many bytes; with 1 it is full, with 0 there is no limit."""
    with server.client() as client:
        client.config_set("maxmemory", maxmemory)


def full(server: Valkey) -> str:
    return (
        f"{server.url} cannot be used now: "
        "its memory is full (maxmemory): ended work makes room, or give it more (OOM)"
    )


async def test_only_submits_are_refused(server: Valkey, bench: Bench) -> None:
    await bench.queue.submit([message(str(number), f"u{number}") for number in range(10)])
    limit(server, 1)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError) as refused:
            await bench.queue.submit([message("new")])
        assert str(refused.value) == full(server)
    await bench.queue.renew([], 30_000, Presence(worker="w", labels=("work",), lives_ms=60_000))
    claims = await bench.claim()
    assert len(claims) == 10
    assert (await bench.queue.renew(claims, 30_000)).lost == []
    assert await bench.queue.save_memo(claims[0], "step", '"x"' * 1000)
    assert await bench.queue.load_memos(claims[0]) == {"step": '"x"' * 1000}
    follow_up = message("follow-up", "u0")
    await bench.settle(claims[0], follow_ups=(follow_up,))
    await bench.settle(claims[1], move=Move.RETRY, error="again")
    await bench.settle(claims[2], move=Move.BURY, error="bad")
    await bench.settle(claims[3], move=Move.CANCEL)
    await bench.settle(claims[5], move=Move.BURY, error="bad")
    limit(server, 0)
    bench.clock.advance(40)
    limit(server, 1)
    assert (await bench.queue.advance(100)).reaped == 5
    assert len((await bench.control(RequeueItems, user_id="u2")).changed) == 1
    assert len((await bench.control(DeleteItems, user_id="u5")).changed) == 1
    assert len((await bench.control(CancelItems, user_id="u4")).changed) == 1
    await bench.queue.control(PauseLabel("work"))
    await bench.queue.control(ResumeLabel("work"))
    await bench.backend.shared.report("breaker:work:key", "", Signal(SignalKind.QUOTA))
    assert list(await bench.backend.shared.open_breakers()) == ["breaker:work:key"]
    await bench.settle(*await bench.claim())
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await bench.queue.wait(["work"], None)
    (state,) = await bench.backend.views.labels()
    assert (state.waiting, state.in_progress, state.completed, state.cancelled) == (0, 0, 8, 2)
    assert (await bench.backend.views.read(StatusQuery(user_id="new"))).rows == []
    assert (await bench.backend.views.health()).oldest_in_progress_at is None
    limit(server, 0)
    assert [answer.status for answer in await bench.queue.submit([message("new")])] == ["accepted"]


async def test_a_queue_that_fills_its_server_is_worked_off(server: Valkey, tmp_path: Path) -> None:
    async with redis_case(server.url, tmp_path) as case:
        await case.scheduler.open()
        with server.client() as client:
            limit(server, client.info("memory")["used_memory"] + 4_000_000)
        taken: list[str] = []
        with suppress(BackendUnavailableError):
            while len(taken) < 100:
                item_id = f"n{len(taken)}"
                await case.scheduler.submit("note", user_id="ann", item_id=item_id, content="x" * 100_000)
                taken.append(item_id)
        assert 10 < len(taken) < 100
        async with case.http() as client:
            await case.wait(*taken)
            assert await case.submit("after") == ["accepted"]
            await case.wait("after")
            limit(server, 1)
            body = {"messages": [{"user_id": "ann", "label": "note", "content": "more"}]}
            answer = await client.post("/product/scheduler/submit", json=body)
            assert (answer.status_code, answer.json()["message"]) == (503, full(server))
            ready = await client.get("/ready")
            wrong = [one for one in ready.json()["dependencies"] if not one["ok"]]
            assert (ready.status_code, [one["name"] for one in wrong]) == (503, ["queue"])
            assert wrong[0]["why"] == full(server)
            spooled = await case.scheduler.capture("note", user_id="ann", item_id="spooled")
            assert spooled.status == "spooled"
            limit(server, 0)
            async with asyncio.timeout(30):
                while not [item for item in await case.scheduler.status("ann") if item.item_id == "spooled"]:
                    pass
            await case.wait("spooled")
        assert case.ran == dict.fromkeys([*taken, "after", "spooled"], 1)


async def test_a_full_server_without_the_functions(server: Valkey, bench: Bench) -> None:
    """It cannot take them again: that is said, and over as soon as there is room."""
    await bench.queue.submit([message("1")])
    with server.client() as client:
        client.function_flush()
    limit(server, 1)
    with pytest.raises(BackendUnavailableError) as refused:
        await bench.claim()
    assert str(refused.value) == full(server)
    limit(server, 0)
    assert len(await bench.claim()) == 1
