"""What the views of the queue leave on a Redis server, and what they cost there."""

from __future__ import annotations

import pytest

from reverie.backends.control import CancelItems, DeleteItems, RequeueItems
from reverie.backends.moves import Move, QueueLimits
from reverie.backends.redis import RedisBackend
from reverie.backends.views import LaneState, QueueHealth
from reverie.message import Key, Lane
from support.redis_bench import NOW, Bench, message, open_bench, within
from support.servers import valkey

# -- lanes -------------------------------------------------------------------------------------------


async def test_users_whose_work_is_done_leave_no_key(bench: Bench) -> None:
    await bench.queue.submit([message("now", f"u{n}") for n in range(5)])
    await bench.queue.submit([message("later", f"u{n}", due=within(5)) for n in range(5)])
    lanes = {f":lanes:u{n}" for n in range(5)}
    assert lanes < bench.key_names()
    await bench.settle(*await bench.claim())
    assert lanes < bench.key_names()
    await bench.control(CancelItems, user_id="u0")
    bench.clock.advance(5)
    await bench.queue.advance(10)
    await bench.settle(*await bench.claim())
    assert bench.lane_keys() == set()
    assert not lanes & bench.key_names()


async def test_a_lane_that_has_only_delayed_work_has_no_stream(bench: Bench) -> None:
    later = message("1", due=within(5))
    await bench.queue.submit([later])
    stream = f"{bench.prefix}:ann:ann:work"
    assert not bench.server.exists(stream)
    bench.clock.advance(5)
    await bench.queue.advance(10)
    assert bench.server.xlen(stream) == 1
    await bench.settle(*await bench.claim(ordered=False), move=Move.RETRY, delay_ms=1000)
    assert not bench.server.exists(stream)
    lane = Lane("ann", "ann", "work")
    assert await bench.backend.views.lanes("ann") == [LaneState(lane=lane, waiting=1, in_progress=0)]


async def test_users_whose_ids_begin_alike_have_their_own_lanes(bench: Bench) -> None:
    users = ["a", "a:", "a:b", "a;", "a-b", "ab", "A", "é"]
    await bench.queue.submit([message("1", user, mem_cube_id="c:d") for user in users])
    for user in users:
        states = await bench.backend.views.lanes(user)
        assert [state.lane for state in states] == [Lane(user, "c:d", "work")]


async def test_a_user_may_have_very_many_lanes(bench: Bench) -> None:
    cubes = [f"c{n:04}" for n in range(2500)]
    await bench.queue.submit([message(cube, mem_cube_id=cube) for cube in cubes])
    states = await bench.backend.views.lanes("ann")
    assert [state.lane.mem_cube_id for state in states] == cubes


# -- counts ------------------------------------------------------------------------------------------


# -- history -----------------------------------------------------------------------------------------


async def test_a_completion_writes_no_history(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    await bench.settle(*await bench.claim(), move=Move.RELEASE, attempt=False)
    await bench.settle(*await bench.claim())
    assert [run.outcome for run in await bench.backend.views.history(Key("ann", "1"))] == ["completed"]
    assert not any(key.startswith(":history") for key in bench.key_names())


@pytest.mark.parametrize("move", [Move.COMPLETE, Move.BURY, Move.CANCEL])
async def test_the_history_of_an_item_goes_with_it(bench: Bench, move: Move) -> None:
    await bench.queue.submit([message("a:1")])
    await bench.settle(*await bench.claim(), move=Move.RETRY, error='"boom" é')
    await bench.settle(*await bench.claim(), move=move)
    assert ":history:ann%3Aa%3A1" in bench.key_names()
    await bench.control(DeleteItems, user_id="ann")
    bench.clock.advance(60)
    await bench.queue.advance(10)
    assert {key for key in bench.key_names() if not key.startswith(":wake")} == {":labels"}


async def test_a_run_of_a_worker_with_any_name(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    (claim,) = await bench.claim(worker='"wörker": 1%20')
    await bench.settle(claim, move=Move.BURY, error="no")
    await bench.control(RequeueItems, user_id="ann")
    (claim,) = await bench.claim(worker="w,2")
    await bench.settle(claim)
    runs = await bench.backend.views.history(Key("ann", "1"))
    assert [run.worker for run in runs] == ['"wörker": 1%20', "w,2"]


async def test_an_item_of_another_program_has_no_history(bench: Bench) -> None:
    bench.server.hset(f"{bench.prefix}-status:task_meta:ann", "1", '{"status": "theirs"}')
    assert await bench.backend.views.history(Key("ann", "1")) == []


# -- health ------------------------------------------------------------------------------------------


async def test_the_oldest_of_a_lane_may_be_one_that_came_back_or_a_new_one(bench: Bench) -> None:
    async def oldest() -> int | None:
        return (await bench.backend.views.health()).oldest_waiting_at

    await bench.queue.submit([message("1")])
    bench.clock.advance(1)
    await bench.settle(*await bench.claim(), move=Move.RETRY)
    bench.clock.advance(1)
    await bench.queue.submit([message("2")])
    assert await oldest() == NOW + 1000
    claims = await bench.claim(slots=1)
    bench.clock.advance(1)
    await bench.settle(*claims, move=Move.RETRY)
    assert await oldest() == NOW + 2000


async def test_a_lane_whose_stream_was_deleted_has_no_age(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    bench.server.delete(f"{bench.prefix}:ann:ann:work")
    assert await bench.backend.views.health() == QueueHealth()


async def test_the_cost_of_a_view_does_not_grow_with_the_work() -> None:
    costs = []
    with valkey() as url:
        for lanes in (250, 2500):
            async with open_bench(url) as bench:
                await bench.queue.submit([message("1", f"u{n}") for n in range(lanes)])
                await bench.queue.submit([message("2", f"u{n}") for n in range(lanes)])
                await bench.claim(slots=lanes // 2, quantum=1)
                views = bench.backend.views
                costs.append(
                    [
                        await bench.cost(views.health()),
                        await bench.cost(views.labels()),
                        await bench.cost(views.lanes("u1")),
                        await bench.cost(views.history(Key("u1", "1"))),
                    ]
                )
    assert costs[0] == costs[1]


# -- dead letters ------------------------------------------------------------------------------------


async def test_the_retention_of_dead_letters_may_be_set_raised_and_removed_later(
    bench: Bench, redis_url: str
) -> None:
    def with_retention(ms: int | None) -> RedisBackend:
        limits = QueueLimits(dead_retention_ms=ms)
        return RedisBackend(redis_url, limits, prefix=bench.prefix, allow_volatile=True)

    async def expired(ms: int | None) -> int:
        backend = with_retention(ms)
        await backend.open()
        step = await backend.queue.advance(10)
        await backend.close()
        return step.expired

    await bench.queue.submit([message("1"), message("2", "bob")])
    await bench.settle(*await bench.claim(), move=Move.BURY, error="x")
    assert await expired(100_000) == 0  # from now on, their expiry is known
    bench.clock.advance(100)
    for ms in (None, 200_000):
        await expired(ms)
        assert bench.server.zcard(f"{bench.prefix}:failed") == 2
    bench.clock.advance(99)
    await expired(200_000)
    assert bench.server.zcard(f"{bench.prefix}:failed") == 2
    bench.clock.advance(1)
    assert await expired(200_000) == 2
    assert bench.server.zcard(f"{bench.prefix}:failed") == 0
    assert ":dead" not in bench.key_names()
