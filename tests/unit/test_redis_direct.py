"""Connections of threads that submit without an event loop."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from reverie.backends.redis import direct
from reverie.backends.redis.connection import POOL_SIZE, Connections
from reverie.backends.redis.direct import DirectConnections
from reverie.base.bridge import run_here
from reverie.errors import BackendUnavailableError
from support.living import wait_until


@pytest.fixture
def connections(redis_url: str) -> DirectConnections:
    others = Connections(redis_url)
    others.open()
    found = DirectConnections(redis_url, others)
    yield found
    found.close()


def ask(connections: DirectConnections, *command: str) -> object:
    return run_here(connections.call(*command))


def my_id(connections: DirectConnections) -> int:
    return ask(connections, "CLIENT", "ID")


def test_the_one_that_was_used_last_is_used_again(connections: DirectConnections) -> None:
    first = my_id(connections)
    assert {my_id(connections) for _ in range(3)} == {first}


def test_one_that_was_cut_is_made_anew(connections: DirectConnections, redis_url: str) -> None:
    first = my_id(connections)
    with Redis.from_url(redis_url) as server:
        server.client_kill_filter(_id=str(first))
    assert my_id(connections) != first


def test_one_that_has_an_error_for_an_answer_is_not_used_again(connections: DirectConnections) -> None:
    first = my_id(connections)
    with pytest.raises(Exception, match="unknown command"):
        ask(connections, "NONSENSE")
    assert my_id(connections) != first


def test_those_of_another_process_are_left_alone(
    connections: DirectConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = my_id(connections)
    (inherited,) = connections._free
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert my_id(connections) != first
    assert inherited.is_connected
    inherited.disconnect()


def test_there_are_only_so_many(connections: DirectConnections) -> None:
    with ThreadPoolExecutor(3 * POOL_SIZE) as threads:
        ids = {found.result() for found in [threads.submit(my_id, connections) for _ in range(500)]}
    assert 1 <= len(ids) <= POOL_SIZE


def test_who_gets_none_hears_why(connections: DirectConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ANSWER_TIMEOUT_S", 0.01)
    for _ in range(POOL_SIZE):
        connections._room.acquire()
    with pytest.raises(BackendUnavailableError, match=f"all {POOL_SIZE} connections were in use"):
        my_id(connections)


def test_one_that_is_in_use_when_the_server_is_left_goes_after_its_answer(
    connections: DirectConnections, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as server:
        name = f"list-{os.getpid()}"
        waiter = threading.Thread(target=ask, args=(connections, "BLPOP", name, "10"))
        waiter.start()
        wait_until(lambda: server.info("clients")["blocked_clients"])
        connections.close()
        server.rpush(name, "1")
        waiter.join()
    assert connections._free == []
