"""`reverie redis repair` on timed tasks: what was lost is made anew from what is left, and each runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie.backends.redis import RedisBackend
from reverie.backends.triggers import GLOBAL_KEY, Activity, Definition, Firing
from reverie.message import SYSTEM_USER, Message
from support.redis_bench import NOW, Bench
from support.repairing import LIMITS, everything, mend, open_apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TIDY, LATER, NIGHTLY = "tidy", "later", "night:ly"
TYPES: dict[str, tuple[str, ...]] = {TIDY: (), LATER: (TIDY,), NIGHTLY: ()}
DEFINITIONS = [
    Definition(name=name, fields={"name": name, "trigger_mode": mode}, enabled=True, version=1, first_due=due)
    for name, mode, due in (
        (TIDY, "user_activity", None),
        (LATER, "user_activity", None),
        (NIGHTLY, "cron", NOW + 3_600_000),
    )
]


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    async with open_apart(redis_url) as opened:
        await set_the_scene(opened)
        yield opened


def activity(user: str, task_type: str = TIDY, seconds: int = 10) -> Activity:
    return Activity(
        task_type=task_type,
        user_key=f"{user}:phone:bot",
        user_id=user,
        device_id="phone",
        agent_id="bot",
        interval_ms=seconds * 1000,
    )


async def look(bench: Bench) -> list[tuple[str, str]]:
    """Fire all that is due now, of all types: type and user of each."""
    found = (await bench.backend.triggers.due(TYPES, 100)).triggers
    firings = [
        Firing(
            trigger=one,
            message=Message(
                user_id=one.user_id or SYSTEM_USER,
                label=one.task_type,
                item_id=f"{one.task_type}-{one.user_key}-{one.scheduled_at}",
                user_key=one.user_key,
            ),
        )
        for one in found
    ]
    assert all(await bench.backend.triggers.fire(firings))
    return sorted((one.task_type, one.user_id or "") for one in found)


async def set_the_scene(bench: Bench) -> None:
    """Timed tasks that are finished (cem), running (bob), pending (ann), held up (ann, later), scheduled."""
    triggers = bench.backend.triggers
    await triggers.put(DEFINITIONS)
    await triggers.touch([activity("cem")])
    bench.clock.advance(10)
    assert await look(bench) == [(TIDY, "cem")]
    await bench.settle(*await bench.claim(TIDY))
    await triggers.touch([activity("bob")])
    bench.clock.advance(10)
    assert await look(bench) == [(TIDY, "bob")]
    await triggers.touch([activity("ann", seconds=60), activity("ann", LATER)])
    bench.clock.advance(10)
    assert await look(bench) == []  # the one of ann waits for the other


def trigger_keys(bench: Bench) -> dict[str, object]:
    """What the keys of timed tasks hold, but for when finished ones are forgotten."""
    found = {key: text for key, text in everything(bench).items() if key.startswith("-scheduler:")}
    return {key: set(text) if ":finished:" in key else text for key, text in found.items()}


async def check_that_all_run_once(bench: Bench) -> None:
    bob = f"{TIDY}-bob:phone:bot-{NOW + 20_000}"
    claims = await bench.claim(TIDY)
    assert [claim.message.item_id for claim in claims] == [bob]
    await bench.settle(*claims)
    bench.clock.advance(50)
    assert await look(bench) == [(TIDY, "ann")]
    await bench.settle(*await bench.claim(TIDY))
    assert await look(bench) == [(LATER, "ann")]
    await bench.settle(*await bench.claim(LATER))
    bench.clock.advance(3600)
    assert await look(bench) == [(NIGHTLY, "")]
    assert len(await bench.claim(NIGHTLY)) == 1
    numbers = {one.task_type: (one.pending, one.running) for one in await bench.backend.triggers.statistics()}
    assert numbers == {TIDY: (0, 0), LATER: (0, 0), NIGHTLY: (0, 1)}


async def test_nothing_is_to_be_mended(bench: Bench) -> None:
    assert (await mend(bench)).mended == {}
    await check_that_all_run_once(bench)


INDEXES = {
    "due:tidy": {"trigger_due": 1},
    "due:night%3Aly": {"trigger_due": 1},
    "queue:tidy": {"trigger_due": 1},
    "blocked:later": {"trigger_due": 1},
    "tasks:tidy": {"trigger_lists": 3},
    "finished:tidy": {"trigger_lists": 1},
    "task_types": {"trigger_lists": 3},
}


@pytest.mark.parametrize(("key", "mended"), INDEXES.items())
async def test_an_index_is_made_anew(bench: Bench, key: str, mended: dict[str, int]) -> None:
    before = trigger_keys(bench)
    assert bench.server.delete(f"{bench.prefix}-scheduler:{key}") == 1
    assert (await mend(bench)).mended == mended
    assert trigger_keys(bench) == before
    await check_that_all_run_once(bench)


async def test_counts_are_made_anew(bench: Bench) -> None:
    assert bench.server.delete(f"{bench.prefix}-scheduler:statistics:tidy") == 1
    bench.server.hset(f"{bench.prefix}-scheduler:statistics:later", "pending", 7)
    assert (await mend(bench)).mended == {"trigger_counts": 3}
    await check_that_all_run_once(bench)


@pytest.mark.parametrize(
    ("key", "mended"),
    [
        ("task:tidy:ann:phone:bot", {"trigger_due": 1, "trigger_hashes": 1}),  # nobody held the other one up
        ("task:tidy:bob:phone:bot", {"trigger_hashes": 1}),
        ("periodic:night%3Aly", {"trigger_hashes": 1}),
        ("task:later:ann:phone:bot", {"trigger_hashes": 1}),
    ],
)
async def test_how_a_task_stands_is_made_anew_from_its_due_time_or_its_run(
    bench: Bench, key: str, mended: dict[str, int]
) -> None:
    assert bench.server.delete(f"{bench.prefix}-scheduler:{key}") == 1
    assert (await mend(bench)).mended == mended
    (state,) = await bench.backend.triggers.states(TIDY, "ann:phone:bot")
    assert (state.user_id, state.device_id, state.agent_id) == ("ann", "phone", "bot")
    await check_that_all_run_once(bench)


async def test_all_indexes_at_once(bench: Bench) -> None:
    before = trigger_keys(bench)
    bench.server.delete(*(f"{bench.prefix}-scheduler:{key}" for key in INDEXES))
    await mend(bench)
    assert trigger_keys(bench) == before
    await check_that_all_run_once(bench)


@pytest.mark.parametrize("gone", [True, False])
async def test_a_run_whose_message_is_over_ends(bench: Bench, gone: bool) -> None:
    """The message was forgotten, or has ended without its trigger: the trigger is free again."""
    own = f"{bench.prefix}-scheduler:task:tidy:bob:phone:bot"
    if gone:
        bench.server.delete(f"{bench.prefix}-status:task_meta:bob", f"{bench.prefix}:bob:bob:tidy")
    else:
        running = bench.server.hgetall(own)
        await bench.settle(*await bench.claim(TIDY))
        bench.server.hset(own, mapping=running)
        bench.server.hset(f"{bench.prefix}-scheduler:statistics:tidy", "running", 1)
        bench.server.persist(own)
        bench.server.zrem(f"{bench.prefix}-scheduler:finished:tidy", "bob:phone:bot")
    repaired = await mend(bench)
    assert repaired.mended["trigger_runs"] == 1
    (state,) = await bench.backend.triggers.states(TIDY, "bob:phone:bot")
    assert state.status == ("failed" if gone else "completed")
    assert await bench.backend.triggers.touch([activity("bob")]) == [True]
    bench.clock.advance(10)
    assert (TIDY, "bob") in await look(bench)


async def test_a_forgotten_run_is_remembered(bench: Bench) -> None:
    own = f"{bench.prefix}-scheduler:task:tidy:bob:phone:bot"
    bench.server.hset(own, "status", "completed")
    assert "trigger_runs" in (await mend(bench)).mended
    (state,) = await bench.backend.triggers.states(TIDY, "bob:phone:bot")
    assert state.status == "running"


@pytest.mark.parametrize("found", [None, "x"])
async def test_the_lock_of_a_run_that_a_worker_holds_has_its_token(bench: Bench, found: str | None) -> None:
    lock = f"{bench.prefix}-scheduler:lock:tidy:bob:phone:bot"
    (claim,) = await bench.claim(TIDY)
    assert (await mend(bench)).mended == {}
    assert bench.server.get(lock) == claim.claim_id.encode()
    bench.server.delete(lock)
    if found is not None:
        bench.server.set(lock, found)
    assert (await mend(bench)).mended == {"trigger_locks": 1}
    assert bench.server.get(lock) == claim.claim_id.encode()
    assert bench.server.pttl(lock) > 0


async def test_a_task_that_waits_twice_or_for_nobody_waits_once(bench: Bench) -> None:
    start = f"{bench.prefix}-scheduler:"
    before = trigger_keys(bench)
    bench.server.zadd(f"{start}due:tidy", {"bob:phone:bot": 5})  # it is running
    bench.server.zadd(f"{start}due:later", {"ann:phone:bot": 5})  # it is held up
    bench.server.zadd(f"{start}due:night%3Aly", {GLOBAL_KEY: 5})  # it is due at another time
    bench.server.set(f"{start}lock:tidy:ann:phone:bot", "x")
    assert (await mend(bench)).mended == {"trigger_due": 3, "trigger_locks": 1}
    assert trigger_keys(bench) == before
    await check_that_all_run_once(bench)


async def test_a_schedule_that_is_lost_altogether_comes_with_the_next_process(bench: Bench) -> None:
    start = f"{bench.prefix}-scheduler:"
    bench.server.delete(f"{start}periodic:night%3Aly", f"{start}due:night%3Aly")
    assert (await mend(bench)).mended == {"trigger_counts": 1, "trigger_types": 1}
    next_process = RedisBackend(bench.url, LIMITS, prefix=bench.prefix, allow_volatile=True)
    await next_process.open()
    await next_process.triggers.put(DEFINITIONS)
    await next_process.close()
    await check_that_all_run_once(bench)
