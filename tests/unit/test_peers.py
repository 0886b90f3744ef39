"""Processes that share a file wake each other."""

from __future__ import annotations

import queue
import socket

import pytest

from reverie.storage.peers import News, Peers


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


def test_a_path_that_is_too_long_for_a_socket_does_without(tmp_path) -> None:
    peers = Peers(str(tmp_path / ("x" * 120)))
    peers.listen(lambda news: None)
    peers.tell({"add"}, None)
    peers.close()
