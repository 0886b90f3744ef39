"""The server has done what it was asked, and its answer is lost on the way: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie import Done, Message
from reverie.errors import BackendUnavailableError
from support.living import until
from support.proxy import Proxy, proxy
from support.servers import RedisClock, valkey

from .redis_case import RedisCase, redis_case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.usefixtures("brief_pauses")

START_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with valkey() as url:
        yield url


@pytest.fixture
async def way(server: str) -> AsyncIterator[Proxy]:
    async with proxy(server.removeprefix("unix://")) as way:
        yield way


@pytest.fixture
async def case(way: Proxy, tmp_path: Path) -> AsyncIterator[RedisCase]:
    async with redis_case(way.url, tmp_path, redis_prefix=tmp_path.name) as case:
        await case.scheduler.open()
        yield case


@pytest.fixture
def clock(server: str, case: RedisCase) -> Iterator[RedisClock]:
    """The server's clock, stopped."""
    clock = RedisClock(server, case.scheduler.runtime.settings.queue.redis_prefix, START_MS)
    yield clock
    clock.close()


async def test_of_a_submit(way: Proxy, case: RedisCase) -> None:
    """Whoever repeats it with the same id hears that it was kept."""
    async with way.losing("submit"):
        with pytest.raises(BackendUnavailableError, match="did not answer"):
            await case.submit("1")
    assert await case.submit("1") == ["duplicate"]
    await case.scheduler.start()
    await case.assert_each_once("1")
    assert case.ran == {"1": 1}


async def test_of_a_submit_that_was_captured(way: Proxy, case: RedisCase) -> None:
    """It is in the queue and in the spool; it is run once."""
    async with way.losing("submit"):
        answer = await case.scheduler.capture("note", user_id="ann", item_id="1", content="1")
    assert answer.status == "spooled"
    await case.scheduler.start()
    await until(lambda: not list(case.scheduler.runtime.settings.spool_dir.glob("*.json")))
    await case.assert_each_once("1")
    assert case.ran == {"1": 1}


async def test_of_a_claim(way: Proxy, case: RedisCase, clock: RedisClock) -> None:
    """Nobody runs what was claimed until its lease is over; then it comes again, as one loss."""
    await case.submit("1")
    async with way.losing("claim"):
        await case.scheduler.start()
    producer = case.scheduler.runtime.worker.services[0]
    await until(lambda: producer.failures)
    clock.advance(60)
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (1, 1)
    assert case.ran == {"1": 1}
    await case.assert_each_once("1")


async def test_of_a_settlement(way: Proxy, case: RedisCase) -> None:
    """It is reported again, which is stale; effects and follow-ups are there once."""

    @case.scheduler.handler("parent")
    async def parent(message: Message) -> Done:
        case.ran[message.item_id] += 1
        return Done(follow_ups=[Message(user_id="ann", label="note", item_id="child", content="child")])

    await case.submit("parent", label="parent")
    async with way.losing("settle"):
        await case.scheduler.start()
    await case.wait("parent")
    (child,) = [item for item in await case.scheduler.status("ann") if item.item_id != "parent"]
    await case.wait(child.item_id)
    async with way.losing("settle"):
        await case.submit("1")
    await case.wait("1")
    await case.submit("2")  # the settler has gone on
    await case.wait("2")
    items = {item.item_id: (item.status, item.attempts, item.losses) for item in await status(case)}
    assert items == dict.fromkeys(["parent", child.item_id, "1", "2"], ("completed", 1, 0))
    assert case.ran == dict.fromkeys(["parent", child.item_id, "1", "2"], 1)
    assert sorted(case.remembered()) == ["1", "2", "child"]
    states = await case.scheduler.control.labels()
    assert sum(state.waiting + state.in_progress for state in states) == 0
    assert sum(state.completed_ever for state in states) == 4


async def test_of_a_retry(way: Proxy, case: RedisCase) -> None:
    """A settlement that hands work back takes hold once: one attempt is used, not two."""
    failed = asyncio.Event()

    @case.scheduler.handler("flaky", backoff_s=0.001)
    async def flaky(message: Message) -> None:
        if not message.attempts:
            failed.set()
            raise ConnectionError("not yet")

    await case.submit("1", label="flaky")
    async with way.losing("settle"):
        await case.scheduler.start()
    assert failed.is_set()
    (item,) = await case.wait("1")
    assert (item.status, item.attempts, item.losses) == ("completed", 2, 0)


async def test_of_a_renewal(way: Proxy, case: RedisCase) -> None:
    """The lease was extended, and is again."""
    await case.submit("1", label="gated")
    await case.scheduler.start()
    await case.has_begun()
    renewer = case.scheduler.runtime.worker._renewer
    async with way.losing("renew"):
        with pytest.raises(BackendUnavailableError):
            await renewer.renew()
    await renewer.renew()
    case.go.set()
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (0, 1)


async def test_of_a_command(way: Proxy, case: RedisCase) -> None:
    """What a person repeats finds it done."""
    await case.submit("1", "2")
    async with way.losing("control"):
        with pytest.raises(BackendUnavailableError):
            await case.scheduler.control.cancel("1", user_id="ann")
    assert (await case.scheduler.control.cancel("1", user_id="ann")).changed == []
    assert {item.item_id: item.status for item in await status(case)} == {"1": "cancelled", "2": "waiting"}


async def test_of_what_time_asks_for(way: Proxy, case: RedisCase, clock: RedisClock) -> None:
    """Each lost claim counts once, though the one who did it was not told."""
    await case.submit("1", label="gated")
    await case.start_forgetful()
    await case.has_begun()
    async with way.losing("advance"):
        clock.advance(60)
    await case.has_begun()
    case.go.set()
    (item,) = await case.wait("1")
    assert (item.losses, item.attempts) == (1, 1)


async def status(case: RedisCase) -> list:
    return await case.scheduler.status("ann")
