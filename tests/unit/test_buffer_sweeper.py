"""The buffer sweeper finds buffers that are full or old, and removes what has been done for long."""

from __future__ import annotations

import asyncio

import pytest

from reverie.effect import Buffer, BufferDone
from reverie.errors import QueueFullError
from reverie.memory import buffer_sweeper
from reverie.memory.buffer_sweeper import BufferSweeper
from reverie.memory.buffers import BufferKey, BufferSettings
from support.memory_bench import open_file

SETTINGS = BufferSettings(max_tokens=100, max_age_s=600, sweep_s=60, retention_s=3600, lease_s=300)


class Queue:
    """Takes messages, except those of users that it refuses."""

    def __init__(self) -> None:
        self.messages: list = []
        self.refused: set[str] = set()
        self.arrived = asyncio.Event()

    async def submit(self, messages) -> None:
        if self.refused & {message.user_id for message in messages}:
            raise QueueFullError("queue.max_depth_per_tenant", 1, 1)
        self.messages += messages
        self.arrived.set()

    def users(self) -> list[str]:
        users = [message.user_id for message in self.messages]
        self.messages = []
        self.arrived.clear()
        return users


@pytest.fixture
async def bench(tmp_path, clock):
    async with open_file(tmp_path / "memory.db", clock=clock) as bench:
        yield bench


@pytest.fixture
async def queue(bench) -> Queue:
    return Queue()


def new_sweeper(bench, queue: Queue, *, wanted: bool = True, **settings) -> BufferSweeper:
    settings = SETTINGS.model_copy(update=settings)
    return BufferSweeper(bench.store, bench.clock, settings, submit=queue.submit, wanted=lambda: wanted)


async def put(bench, user_id: str, name: str = "a", tokens: int = 10) -> None:
    row = Buffer(buffer_id=name, blob_id=name, content="text", tokens=tokens)
    assert await bench.apply(row, user_id=user_id) == "applied"


async def read(bench, user_id: str) -> None:
    """Take all rows of a user, and mark them done."""
    key = BufferKey(user_id, user_id)
    claim = await bench.store.claim_buffer(key, "run", lease_ms=1000, max_tokens=10_000)
    ids = tuple(row.buffer_id for row in claim.rows)
    assert await bench.apply(BufferDone(token=claim.token, buffer_ids=ids), user_id=user_id) == "applied"


async def test_full_buffers_are_read_at_once(bench, queue) -> None:
    sweeper = new_sweeper(bench, queue)
    await put(bench, "ann")
    await put(bench, "bob", tokens=100)
    assert await sweeper.sweep() == 1
    (message,) = queue.messages
    assert (message.user_id, message.mem_cube_id, message.label) == ("bob", "bob", "mem_read")
    assert (message.unique_key, message.unique_policy) == ("buffer:chat", "sooner")
    assert (message.content, message.due) == ('{"blob_type":"chat"}', None)


async def test_old_buffers_are_read_a_sweep_later_than_they_are_due(bench, queue) -> None:
    sweeper = new_sweeper(bench, queue)
    await put(bench, "ann")
    bench.clock.advance(660)
    assert await sweeper.sweep() == 0
    await put(bench, "ann", "b")
    bench.clock.advance(1)
    assert await sweeper.sweep() == 1
    assert queue.users() == ["ann"]
    await read(bench, "ann")
    assert await sweeper.sweep() == 0


async def test_a_tenant_whose_message_is_refused_holds_up_no_other(bench, queue) -> None:
    sweeper = new_sweeper(bench, queue)
    for user in ("ann", "bob", "cleo"):
        await put(bench, user, tokens=100)
        bench.clock.advance(1)
    queue.refused = {"ann"}
    assert await sweeper.sweep() == 3
    assert queue.users() == ["bob", "cleo"]
    queue.refused = set()
    await sweeper.sweep()
    assert queue.users() == ["ann", "bob", "cleo"]


async def test_done_rows_are_pruned(bench, queue, monkeypatch) -> None:
    monkeypatch.setattr(buffer_sweeper, "PRUNED_AT_ONCE", 2)
    sweeper = new_sweeper(bench, queue)
    for name in "abcde":
        await put(bench, "ann", name)
    await read(bench, "ann")
    await put(bench, "ann", "f")
    bench.clock.advance(3600)
    assert await sweeper.prune() == 0
    bench.clock.advance(1)
    assert await sweeper.prune() == 5
    assert [row.buffer_id for row in await bench.store.buffer_rows(BufferKey("ann", "ann"))] == ["f"]


async def test_done_rows_are_kept_for_a_lease_at_least(bench, queue) -> None:
    sweeper = new_sweeper(bench, queue, retention_s=0)
    await put(bench, "ann")
    await read(bench, "ann")
    bench.clock.advance(300)
    assert await sweeper.prune() == 0
    bench.clock.advance(1)
    assert await sweeper.prune() == 1


async def test_it_sweeps_again_and_again(bench, queue) -> None:
    sweeper = new_sweeper(bench, queue)
    await put(bench, "ann", tokens=100)
    await sweeper.start()
    async with asyncio.timeout(30):
        await queue.arrived.wait()
        assert queue.users() == ["ann"]
        while not queue.messages:
            bench.clock.advance(60)
            await asyncio.sleep(0)
    await sweeper.stop(1)


@pytest.mark.parametrize("reason", ["not wanted", "no buffers"])
async def test_it_does_not_run_where_it_has_nothing_to_do(bench, queue, reason: str) -> None:
    await put(bench, "ann", tokens=100)
    sweeper = new_sweeper(bench, queue, wanted=reason != "not wanted")
    if reason == "no buffers":
        sweeper = BufferSweeper(object(), bench.clock, SETTINGS, submit=queue.submit, wanted=lambda: True)
    await sweeper.start()
    assert sweeper._task is None
    await sweeper.stop(1)
    assert queue.messages == []
