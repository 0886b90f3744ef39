"""Processes that share a file wake each other."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import socket
import stat

import pytest

from reverie.storage.broadcast import FileBroadcast
from reverie.storage.peers import News, Peers, peers_folder, sockets_in


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "r.db")


@pytest.fixture
def pair(path: str):
    heard: queue.SimpleQueue[News] = queue.SimpleQueue()
    speaker, listener = Peers(path), Peers(path)
    listener.listen(heard.put)
    yield speaker, listener, heard
    speaker.close()
    listener.close()


def test_news_reach_the_others(pair) -> None:
    speaker, _, heard = pair
    speaker.tell({"add"}, 7)
    assert heard.get(timeout=10) == News(("add",), 7)


def test_one_does_not_hear_oneself(pair) -> None:
    speaker, listener, heard = pair
    listener.tell({"mine"}, None)
    speaker.tell({"yours"}, None)
    assert heard.get(timeout=10) == News(("yours",), None)


def test_nothing_to_say_is_not_sent(pair) -> None:
    speaker, _, heard = pair
    speaker.tell((), None)
    speaker.tell((), 1)
    assert heard.get(timeout=10) == News((), 1)


def test_nobody_listens(path: str) -> None:
    speaker = Peers(path)
    speaker.tell({"add"}, None)
    speaker.close()
    speaker.close()


def test_the_socket_of_a_dead_process_is_cleared_away(pair, path: str, tmp_path) -> None:
    speaker, _, heard = pair
    left_behind = tmp_path / "r.db-peers" / "4711-dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(left_behind))
    speaker.tell({"add"}, None)
    assert heard.get(timeout=10) == News(("add",), None)
    assert not left_behind.exists()


def test_a_closed_listener_leaves_nothing(pair, tmp_path) -> None:
    speaker, listener, heard = pair
    listener.close()
    assert list((tmp_path / "r.db-peers").iterdir()) == []
    speaker.tell({"add"}, None)
    assert heard.empty()


def test_rubbish_is_not_heard(pair, tmp_path) -> None:
    speaker, listener, heard = pair
    speaker.tell({"add"}, None)
    heard.get(timeout=10)
    speaker._mouth.say([listener._mine], b"rubbish")
    speaker.tell({"next"}, None)
    assert heard.get(timeout=10) == News(("next",), None)


@pytest.fixture
def deep(tmp_path):
    """The path of a file that lies too deep for a socket beside it."""
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    path = str(folder / "r.db")
    yield path
    shutil.rmtree(peers_folder(path), ignore_errors=True)


def test_news_reach_the_others_of_a_file_that_lies_too_deep_for_a_socket(deep: str) -> None:
    heard: queue.SimpleQueue[News] = queue.SimpleQueue()
    speaker, listener, stranger = Peers(deep), Peers(deep), Peers(f"{deep}2")
    listener.listen(heard.put)
    stranger.tell({"other"}, None)
    speaker.tell({"add"}, 7)
    assert heard.get(timeout=10) == News(("add",), 7)
    assert len(os.fsencode(listener._mine)) <= 100
    assert stat.S_IMODE(peers_folder(deep).stat().st_mode) == 0o700
    for one in (speaker, listener, stranger):
        one.close()
    assert not peers_folder(deep).exists()  # nothing is left behind


async def test_events_are_heard_of_a_file_that_lies_too_deep_for_a_socket(deep: str) -> None:
    speaker, listener = FileBroadcast(deep), FileBroadcast(deep)
    pieces = listener.listen()
    first = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert speaker.is_heard
    speaker.say(b"news")
    assert await asyncio.wait_for(first, 10) == b"news"
    await pieces.aclose()
    speaker.close()


def test_a_folder_that_another_user_may_have_made_is_not_used(deep: str) -> None:
    peers_folder(deep).mkdir()
    peers_folder(deep).chmod(0o777)
    peers = Peers(deep)
    peers.listen(lambda news: None)
    assert not peers.listens
    assert sockets_in(peers_folder(deep)) == []
    peers.close()
