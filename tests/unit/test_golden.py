"""The scheduler's answers, byte for byte as the files under `tests/golden` have them.

Each file has a request and its answer. The world before the request is made here, of real messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from reverie import AsyncScheduler, Message
from reverie.backends.moves import ClaimRequest, Move, Presence, Settlement, Want
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client
from support.servers import valkey

GOLDEN = Path(__file__).parents[1] / "golden"
TASK = "task_20240722_001"
ITEMS = ("5b0c6f0e-1d3a-4c58-8f6e-2f1f7f0a9d01", "e1f2a3b4-7c6d-4e5f-8a9b-0c1d2e3f4a02")


class World:
    """A queue whose messages stand as the test wants them."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self._queue = scheduler.runtime.backend.queue

    async def submit(self, label: str, count: int = 1, **fields: Any) -> None:
        given = {"user_id": "u_123", "mem_cube_id": "mem_001", "label": label, **fields}
        await self._scheduler.submit_messages([Message(**given) for _ in range(count)])

    async def claim(self, label: str, count: int = 1) -> list[Settlement]:
        wants = {label: Want(slots=count, per_slot=1)}
        claims = await self._queue.claim(ClaimRequest(worker="w", wants=wants))
        assert len(claims) == count
        return [Settlement(claim=claim, move=Move.COMPLETE) for claim in claims]

    async def run(self, label: str, count: int = 1, move: Move = Move.COMPLETE) -> None:
        """Let as many come to their end, each in a lane of its own."""
        for _ in range(count):
            ended = [Settlement(claim=s.claim, move=move) for s in await self.claim(label)]
            assert [one.state for one in await self._queue.settle(ended)] == ["applied"]

    async def work(self, *labels: str) -> None:
        """Let a worker for these labels be alive."""
        await self._queue.renew([], 30_000, Presence(worker="w", labels=labels))


async def items(world: World) -> None:
    """One of two is done."""
    await world.submit("query", item_id=ITEMS[0], task_id=TASK)
    await world.run("query")
    await world.submit("query", item_id=ITEMS[1])
    await world.claim("query")


async def lanes(world: World) -> None:
    """Two lanes; one of each is claimed, the rest waits."""
    await world.submit("query", 4)
    await world.submit("add", 3)
    await world.claim("query")
    await world.claim("add")


async def counts(world: World) -> None:
    """Two labels, one of them handled."""
    await world.work("query")
    for label, waiting, completed, failed in (("query", 2, 15, 0), ("mem_archive", 1, 9, 1)):
        await world.submit(label, completed + failed)
        await world.run(label, completed)
        await world.run(label, failed, Move.BURY)
        await world.submit(label, waiting)
    await world.submit("query")
    await world.claim("query")


async def nothing(world: World) -> None:
    """Nobody has submitted anything."""


WORLDS = {
    "status_of_user": items,
    "status_of_task": items,
    "status_of_item": items,
    "status_of_unknown_task": items,
    "task_queue_status": lanes,
    "task_queue_status_of_unknown_user": lanes,
    "allstatus": counts,
    "submit": nothing,
    "wait_idle": lanes,
    "wait_timeout": lanes,
    "wait_out_of_range": lanes,
    "wait_stream_idle": lanes,
    "wait_stream_timeout": lanes,
}


@pytest.fixture(scope="module")
def own_redis():
    """A server of our own: the golden names of lanes have the prefix that everybody has."""
    with valkey() as url:
        yield url


@pytest.fixture
def redis(own_redis: str) -> str:
    with Redis.from_url(own_redis) as server:
        server.flushall()
    return own_redis


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock):
    if request.param == "redis":
        url = request.getfixturevalue("redis")
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    scheduler = AsyncScheduler(settings=load_settings(queue={"url": url}, data_dir=tmp_path), clock=clock)
    scheduler.runtime.worker.name = "here-1"
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


def test_every_file_has_its_world() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(WORLDS)


@pytest.mark.parametrize("name", WORLDS)
async def test_golden(name: str, scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.observe.idle.time", SimpleNamespace(monotonic=lambda: 0.0))
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    await WORLDS[name](World(scheduler))
    method, path = golden["request"].split(" ")
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        response = await client.request(method, path, json=golden.get("body"))
    if isinstance(golden["answer"], list):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.text == "".join(f"data: {compact(event)}\n\n" for event in golden["answer"])
    else:
        assert response.status_code == golden["answer"]["code"]
        assert response.text == compact(golden["answer"])


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
