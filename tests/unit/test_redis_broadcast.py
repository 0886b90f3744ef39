"""Processes that share a server hear what another says."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from reverie.backends.redis import RedisBackend
from reverie.backends.redis import broadcast as module
from reverie.backends.redis.broadcast import LARGEST_NEWS, MOST_UNSENT
from reverie.errors import BackendUnavailableError
from support.listening import listening
from support.living import until
from support.servers import valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Join = Callable[..., Awaitable[RedisBackend]]


@pytest.fixture
async def join(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Join]:
    """Open one more backend of the same queue, as another process would."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.0)
    prefix = f"test-{uuid.uuid4()}"
    async with AsyncExitStack() as stack:

        async def opened(url: str = redis_url) -> RedisBackend:
            backend = RedisBackend(url, prefix=prefix, allow_volatile=True)
            stack.push_async_callback(backend.close)
            await backend.open()
            return backend

        yield opened


async def test_all_listeners_hear_in_order(join: Join) -> None:
    speaker, one, two = [(await join()).broadcast for _ in range(3)]
    async with listening(one, speaker) as (heard, first), listening(two, one) as (also_heard, also_first):
        for number in range(3):
            speaker.say(b"%d" % number)
        await asyncio.to_thread(speaker.say, b"3")
        assert await first == await also_first == b"0"
        for number in range(1, 4):
            assert await anext(heard) == await anext(also_heard) == b"%d" % number


async def test_whether_anyone_else_listens(join: Join) -> None:
    speaker, other = [(await join()).broadcast for _ in range(2)]
    assert not speaker.is_heard
    async with listening(speaker, other) as (_, first):
        speaker.say(b"mine")
        other.say(b"yours")
        assert await first == b"yours"
        assert not speaker.is_heard
    await until(lambda: not other.is_heard)


async def test_the_server_is_not_asked_each_time(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9  # later than any machine has run
    backend, other, watcher = [await join() for _ in range(3)]
    asked = []
    call = backend._connections.call

    async def counted(*command, **fields):
        asked.append(command)
        return await call(*command, **fields)

    monkeypatch.setattr(backend._connections, "call", counted)
    async with listening(other.broadcast, watcher.broadcast) as (_, first):
        monkeypatch.setattr(module, "LOOK_AGAIN_S", 1.0)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
        for _ in range(100):
            assert not backend.broadcast.is_heard
        backend.broadcast.say(b"said")
        assert await first == b"said"
        assert [command[0] for command in asked] == ["PUBSUB", "PUBLISH"]
        now += 1
        backend.broadcast.is_heard  # noqa: B018  it is the asking that counts
        await backend.broadcast.close()
        assert [command[0] for command in asked] == ["PUBSUB", "PUBLISH", "PUBSUB"]


async def test_what_is_too_large_or_too_much_is_lost(join: Join) -> None:
    speaker, listener = [(await join()).broadcast for _ in range(2)]
    async with listening(listener, speaker) as (heard, first):
        speaker.say(b"x" * (LARGEST_NEWS + 1))
        speaker.say(b"y" * LARGEST_NEWS)
        for number in range(1, MOST_UNSENT + 10):
            speaker.say(b"%d" % number)
        assert await first == b"y" * LARGEST_NEWS
        for number in range(1, MOST_UNSENT):
            assert await anext(heard) == b"%d" % number
        speaker.say(b"more")
        assert await anext(heard) == b"more"


async def test_what_was_said_last_is_heard(join: Join) -> None:
    backend, listener = await join(), (await join()).broadcast
    async with listening(listener, backend.broadcast) as (_, first):
        backend.broadcast.say(b"farewell")
        await backend.close()
        assert await first == b"farewell"
    backend.broadcast.say(b"nobody hears this")
    assert not backend.broadcast.is_heard


async def test_closing_the_backend_ends_listening(join: Join) -> None:
    backend, speaker = await join(), (await join()).broadcast
    async with listening(backend.broadcast, speaker) as (_, first):
        await backend.close()
        with pytest.raises(StopAsyncIteration):
            await first


async def test_another_database_is_another_queue(join: Join) -> None:
    with valkey() as url:
        one, also_one, two, also_two = [
            (await join(f"{url}?db={number}")).broadcast for number in (1, 1, 2, 2)
        ]
        async with listening(also_one, one) as (_, first), listening(also_two, two) as (_, other):
            two.say(b"in two")
            one.say(b"in one")
            assert await first == b"in one"
            assert await other == b"in two"


async def test_a_server_that_goes_away_is_no_reason_to_fail(join: Join) -> None:
    with valkey() as url:
        listener, speaker = [(await join(url)).broadcast for _ in range(2)]
        heard = listener.listen()
        first = asyncio.ensure_future(anext(heard))
        await until(lambda: speaker.is_heard)
    with pytest.raises(BackendUnavailableError):
        await first
    speaker.say(b"news")
    await until(lambda: not speaker.is_heard)


async def test_who_has_just_come_knows_at_once_that_someone_listens(join: Join) -> None:
    listener, noticed = (await join()).broadcast, (await join()).broadcast
    async with listening(listener, noticed):
        assert (await join()).broadcast.is_heard
