"""What ended work leaves behind is removed: lanes, statuses under a shorter retention, inbox rows."""

from __future__ import annotations

import apsw
import msgspec
import pytest

from conformance.conftest import BACKENDS, Bench, done, ids, message, settle
from conformance.test_inbox import DAY_S, ONE, Memory, accept, forget, hand_on, memory, remember
from reverie import Scheduler
from reverie.backends.control import RequeueItems
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import Move, Settlement, Status
from reverie.backends.redis import RedisBackend
from reverie.backends.sqlite import SqliteBackend
from reverie.base.clock import from_epoch_ms
from reverie.dispatch.pruner import Pruner
from reverie.testing import ManualClock, drain

__all__ = ["memory"]
RETENTION_S = 60
"""As `LIMITS` has it."""


async def prune(bench: Bench, limit: int = 1000) -> tuple[int, int]:
    """Make one pass; the answer is how many rows it has changed, and in how many steps."""
    steps = [await bench.queue.prune(limit)]
    while steps[-1].after is not None:
        steps.append(await bench.queue.prune(limit, steps[-1].after))
    return sum(step.changed for step in steps), len(steps)


def lanes_left(bench: Bench) -> int:
    """How many lanes the backend knows, drained ones included."""
    if isinstance(bench.backend, MemoryBackend):
        return len(bench.queue._state.lanes)
    if isinstance(bench.backend, SqliteBackend):
        count = lambda connection: connection.execute("SELECT count(*) FROM lanes").get  # noqa: E731
        return bench.backend._database.submit(count).result()
    assert isinstance(bench.backend, RedisBackend)
    return len(list(bench.clock._server.scan_iter(f"{bench.clock._prefix}:lanes:*")))


async def test_lanes_that_were_used_once_leave_nothing_after_the_retention(bench: Bench) -> None:
    users = [f"user-{number}" for number in range(10_000)]
    await bench.submit(*(message("1", user) for user in users))
    assert len(await bench.run_all()) == len(users)
    await prune(bench)
    bench.clock.advance(RETENTION_S)
    while (await bench.queue.advance(1000)).expired:
        pass
    changed, steps = await prune(bench)
    assert lanes_left(bench) == 0
    if bench.kind == "sqlite":
        assert (changed, steps) == (len(users), 12)  # one for the dates, and the last finds nothing
    await bench.submit(message("1", users[0]))
    assert await bench.run_all() == ["1"]


async def test_lanes_with_work_stay(bench: Bench) -> None:
    late = bench.clock.now() + 3 * RETENTION_S * 1000
    await bench.submit(message("waits", "ann"), message("due", "bob", due=from_epoch_ms(late)))
    await bench.submit(message("runs", "cid"))
    (running,) = [claim for claim in await bench.claim(slots=9) if claim.message.item_id == "runs"]
    await bench.advance(2 * RETENTION_S)
    await prune(bench)
    assert await settle(bench, done(running)) == ["stale"]
    await bench.advance(2 * RETENTION_S)
    assert sorted(await bench.run_all()) == ["due", "runs", "waits"]


async def test_a_resting_lane_stays(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim(min_idle_ms=10 * RETENTION_S * 1000)
    await settle(bench, done(claim))
    await bench.advance(2 * RETENTION_S)
    await prune(bench)
    await bench.submit(message("2"))
    assert await bench.claim() == []
    await bench.advance(8 * RETENTION_S)
    assert ids(await bench.claim()) == ["2"]


async def test_a_dead_letter_can_be_requeued_after_its_lane_was_removed(bench: Bench) -> None:
    await bench.submit(message("dead", "ann"))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    await bench.advance(2 * RETENTION_S)
    await prune(bench)
    await bench.submit(message("other", "bob"))  # may get the number of the lane
    assert (await bench.control(RequeueItems, user_id="ann")).changed
    (lane,) = await bench.views.lanes("ann")
    assert (lane.lane.user_id, lane.waiting) == ("ann", 1)
    assert sorted(await bench.run_all()) == ["dead", "other"]
    assert await bench.views.lanes("ann") == []


def with_retention(bench: Bench, redis_url: str, seconds: float) -> Bench:
    """The same queue, opened with another retention."""
    limits = msgspec.structs.replace(bench.queue._limits, retention_ms=round(seconds * 1000))
    if bench.kind == "sqlite":
        backend = SqliteBackend(bench.backend._database, bench.clock, limits)
    else:
        backend = RedisBackend(redis_url, limits, prefix=bench.clock._prefix, allow_volatile=True)
    return Bench(backend, bench.clock)


@pytest.mark.parametrize("bench", [kind for kind in BACKENDS if kind != "memory"], indirect=True)
async def test_a_shorter_retention_takes_what_has_already_ended(bench: Bench, redis_url: str) -> None:
    for number in range(25):
        await bench.submit(message(f"done-{number}"), message(f"no-{number}"), message(f"dead-{number}"))
        moves = {"done": Move.COMPLETE, "no": Move.CANCEL, "dead": Move.BURY}
        for claim in await bench.claim():
            move = moves[claim.message.item_id.partition("-")[0]]
            await settle(bench, Settlement(claim=claim, move=move))
        bench.clock.advance(1)
    await prune(bench)
    shorter = with_retention(bench, redis_url, 10)
    await shorter.backend.open()
    changed, steps = await prune(shorter, limit=7)
    assert changed == 50
    assert steps >= 7
    assert (await shorter.queue.advance(100)).expired == 32  # those that ended 10 seconds ago, or earlier
    assert await prune(shorter) == (0, 1 if bench.kind == "redis" else 2)
    longer = with_retention(bench, redis_url, 60)
    await longer.backend.open()
    await prune(longer)
    assert (await shorter.advance(9)).expired == 18
    left = [await bench.status(message(f"{word}-24")) for word in ("done", "no", "dead")]
    assert [item and item.status for item in left] == [None, None, Status.FAILED]
    if bench.kind == "redis":
        await shorter.backend.close()
        await longer.backend.close()


# -- the inbox ---------------------------------------------------------------------------------------


async def rows(memory: Memory) -> int:
    read = lambda connection: connection.execute("SELECT count(*) FROM inbox").get  # noqa: E731
    return await memory.store._database.read(read)


async def prune_inbox(memory: Memory) -> int:
    """Let a pruner make one pass; the answer is how many rows are left."""
    await Pruner(memory.bench.backend, memory.store, memory.bench.clock, 1).prune()
    return await rows(memory)


async def test_old_inbox_rows_are_removed(bench: Bench, memory: Memory) -> None:
    claims = []
    for number in range(250):
        await bench.submit(message(str(number)))
        claims += await bench.claim()
        await memory.settle(claims[-1], f"m-{number}")
    bench.clock.advance(30 * DAY_S)
    assert await prune_inbox(memory) == 250
    bench.clock.advance(DAY_S + 1)
    assert await prune_inbox(memory) == 0
    await memory.settle(claims[0], "late")  # refused, although the row is gone
    assert "late" not in await memory.found()


async def test_the_row_of_a_message_that_may_run_again_stays(bench: Bench, memory: Memory) -> None:
    lost = await accept(bench)
    application = Settlement(claim=lost, move=Move.BURY)
    await memory.settler._apply(memory.store, [application], [])  # it dies before it can tell the queue
    for number in range(3):
        bench.clock.advance(31 * DAY_S + 1)
        assert await prune_inbox(memory) == 1, number
    claim = await hand_on(bench)
    await memory.settle(claim, "a")
    assert (await bench.status(ONE)).status is Status.COMPLETED
    await forget(bench)
    bench.clock.advance(31 * DAY_S)
    assert await prune_inbox(memory) == 0


async def test_the_row_that_a_later_run_has_found_stays_as_long_as_a_new_one(
    bench: Bench, memory: Memory
) -> None:
    first = await accept(bench)
    await memory.settler._apply(memory.store, [remember(first, "a")], [])
    bench.clock.advance(25 * DAY_S)
    asleep = await hand_on(bench)
    await memory.settle(await hand_on(bench), "b")
    await forget(bench)
    bench.clock.advance(7 * DAY_S)
    assert await prune_inbox(memory) == 1
    await memory.settle(asleep, "late")
    assert await memory.found() == ["a"]


async def test_a_dead_letter_keeps_its_row(bench: Bench, memory: Memory) -> None:
    await memory.settle(await accept(bench), move=Move.BURY)
    bench.clock.advance(100 * DAY_S)
    assert await prune_inbox(memory) == 1


async def test_pruning_leaves_a_row_that_was_used_meanwhile(bench: Bench, memory: Memory) -> None:
    await memory.settle(await accept(bench), "a")
    bench.clock.advance(31 * DAY_S + 1)
    await bench.queue.advance(10)
    entries = await memory.store.old_entries(10)
    await memory.settle(await accept(bench), "b")
    await memory.store.prune_inbox(entries, {})
    assert await rows(memory) == 1


def test_a_worker_prunes(tmp_path) -> None:
    path, clock = tmp_path / "q.db", ManualClock()
    scheduler = Scheduler(f"sqlite:///{path}", clock=clock)
    scheduler.runtime.settings.scheduler.enabled = False  # timed tasks have lanes, too
    scheduler.handler("note")(lambda message: None)
    with scheduler.used():
        for user in ("ann", "bob", "cid"):
            scheduler.submit("note", user_id=user)
        drain(scheduler)
        clock.advance(7 * DAY_S)
        drain(scheduler)
    file = apsw.Connection(str(path))
    assert file.execute("SELECT count(*) FROM lanes").get == 0
    file.close()
