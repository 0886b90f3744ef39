"""`reverie redis repair`: what was lost is mended, all is claimed in order then, and counted right."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie.backends.redis import ForbiddenError, RedisBackend
from reverie.backends.redis.keys import GROUP
from reverie.backends.redis.library import QUEUE, repair_source
from reverie.backends.redis.repair import Repairer
from reverie.errors import ReverieError
from support.commands import run
from support.living import passes, until
from support.places import Place
from support.redis_bench import NOW, Bench, message, within
from support.repairing import (
    LIMITS,
    check_drained,
    counted,
    everything,
    mend,
    open_apart,
    repair,
    set_the_scene,
    standing,
    stream_of,
)
from support.servers import valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    async with open_apart(redis_url) as opened:
        yield opened


# -- what was deleted --------------------------------------------------------------------------------


async def test_nothing_is_to_be_mended(bench: Bench) -> None:
    await set_the_scene(bench)
    repaired = await mend(bench)
    assert (repaired.mended, repaired.lost, repaired.unreadable) == ({}, [], [])
    assert (repaired.lanes, repaired.users, repaired.messages) == (7, 6, 26)
    await check_drained(bench)


READY = {
    ":ready:work": "rings",
    ":ready:idle": "rings",
    ":lanes:ann": "lanes",
    ":lanes:cem": "lanes",
    ":lanes:dan": "lanes",
    ":lanes:fay": "lanes",
    ":parked": "rings",
    ":unordered": "lanes",
    ":labels": "labels",
    ":leases": "leases",
    ":claimed": "claimed",
    ":claims": "claimed",
    ":due": "due",
    ":deadlines": "deadlines",
    ":failed": "failed",
    ":cancelled": "cancelled",
    ":expiry": "expiry",
    ":dependants:fay%3Alimited": "dependants",
    ":unique:fay:fay:idle:k": "unique",
    "-status:task_items:dan:t%3A1": "tasks",
}


@pytest.mark.parametrize("key", READY)
async def test_a_key_that_was_deleted(bench: Bench, key: str) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    assert bench.server.delete(bench.prefix + key) == 1
    repaired = await mend(bench)
    assert READY[key] in repaired.mended
    assert standing(bench) == before
    await check_drained(bench)


async def test_all_of_them_at_once(bench: Bench) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    assert bench.server.delete(*(bench.prefix + key for key in READY)) == len(READY)
    await repair(bench)
    after = standing(bench)
    # That work of a lane may be run out of order stood only in what was deleted: it is not parked now.
    assert before.pop(":unordered") == {b"loose"}
    assert after.keys() == before.keys()
    assert (before.pop(":parked"), after.pop(":parked")) == (
        {"cem:cem": " loose parked"},
        {"cem:cem": " parked"},
    )
    assert after == before
    assert await counted(bench) == {
        "work": (11, 2),
        "loose": (4, 4),
        "parked": (1, 0),
        "rests": (1, 0),
        "idle": (3, 0),
    }
    assert (await repair(bench)).mended == {}
    await check_drained(bench)


async def test_lanes_that_come_back_keep_their_order(bench: Bench) -> None:
    users = ["ann", "zoe", "bob", "kim"]
    for user in users:
        await bench.queue.submit([message("1", user)])
        bench.clock.advance(1)
    bench.server.delete(f"{bench.prefix}:ready:work")
    await mend(bench)
    await bench.queue.submit([message("1", "amy")])
    assert [claim.message.user_id for claim in await bench.claim()] == [*users, "amy"]


async def test_a_rest_that_was_lost_is_over(bench: Bench) -> None:
    await set_the_scene(bench)
    bench.server.delete(f"{bench.prefix}:resting")
    assert (await mend(bench)).mended == {"rings": 1}
    assert [claim.message.item_id for claim in await bench.claim("rests")] == ["r2"]


@pytest.mark.parametrize("key", [":lanes:ann", ":lanes:fay", ":labels", ":claims"])
async def test_counts_that_were_changed(bench: Bench, key: str) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    for field, text in bench.server.hgetall(bench.prefix + key).items():
        first, *rest = text.split() or [b"0", b"1", b"0", b"3"]
        bench.server.hset(bench.prefix + key, field, b" ".join([b"%d" % (int(first) + 3), *rest]))
    await mend(bench)
    assert standing(bench) == before
    await check_drained(bench)


async def test_what_points_to_nothing_goes(bench: Bench) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    for key in ("leases", "deadlines", "failed", "cancelled", "expiry", "due", "resting"):
        bench.server.zadd(f"{bench.prefix}:{key}", {"fay:nobody": NOW, "nonsense": NOW})
    for key in ("ready:work", "ready:nothing"):
        bench.server.zadd(f"{bench.prefix}:{key}", {"a:b:c": 0, "nonsense": 0})
    bench.server.hset(f"{bench.prefix}:lanes:who", "who:work", "2 0 1 1")
    bench.server.hset(f"{bench.prefix}:lanes:ann", "ann:old", "")
    bench.server.hset(f"{bench.prefix}:claims", "abc", "3")
    bench.server.zadd(f"{bench.prefix}:claimed", {"abc": NOW, "def": NOW})
    bench.server.hset(f"{bench.prefix}:delayed", "dan:d0", "{}")
    bench.server.xgroup_create(stream_of(bench, "ann", "old"), GROUP, "0", mkstream=True)
    repaired = await repair(bench)
    assert repaired.mended == {"strays": 2 * 7 + 2 * 2 + 1 + 1, "lanes": 2, "claimed": 2}
    assert standing(bench) == before
    assert (await repair(bench)).mended == {}


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch):
    """Lets something happen after a call of a repair, as often as it is wanted."""

    def disturb(function: str, happens) -> None:
        call = Repairer._call

        async def called(repairer: Repairer, name: str, *arguments):
            answer = await call(repairer, name, *arguments)
            if name == function:
                await happens()
            return answer

        monkeypatch.setattr(Repairer, "_call", called)

    return disturb


async def test_a_user_of_many_messages_who_does_not_rest_is_counted_again(bench: Bench, disturbed) -> None:
    await bench.queue.submit([message(str(n)) for n in range(1500)])
    await bench.queue.submit([message("later", due=within(5))])
    bench.server.hset(f"{bench.prefix}:lanes:ann", "ann:work", "0 1 0 7")
    times = 0

    async def happens() -> None:
        nonlocal times
        times += 1
        if times < 3:
            await bench.queue.submit([message(f"later {times}", due=within(5))])

    disturbed("recount_users", happens)
    assert (await repair(bench)).mended["lanes"] == 1
    assert times > 4
    assert bench.server.hget(f"{bench.prefix}:lanes:ann", "ann:work") == b"0 1 0 3"
    (state,) = await bench.backend.views.labels()
    assert state.waiting == 1503


async def test_a_user_who_never_rests_is_left_as_it_is(bench: Bench, disturbed) -> None:
    await bench.queue.submit([message(str(n)) for n in range(1500)])
    bench.server.hset(f"{bench.prefix}:labels", "work", "7 0")

    times = 0

    async def happens() -> None:
        nonlocal times
        times += 1
        bench.clock.advance(1)
        await bench.settle(*await bench.claim(slots=1))
        await bench.queue.submit([message(f"later {times}", due=within(5))])

    disturbed("recount_users", happens)
    repaired = await repair(bench)
    assert repaired.busy > 0
    (state,) = await bench.backend.views.labels()
    assert state.waiting == 1500  # for the label it does not matter when it is counted
    assert state.completed == times


# -- others ------------------------------------------------------------------------------------------


async def test_another_queue_is_left_alone(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2", due=within(5))])
    other = RedisBackend(bench.url, LIMITS, prefix=f"{bench.prefix}-b", allow_volatile=True)
    await other.open()
    await other.queue.submit([message("3"), message("4", due=within(5)), message("5", "bob")])
    bench.server.delete(
        *(f"{bench.prefix}{queue}:{key}" for queue in ("", "-b") for key in ("labels", "due"))
    )
    theirs = {key: text for key, text in everything(bench).items() if key.startswith("-b")}
    repaired = await repair(bench, bury_lost=True)
    assert (repaired.messages, repaired.lost) == (2, [])
    assert {key: text for key, text in everything(bench).items() if key.startswith("-b")} == theirs
    await other.close()


async def test_workers_may_go_on_meanwhile(bench: Bench) -> None:
    """Keys vanish while work is submitted, claimed and settled: all of it is done, and counted right then."""
    bench.server.delete(f"{bench.prefix}:clock")
    users, done, ends = [f"u{n}" for n in range(20)], defaultdict(list), 0

    async def submit() -> None:
        for n in range(30):
            await bench.queue.submit([message(f"{n:03}", user) for user in users])

    async def work(name: str) -> None:
        while ends < 2:
            claims = await bench.claim(worker=name, slots=7, quantum=2)
            for claim in claims:
                done[claim.message.user_id].append(claim.message.item_id)
            await bench.settle(*claims) if claims else await passes()

    async def damage() -> None:
        nonlocal ends
        for key in (":ready:work", ":lanes:*", ":labels", ":leases", ":claims", ":claimed", ":expiry") * 2:
            for name in bench.server.scan_iter(bench.prefix + key):
                bench.server.delete(name)
            await repair(bench)
        ends += 1

    async def finish(submitting: asyncio.Task[None]) -> None:
        nonlocal ends
        await submitting
        await until(lambda: sum(map(len, done.values())) >= 600 and ends > 0, seconds=60)
        ends += 1

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        submitting = tasks.create_task(submit())
        for name in ("v", "w"):
            tasks.create_task(work(name))
        tasks.create_task(damage())
        tasks.create_task(finish(submitting))
    assert dict(done) == {user: [f"{n:03}" for n in range(30)] for user in users}
    await repair(bench)
    (state,) = await bench.backend.views.labels()
    assert (state.waiting, state.in_progress, state.completed) == (0, 0, 600)
    assert bench.lane_keys() == set()


# -- its functions -----------------------------------------------------------------------------------


@pytest.fixture
async def alone() -> AsyncIterator[Bench]:
    """A queue on a server of its own, where nobody else loads functions."""
    with valkey() as url:
        async with open_apart(url) as opened:
            yield opened


def libraries(bench: Bench) -> set[str]:
    return {row[1].decode() for row in bench.server.function_list()}


async def test_a_server_has_the_functions_of_a_repair_only_while_it_lasts(alone: Bench, disturbed) -> None:
    await alone.queue.submit([message("1")])
    assert libraries(alone) == {QUEUE.name}
    seen: list[set[str]] = []

    async def happens() -> None:
        seen.append(libraries(alone))

    disturbed("recount_numbers", happens)
    alone.server.delete(f"{alone.prefix}:ready:work")
    assert (await repair(alone)).mended == {"rings": 1}
    assert seen == [{QUEUE.name, repair_source().name}]
    assert libraries(alone) == {QUEUE.name}


async def test_a_repair_that_fails_takes_its_functions_away(alone: Bench, disturbed) -> None:
    await alone.queue.submit([message("1")])

    async def happens() -> None:
        raise ReverieError("no more")

    disturbed("recount_numbers", happens)
    with pytest.raises(ReverieError, match="no more"):
        await repair(alone)
    assert libraries(alone) == {QUEUE.name}


async def test_a_repair_brings_its_functions_back_if_another_one_has_ended(alone: Bench, disturbed) -> None:
    await alone.queue.submit([message("1")])
    alone.server.delete(f"{alone.prefix}:ready:work")

    async def happens() -> None:
        alone.server.function_delete(repair_source().name)

    disturbed("repair_entries", happens)
    disturbed("recount_correct", happens)
    assert (await repair(alone)).mended == {"rings": 1}
    assert libraries(alone) == {QUEUE.name}


async def test_a_user_who_may_not_delete_functions_leaves_them(alone: Bench) -> None:
    rules = ("on", ">word", "~*", "&*", "+@all", "-function|delete")
    alone.server.execute_command("ACL", "SETUSER", "guest", *rules)
    await alone.queue.submit([message("1")])
    alone.server.delete(f"{alone.prefix}:ready:work")
    alone.url = alone.url.replace("unix://", "unix://guest:word@")
    assert (await repair(alone)).mended == {"rings": 1}
    assert libraries(alone) == {QUEUE.name, repair_source().name}


async def test_a_user_who_may_not_repair_is_told_before_anything_is_done(alone: Bench) -> None:
    rules = ("on", ">word", "~*", "&*", "+@all", "-scan", "-xgroup|setid")
    alone.server.execute_command("ACL", "SETUSER", "guest", *rules)
    alone.url = alone.url.replace("unix://", "unix://guest:word@")
    with pytest.raises(ForbiddenError, match=r"`ACL SETUSER guest \+scan \+xgroup\|setid`"):
        await repair(alone)
    assert libraries(alone) == {QUEUE.name}


# -- the command -------------------------------------------------------------------------------------


def test_it_speaks_to_people_and_to_programs(tmp_path: Path) -> None:
    with valkey() as url:
        place = Place("redis", tmp_path, url, "memory://")
        with place.scheduler() as scheduler:
            for n in range(3):
                scheduler.submit("export", user_id="ann", item_id=str(n))
            server = scheduler.runtime.backend._connections
            prefix = scheduler.runtime.settings.queue.redis_prefix
            shown = run(place, "redis", "repair")
            assert (shown.exit_code, shown.stderr) == (0, "")
            assert (
                shown.stdout == "looked at 1 lane and 1 user with 3 open messages\nnothing was to be mended\n"
            )
            scheduler.run(server.call("DEL", f"{prefix}:ready:export"))
            looked = run(place, "redis", "repair", url, "--dry-run")
            assert "would mend rings (1): lanes had lost their turn" in looked.stdout
            mended = json.loads(run(place, "redis", "repair", "--json").stdout)
            assert mended["mended"] == {"rings": 1}
            scheduler.run(server.call("DEL", f"{prefix}:ann:ann:export"))
            shown = run(place, "redis", "repair")
            assert shown.exit_code == 1
            assert "the bodies of 3 waiting messages are nowhere: ann/" in shown.stderr
            assert "reverie redis repair --bury-lost" in shown.stderr
            shown = run(place, "redis", "repair", "--bury-lost")
            assert (shown.exit_code, shown.stderr) == (0, "")
            assert "mended buried (3)" in shown.stdout
            assert [letter.error for letter in scheduler.control.dead_letters().rows] == ["body lost"] * 3


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    shown = run(
        Place("none", tmp_path, "memory://", "memory://"), "redis", "repair", "redis://:hunter2@127.0.0.1:1"
    )
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "redis://127.0.0.1:1 did not answer" in shown.stderr
    assert "hunter2" not in shown.output
