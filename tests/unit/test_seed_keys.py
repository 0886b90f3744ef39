"""The keys of timed tasks, read by the commands of `redis-cli` that the seed's document is about.

The names, fields and values are those of its chapter on keys; no time has a fraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from reverie import Scheduler, TaskScheduler
from reverie.settings import Settings
from reverie.testing import ManualClock, drain
from support.servers import RedisClock, Valkey, valkey_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = 1_735_200_000_123
SECOND = START // 1000
TASKS = {
    "memory_compression": {
        "enabled": True,
        "trigger_mode": "user_activity",
        "interval": 1800,
        "timeout": 300,
    },
    "data_cleanup": {"enabled": True, "trigger_mode": "periodic", "interval": 86_400, "timeout": 600},
}
USER_KEY = "user_123:device_456:agent_789"
TASK = f"scheduler:task:memory_compression:{USER_KEY}"
QUEUE = "scheduler:queue:memory_compression"
LOCK = f"scheduler:lock:memory_compression:{USER_KEY}"
LAST_EXEC = f"scheduler:last_exec:memory_compression:{USER_KEY}"


class House:
    """A scheduler with the keys of the default prefix, its time, and the server as `redis-cli` sees it."""

    def __init__(self, server: Valkey, folder: Path) -> None:
        queue = {"url": server.url, "allow_volatile": True}
        settings = Settings(data_dir=folder, queue=queue, scheduler={"tasks": TASKS})
        self._clocks = [ManualClock(START), RedisClock(server.url, settings.queue.redis_prefix, START)]
        self.scheduler = Scheduler(settings=settings, clock=self._clocks[0])
        self.tasks = TaskScheduler(self.scheduler)
        self._client = Redis.from_url(server.url, protocol=2)  # as `redis-cli` reads it
        self._connection = self._client.connection_pool.get_connection()

    def cli(self, line: str) -> str | int | list[str]:
        """The answer to a line as it would be typed: texts as the server sends them."""
        self._connection.send_command(*line.split())
        answer = self._connection.read_response()
        if isinstance(answer, list):
            return [part.decode() for part in answer]
        return answer.decode() if isinstance(answer, bytes) else answer

    def hash(self, key: str) -> dict[str, str]:
        flat = self.cli(f"HGETALL {key}")
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def advance(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.advance(seconds)

    def close(self) -> None:
        self.scheduler.close()
        self._client.flushall()
        self._connection.disconnect()
        self._client.close()
        self._clocks[1].close()


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """A server of its own: the keys of the default prefix would meet those of others."""
    with valkey_server() as server:
        yield server


@pytest.fixture
def house(server: Valkey, tmp_path: Path) -> Iterator[House]:
    house = House(server, tmp_path)
    try:
        yield house
    finally:
        house.close()


def scheduled(house: House) -> None:
    assert house.tasks.schedule_user_task("memory_compression", *USER_KEY.split(":")) is True


def test_a_type(house: House) -> None:
    scheduled(house)
    found = house.hash("scheduler:task_type:memory_compression")
    assert found["name"] == "memory_compression"
    assert found["trigger_mode"] == "user_activity"
    assert (int(found["interval"]), int(found["timeout"]), found["enabled"]) == (1800, 300, "true")


def test_a_task_that_waits(house: House) -> None:
    scheduled(house)
    house.advance(500.5)
    assert house.tasks.schedule_user_task("memory_compression", *USER_KEY.split(":")) is False
    found = house.hash(TASK)
    assert (found["status"], int(found["retry_count"])) == ("pending", 0)
    assert [found[name] for name in ("user_id", "device_id", "agent_id")] == USER_KEY.split(":")
    assert int(found["created_at"]) == SECOND
    assert int(found["scheduled_at"]) == SECOND + 1800
    assert int(found["last_activity"]) == SECOND + 500
    member, score = house.cli(f"ZRANGE {QUEUE} 0 -1 WITHSCORES")
    assert (member, int(score)) == (USER_KEY, SECOND + 1800)
    assert house.cli(f"ZRANGEBYSCORE {QUEUE} 0 {SECOND + 1799}") == []
    assert house.cli(f"ZRANGEBYSCORE {QUEUE} 0 {SECOND + 1800}") == [USER_KEY]
    assert house.cli(f"TTL {TASK}") == -1, "a task that waits is not forgotten"


def test_a_task_that_was_pulled(house: House) -> None:
    scheduled(house)
    house.advance(1800)
    task = house.tasks.get_pending_task("memory_compression")
    assert task is not None
    assert (task["user_key"], house.cli(f"GET {LOCK}")) == (USER_KEY, task["lock_token"])
    assert 295 <= int(house.cli(f"TTL {LOCK}")) <= 300, "the timeout of its type"
    found = house.hash(TASK)
    assert (found["status"], int(found["scheduled_at"])) == ("running", SECOND + 1800)
    assert house.cli(f"ZRANGE {QUEUE} 0 -1 WITHSCORES") == []


def test_a_task_that_has_ended(house: House) -> None:
    scheduled(house)
    house.advance(1800)
    task = house.tasks.get_pending_task("memory_compression")
    assert task is not None
    house.advance(7)
    assert house.tasks.complete_task("memory_compression", USER_KEY, task["lock_token"]) is True
    found = house.hash(TASK)
    assert (found["status"], int(found["scheduled_at"])) == ("completed", SECOND + 1800)
    assert 7190 <= int(house.cli(f"TTL {TASK}")) <= 7200, "its task_ttl"
    assert int(house.cli(f"GET {LAST_EXEC}")) == SECOND + 1807
    assert 86_390 <= int(house.cli(f"TTL {LAST_EXEC}")) <= 86_400, "kept apart from the task"
    assert house.cli(f"EXISTS {LOCK}") == 0


def test_a_task_that_failed_waits_without_a_lock(house: House) -> None:
    scheduled(house)
    house.advance(1800)
    task = house.tasks.get_pending_task("memory_compression")
    assert task is not None
    house.tasks.complete_task("memory_compression", USER_KEY, task["lock_token"], success=False)
    found = house.hash(TASK)
    assert (found["status"], int(found["retry_count"])) == ("running", 1)
    assert house.cli(f"EXISTS {LOCK}") == 0


def test_a_task_of_nobody(house: House) -> None:
    house.tasks.register_handler("data_cleanup", lambda user_id, device_id, agent_id: True)
    drain(house.scheduler)
    assert house.cli("ZRANGE scheduler:queue:data_cleanup 0 -1 WITHSCORES") == []
    found = house.hash("scheduler:periodic:data_cleanup")
    assert (found["status"], int(found["next_run"])) == ("idle", SECOND + 86_400)
    house.advance(86_400)
    drain(house.scheduler)
    found = house.hash("scheduler:periodic:data_cleanup")
    assert (found["status"], int(found["last_run"])) == ("idle", SECOND + 86_400)
    assert int(found["next_run"]) == SECOND + 2 * 86_400
    assert house.cli("ZRANGE scheduler:queue:data_cleanup 0 -1 WITHSCORES") == []


def test_every_time_is_a_whole_number(house: House) -> None:
    house.tasks.register_handler("memory_compression", lambda user_id, device_id, agent_id: True)
    scheduled(house)
    house.advance(1800.25)
    drain(house.scheduler)
    house.advance(0.5)
    scheduled(house)
    times = {"created_at", "scheduled_at", "last_activity", "last_run", "last_exec", "next_run"}
    for key in (TASK, "scheduler:periodic:data_cleanup"):
        for name, text in house.hash(key).items():
            assert name not in times or SECOND <= int(text) <= SECOND + 100_000, (key, name, text)
    for key in house.cli("KEYS scheduler:*"):
        if key.startswith("scheduler:messages"):
            continue
        if house.cli(f"TYPE {key}") == "zset":
            for score in house.cli(f"ZRANGE {key} 0 -1 WITHSCORES")[1::2]:
                assert str(int(score)) == score, key
