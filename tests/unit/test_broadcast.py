"""Processes that share a file hear what another says."""

from __future__ import annotations

import asyncio
import queue
import socket
from typing import TYPE_CHECKING

import pytest

from reverie.storage import broadcast as module
from reverie.storage.broadcast import LARGEST_NEWS, FileBroadcast
from reverie.storage.peers import News, Peers
from support.listening import listening
from support.living import started

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "r.db")


@pytest.fixture
def speaker(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    speaker = FileBroadcast(path)
    yield speaker
    speaker.close()


async def test_all_listeners_hear_in_order(path: str, speaker: FileBroadcast) -> None:
    async with (
        listening(FileBroadcast(path)) as (one, first),
        listening(FileBroadcast(path)) as (two, also_first),
    ):
        for number in range(5):
            speaker.say(b"%d" % number)
        assert await first == await also_first == b"0"
        for number in range(1, 5):
            assert await anext(one) == await anext(two) == b"%d" % number


async def test_whether_anyone_listens(path: str, speaker: FileBroadcast, tmp_path: Path) -> None:
    assert not speaker.is_heard
    async with listening(FileBroadcast(path)):
        assert speaker.is_heard
    assert not speaker.is_heard
    assert list((tmp_path / "r.db-peers").iterdir()) == []


async def test_the_folder_is_not_looked_at_each_time(
    path: str, speaker: FileBroadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module, "LOOK_EVERY_S", 1.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    assert not speaker.is_heard
    heard = FileBroadcast(path).listen()
    first = await started(anext(heard))
    assert not speaker.is_heard
    now += 1
    assert speaker.is_heard
    first.cancel()
    await asyncio.wait([first])
    await heard.aclose()


async def test_one_does_not_hear_oneself(path: str, speaker: FileBroadcast) -> None:
    other = FileBroadcast(path)
    async with listening(speaker) as (_, first):
        assert not speaker.is_heard
        assert other.is_heard
        speaker.say(b"mine")
        other.say(b"yours")
        assert await first == b"yours"
    other.close()


async def test_what_is_too_large_or_too_much_is_lost(path: str, speaker: FileBroadcast) -> None:
    async with listening(FileBroadcast(path)) as (heard, first):
        speaker.say(b"x" * (LARGEST_NEWS + 1))
        speaker.say(b"y" * LARGEST_NEWS)
        assert await first == b"y" * LARGEST_NEWS
        for _ in range(2000):  # more than any socket keeps
            speaker.say(b"z" * 8192)
        assert await anext(heard) == b"z" * 8192


async def test_news_for_peers_and_broadcasts_do_not_meet(path: str, speaker: FileBroadcast) -> None:
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    peer, other = Peers(path), Peers(path)
    peer.listen(news.put)
    assert not speaker.is_heard
    async with listening(FileBroadcast(path)) as (_, first):
        other.tell({"add"}, 7)
        speaker.say(b"said")
        other.tell({"more"}, None)
        assert await first == b"said"
        assert [news.get(timeout=10) for _ in range(2)] == [News(("add",), 7), News(("more",), None)]
    peer.close()
    other.close()


async def test_the_socket_of_a_dead_listener_is_cleared_away(
    path: str, speaker: FileBroadcast, tmp_path: Path
) -> None:
    left_behind = tmp_path / "r.db-peers" / "events-4711-dead"
    async with listening(FileBroadcast(path)) as (_, first):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(left_behind))
        speaker.say(b"news")
        assert await first == b"news"
        assert not left_behind.exists()


@pytest.mark.parametrize("name", [":memory:", "no/r.db"])
async def test_where_there_can_be_no_socket_nobody_is_heard(name: str, tmp_path: Path) -> None:
    path = name if name == ":memory:" else str(tmp_path / name)
    mute = FileBroadcast(path)
    async with listening(FileBroadcast(path)) as (_, first):
        assert not mute.is_heard
        mute.say(b"news")
        assert not first.done()
    mute.close()


def test_a_closed_broadcast_says_nothing(speaker: FileBroadcast) -> None:
    speaker.close()
    speaker.close()
    speaker.say(b"news")
    assert not speaker.is_heard
