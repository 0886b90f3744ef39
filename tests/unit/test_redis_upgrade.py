"""Keys on Redis that an earlier version has written are brought to the present form when they are opened."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reverie.backends.moves import Move
from reverie.backends.redis import RedisBackend
from reverie.backends.redis.keys import Keys
from reverie.backends.redis.library import UPGRADED, UPGRADING, VERSION
from reverie.backends.redis.permissions import ForbiddenError
from reverie.backends.triggers import Activity, Definition, DueTrigger, Firing
from reverie.message import Message
from support.redis_bench import NOW, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FROZEN = Path(__file__).parents[1] / "frozen" / "redis_triggers_0005.json"
"""The keys of triggers as version 5 wrote them: what `scenario` leaves, made with that version."""
TYPES = {"tend": (), "after": ("tend",), "tick": (), "tock": ()}


def activity(user: str, task_type: str = "tend", interval_ms: int = 10_250) -> Activity:
    return Activity(task_type=task_type, user_key=f"{user}:phone", user_id=user, interval_ms=interval_ms)


def firing(task: DueTrigger) -> Firing:
    made = Message(
        user_id=task.user_id or "_system",
        label=task.task_type,
        item_id=f"{task.task_type}:{task.user_key}:{task.scheduled_at}",
        user_key=task.user_key,
    )
    next_at = None if task.user_key else NOW + 70_125
    return Firing(trigger=task, message=made, next_at=next_at, next_anchor=next_at and NOW + 70_000)


async def due(bench: Bench, *names: str) -> list[DueTrigger]:
    return (await bench.backend.triggers.due({name: TYPES[name] for name in names or TYPES}, 100)).triggers


async def scenario(bench: Bench) -> None:
    """Leave triggers in every state: bob, cem and tock are running, dan has ended, eve waits for another."""
    store = bench.backend.triggers
    first = {"tick": NOW + 60_125, "tock": NOW + 5000}
    await store.put(
        [
            Definition(name=name, fields={"timeout": "60"}, enabled=True, first_due=first.get(name))
            for name in TYPES
        ]
    )
    bench.clock.advance(0.123)
    await store.touch([activity(user) for user in ("bob", "cem", "dan")])
    bench.clock.advance(10.25)
    await store.fire([firing(task) for task in await due(bench, "tend", "tock")])
    claims = {claim.message.user_id: claim for claim in await bench.claim("tend")}
    await bench.settle(claims["dan"])
    await bench.settle(claims["cem"], move=Move.RETRY)
    await store.touch([activity("cem")])
    await store.touch([activity("eve", interval_ms=20_000), activity("eve", "after", 10)])
    bench.clock.advance(1)
    assert await due(bench, "after") == []
    await store.touch([activity("ann")])


def read_keys(bench: Bench) -> dict[str, Any]:
    """The keys of triggers, as JSON can hold them."""
    found = {}
    beginning = Keys(bench.prefix).trigger_prefix + ":"
    for key in sorted(bench.server.scan_iter(f"{beginning}*")):
        kind = bench.server.type(key).decode()
        read = {
            "hash": lambda key: {k.decode(): v.decode() for k, v in bench.server.hgetall(key).items()},
            "zset": lambda key: {m.decode(): s for m, s in bench.server.zrange(key, 0, -1, withscores=True)},
            "set": lambda key: sorted(member.decode() for member in bench.server.smembers(key)),
            "string": lambda key: bench.server.get(key).decode(),
        }[kind]
        found[key.decode().removeprefix(beginning)] = {"kind": kind, "value": read(key)}
    return found


def write_keys(bench: Bench, kept: dict[str, Any]) -> None:
    """Put these keys of triggers in the place of all others, as version 5 has left them."""
    beginning = Keys(bench.prefix).trigger_prefix + ":"
    for key in bench.server.scan_iter(f"{beginning}*"):
        bench.server.delete(key)
    for name, one in kept.items():
        key, value = beginning + name, one["value"]
        if one["kind"] == "hash":
            bench.server.hset(key, mapping=value)
        elif one["kind"] == "zset":
            bench.server.zadd(key, value)
        elif one["kind"] == "set":
            bench.server.sadd(key, *value)
        else:
            bench.server.set(key, value)
    bench.server.set(f"{bench.prefix}:version", 5)


@asynccontextmanager
async def reopened(bench: Bench, url: str) -> AsyncIterator[Bench]:
    """The same queue as another process sees it."""
    backend = RedisBackend(url, prefix=bench.prefix, allow_volatile=True)
    await backend.open()
    try:
        yield Bench(backend, bench.server, bench.prefix, bench.clock)
    finally:
        await backend.close()


async def test_it_is_as_if_the_present_version_had_written_them(bench: Bench, redis_url: str) -> None:
    await scenario(bench)
    present = read_keys(bench)
    states = {name: await bench.backend.triggers.states(name) for name in TYPES}
    statistics = await bench.backend.triggers.statistics()
    write_keys(bench, json.loads(FROZEN.read_text()))
    present["finished:tend"]["value"] = {"dan:phone": NOW + 10_373 + 86_400_000}  # as that version has said
    for _ in range(2):  # the second time there is nothing to do
        async with reopened(bench, redis_url) as again:
            assert {name: await again.backend.triggers.states(name) for name in TYPES} == states
            assert await again.backend.triggers.statistics() == statistics
        assert read_keys(bench) == present
        assert bench.server.get(f"{bench.prefix}:version") == str(VERSION).encode()
        assert 0 < bench.server.pttl(f"{Keys(bench.prefix).trigger_prefix}:lock:tend:bob:phone") <= 60_000


async def test_nothing_is_lost_or_done_twice(bench: Bench, redis_url: str) -> None:
    await scenario(bench)
    write_keys(bench, json.loads(FROZEN.read_text()))
    async with reopened(bench, redis_url) as again:
        store = again.backend.triggers
        (bob,) = [one for one in [await store.held("tend", "bob:phone")] if one is not None]
        await again.settle(bob)
        await again.settle(*await again.claim("tend"), *await again.claim("tock"))
        fired: list[tuple[str, str, int]] = []
        for moment in (21_623, 30_373, 60_125, 70_125):
            bench.clock.advance((NOW + moment - 1 - bench.clock.now()) / 1000)
            assert await due(again) == [], "nothing is early"
            bench.clock.advance(0.001)
            found = await due(again)
            assert all(await store.fire([firing(task) for task in found]))
            fired += [(task.task_type, task.user_key, task.scheduled_at - NOW) for task in found]
            claims = [claim for name in TYPES for claim in await again.claim(name)]
            await again.settle(*claims)
            found = await due(again, "after")
            assert all(await store.fire([firing(task) for task in found]))
            fired += [(task.task_type, task.user_key, task.scheduled_at - NOW) for task in found]
    assert fired == [
        ("tend", "ann:phone", 21_623),
        ("tend", "cem:phone", 21_623),
        ("tend", "eve:phone", 30_373),
        ("after", "eve:phone", 10_383),
        ("tick", "", 60_125),
        ("tick", "", 70_125),
        ("tock", "", 70_125),
    ]


async def test_an_upgrade_that_was_cut_off_goes_on(bench: Bench, redis_url: str) -> None:
    await scenario(bench)
    present = read_keys(bench).keys()
    write_keys(bench, json.loads(FROZEN.read_text()))
    async with reopened(bench, redis_url):
        pass
    half = read_keys(bench)

    def of_two_types(keys: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
        return {key: one for key, one in keys.items() if ("after" in key or "tick" in key) is wanted}

    old = json.loads(FROZEN.read_text())
    write_keys(bench, of_two_types(half, wanted=True) | of_two_types(old, wanted=False))
    bench.server.set(f"{bench.prefix}:version", UPGRADING)
    async with reopened(bench, redis_url):
        assert read_keys(bench) == half
        assert half.keys() == present


async def test_a_process_of_the_version_before_stops(bench: Bench, redis_url: str) -> None:
    """Its functions are gone, and when it brings them again it sees the version."""
    old = f"reverie_v{UPGRADED}_0123456789ab"
    bench.server.function_load(
        f"#!lua name={old}\nredis.register_function('{old}_submit', function() return 1 end)", replace=True
    )
    bench.server.set(f"{bench.prefix}:version", UPGRADED)
    async with reopened(bench, redis_url):
        assert bench.server.function_list(old) == []


async def test_a_server_that_forbids_to_end_it_is_left_as_it_is(bench: Bench, redis_url: str) -> None:
    old = f"reverie_v{UPGRADED}_{bench.prefix.replace('-', '')[-12:]}"
    bench.server.function_load(
        f"#!lua name={old}\nredis.register_function('{old}_submit', function() return 1 end)"
    )
    bench.server.set(f"{bench.prefix}:version", UPGRADED)
    user = f"u{bench.prefix}"
    bench.server.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", "-function|delete")
    try:
        address = redis_url.replace("unix://", f"unix://{user}:pw@")
        with pytest.raises(ForbiddenError, match=r"function\|delete"):
            async with reopened(bench, address):
                pass
        assert bench.server.get(f"{bench.prefix}:version") == str(UPGRADED).encode()
    finally:
        bench.server.execute_command("ACL", "DELUSER", user)
        bench.server.function_delete(old)
