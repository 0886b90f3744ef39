"""Triggers on a Redis server: what anyone sees there, what is left, whom they wake, and what they cost."""

from __future__ import annotations

import msgspec
import pytest

from reverie.backends.control import CancelItems
from reverie.backends.moves import Move
from reverie.backends.redis import RedisBackend
from reverie.backends.redis.keys import Keys
from reverie.backends.triggers import (
    GLOBAL_KEY,
    Activity,
    CancelTrigger,
    Definition,
    DueTrigger,
    Firing,
    RunTrigger,
    SwitchType,
)
from reverie.errors import BackendUnavailableError
from reverie.message import Message
from support.proxy import proxy
from support.redis_bench import NOW, Bench, message, open_bench, within
from support.servers import valkey

DAY_S = 86_400
TYPE = "memory_compression"
ANN = "ann:phone:bot"


def definition(name: str = TYPE, **fields) -> Definition:
    own = {"name": name, "trigger_mode": "user_activity", "interval": "10"}
    return Definition(**{"name": name, "fields": own, "enabled": True, "version": 1, **fields})


def activity(user: str = "ann", task_type: str = TYPE, **fields) -> Activity:
    whose = {"user_id": user, "device_id": "phone", "agent_id": "bot", "user_key": f"{user}:phone:bot"}
    return Activity(task_type=task_type, **{**whose, "interval_ms": 10_000, **fields})


def firing(task: DueTrigger, *, next_at: int | None = None, **fields) -> Firing:
    made = Message(
        user_id=task.user_id or "_system",
        label=task.task_type,
        item_id=f"{task.task_type}:{task.user_key}:{task.scheduled_at}",
        user_key=task.user_key,
    )
    made = msgspec.structs.replace(made, **fields)
    return Firing(trigger=task, message=made, next_at=next_at, next_anchor=next_at)


async def due(bench: Bench, *types: str, **depends_on) -> list[DueTrigger]:
    wanted = {name: depends_on.get(name, ()) for name in types or (TYPE,)}
    return (await bench.backend.triggers.due(wanted, 100)).triggers


async def fire(bench: Bench, *types: str, **fields) -> None:
    firings = [firing(task, **fields) for task in await due(bench, *types)]
    assert firings
    assert all(await bench.backend.triggers.fire(firings))


async def touched(bench: Bench, *users: str, **fields) -> None:
    await bench.backend.triggers.put([definition()])
    await bench.backend.triggers.touch([activity(user, **fields) for user in users or ("ann",)])


async def fired(bench: Bench, *users: str, **fields) -> None:
    await touched(bench, *users)
    bench.clock.advance(10)
    await fire(bench, **fields)


def name(bench: Bench, *parts: str) -> str:
    return ":".join([Keys(bench.prefix).trigger_prefix, *parts])


def texts(bench: Bench, *parts: str) -> dict[str, str]:
    """A hash as it is read there."""
    found = bench.server.hgetall(name(bench, *parts))
    return {field.decode(): value.decode() for field, value in found.items()}


def queued(bench: Bench, task_type: str = TYPE, *, kind: str = "queue") -> list[tuple[str, float]]:
    found = bench.server.zrange(name(bench, kind, task_type), 0, -1, withscores=True)
    return [(member.decode(), score) for member, score in found]


def key_names(bench: Bench) -> set[str]:
    """The keys of triggers, but for those of the types."""
    found = {key.removeprefix("-scheduler:") for key in bench.key_names() if key.startswith("-scheduler:")}
    return {key for key in found if not key.startswith(("task_type", "statistics"))}


def has_lock(bench: Bench, user_key: str = ANN, task_type: str = TYPE) -> bool:
    return bench.server.exists(name(bench, "lock", task_type, user_key)) == 1


# -- what stands there -------------------------------------------------------------------------------


def test_the_names_are_public() -> None:
    assert Keys().trigger_prefix == "scheduler"
    assert Keys("mine").trigger_prefix == "mine-scheduler"


async def test_a_type(bench: Bench) -> None:
    await bench.backend.triggers.put([definition(), definition("a:b", enabled=False, version=7)])
    assert texts(bench, "task_type", TYPE) == {
        "name": TYPE,
        "trigger_mode": "user_activity",
        "interval": "10",
        "enabled": "true",
        "configured": "true",
        "version": "1",
    }
    assert texts(bench, "task_type", "a%3Ab").items() >= {"enabled": "false", "version": "7"}.items()
    await bench.backend.triggers.control(SwitchType(TYPE, enabled=False))
    assert texts(bench, "task_type", TYPE).items() >= {"enabled": "false", "configured": "true"}.items()
    await bench.backend.triggers.put([definition(fields={"name": TYPE}, version=2)])
    assert texts(bench, "task_type", TYPE).keys() == {"name", "enabled", "configured", "version"}


async def test_a_task_that_is_scheduled(bench: Bench) -> None:
    await touched(bench)
    second = NOW // 1000
    assert texts(bench, "task", TYPE, ANN) == {
        "status": "pending",
        "created_at": f"{second}",
        "scheduled_at": f"{second + 10}",
        "last_activity": f"{second}",
        "user_id": "ann",
        "device_id": "phone",
        "agent_id": "bot",
        "retry_count": "0",
        "interval_ms": "10000",
        "ttl_ms": "7200000",
        "ms": "0" * 15,
    }
    assert queued(bench) == [(ANN, second + 10)]
    assert queued(bench, kind="due") == [(ANN, NOW + 10_000)]
    assert key_names(bench) == {f"task:{TYPE}:{ANN}", f"queue:{TYPE}", f"due:{TYPE}", f"tasks:{TYPE}"}
    assert bench.server.ttl(name(bench, "task", TYPE, ANN)) == -1


async def test_a_task_that_runs(bench: Bench) -> None:
    await fired(bench)
    found = texts(bench, "task", TYPE, ANN)
    item_id, due_at = f"{TYPE}:{ANN}:{NOW + 10_000}", str(NOW // 1000 + 10)
    assert (found["status"], found["item_id"], found["scheduled_at"]) == ("running", item_id, due_at)
    assert key_names(bench) == {f"task:{TYPE}:{ANN}", f"tasks:{TYPE}"}
    assert bench.server.ttl(name(bench, "task", TYPE, ANN)) == -1
    claims = await bench.claim(TYPE)
    assert bench.server.get(name(bench, "lock", TYPE, ANN)).decode() == claims[0].claim_id
    assert 29 <= bench.server.ttl(name(bench, "lock", TYPE, ANN)) <= 30, "the lease: the type has no timeout"
    await bench.settle(*claims, move=Move.RETRY)
    assert not has_lock(bench)
    assert texts(bench, "task", TYPE, ANN).items() >= {"status": "running", "retry_count": "1"}.items()


async def test_a_task_that_has_ended(bench: Bench) -> None:
    await fired(bench)
    bench.clock.advance(2)
    await bench.settle(*await bench.claim(TYPE))
    ended = f"{NOW // 1000 + 12}"
    found = texts(bench, "task", TYPE, ANN)
    assert found.items() >= {"status": "completed", "last_exec": ended, "last_status": "completed"}.items()
    assert found["scheduled_at"] == f"{NOW // 1000 + 10}"
    assert bench.server.get(name(bench, "last_exec", TYPE, ANN)).decode() == ended
    assert key_names(bench) == {
        f"task:{TYPE}:{ANN}",
        f"tasks:{TYPE}",
        f"finished:{TYPE}",
        f"last_exec:{TYPE}:{ANN}",
    }
    assert (
        texts(bench, "statistics", TYPE).items()
        >= {"runs": "1", "duration_ms": "2000", "last_run_at": f"{NOW + 12_000}"}.items()
    )


async def test_a_task_of_nobody(bench: Bench) -> None:
    second = NOW // 1000
    await bench.backend.triggers.put([definition("cleanup", first_due=NOW + 5000)])
    assert (
        texts(bench, "periodic", "cleanup").items() >= {"status": "idle", "next_run": f"{second + 5}"}.items()
    )
    bench.clock.advance(5)
    await fire(bench, "cleanup", next_at=NOW + 10_000)
    running = {"status": "running", "last_run": f"{second + 5}", "next_run": f"{second + 10}"}
    assert texts(bench, "periodic", "cleanup").items() >= running.items()
    claims = await bench.claim("cleanup")
    assert (has_lock(bench, GLOBAL_KEY, "cleanup"), queued(bench, "cleanup", kind="due")) == (True, [])
    await bench.settle(*claims)
    assert texts(bench, "periodic", "cleanup")["status"] == "idle"
    assert not has_lock(bench, GLOBAL_KEY, "cleanup")
    assert queued(bench, "cleanup") == [], "only users are in it"
    assert queued(bench, "cleanup", kind="due") == [("", NOW + 10_000)]
    assert bench.server.ttl(name(bench, "periodic", "cleanup")) == -1


async def test_milliseconds_are_kept(bench: Bench) -> None:
    """Beside the times themselves, which anyone reads in whole seconds."""
    await bench.backend.triggers.put([definition()])
    written = []
    for n, ms in enumerate([1, 10, 100, 250, 999, 1000]):
        user = f"u{n}"
        await bench.backend.triggers.touch([activity(user, interval_ms=ms)])
        (state,) = await bench.backend.triggers.states(TYPE, f"{user}:phone:bot")
        assert (state.created_at, state.scheduled_at) == (NOW, NOW + ms)
        written.append(texts(bench, "task", TYPE, f"{user}:phone:bot")["scheduled_at"])
    second = NOW // 1000
    assert written == [f"{second}"] * 5 + [f"{second + 1}"]
    assert [score for _, score in queued(bench)] == [second] * 5 + [second + 1]
    bench.clock.advance(0.25)
    assert [task.scheduled_at - NOW for task in await due(bench)] == [1, 10, 100, 250]
    assert (await bench.backend.triggers.due({TYPE: ()}, 100)).next_due == NOW + 999
    await fire(bench)
    bench.clock.advance(0.123)
    await bench.settle(*await bench.claim(TYPE))
    (state,) = await bench.backend.triggers.states(TYPE, "u0:phone:bot")
    assert state.last_exec == NOW + 373
    (found,) = await bench.backend.triggers.statistics()
    assert (found.last_run_at, found.max_lateness_ms) == (NOW + 373, 249)


async def test_the_run_of_a_task_knows_whose_it_is(bench: Bench) -> None:
    await fired(bench)
    made = message(f"{TYPE}:{ANN}:{NOW + 10_000}")
    assert bench.meta(made).items() >= {"user_key": ANN, "rules": 1}.items()
    await bench.queue.submit([message("plain")])
    assert not {"user_key", "rules"} & bench.meta(message("plain")).keys()


# -- what is left ------------------------------------------------------------------------------------


async def test_only_what_is_finished_expires(bench: Bench) -> None:
    await touched(bench, "ann", ttl_ms=100_000_000)
    await bench.backend.triggers.touch([activity("bob", interval_ms=300_000_000)])
    bench.clock.advance(10)
    await bench.backend.triggers.control(RunTrigger(activity("bob")))
    own = [name(bench, "task", TYPE, f"{user}:phone:bot") for user in ("ann", "bob")]
    await fire(bench)
    assert [bench.server.ttl(key) for key in own] == [-1, -1]
    await bench.settle(*await bench.claim(TYPE))
    assert [round(bench.server.ttl(key), -2) for key in own] == [100_000, 7200]
    last = [name(bench, "last_exec", TYPE, f"{user}:phone:bot") for user in ("ann", "bob")]
    assert [round(bench.server.ttl(key), -2) for key in last] == [DAY_S, 300_000]
    await bench.backend.triggers.touch([activity("ann")])
    assert bench.server.ttl(own[0]) == -1
    await bench.backend.triggers.control(CancelTrigger(TYPE, ANN))
    assert round(bench.server.ttl(own[0]), -2) == 7200


async def test_what_is_finished_is_forgotten_by_the_clock_of_the_queue(bench: Bench) -> None:
    await fired(bench, "ann", "bob")
    await bench.settle(*await bench.claim(TYPE))
    await bench.backend.triggers.touch([activity("bob")])
    bench.clock.advance(7200)
    assert [task.user_id for task in await due(bench)] == ["bob"]
    assert [task.user_id for task in await bench.backend.triggers.states(TYPE)] == ["bob"]
    assert {key for key in key_names(bench) if "ann" in key} == {f"last_exec:{TYPE}:{ANN}"}
    assert queued(bench, kind="finished") == []


async def test_what_has_expired_leaves_the_list(bench: Bench) -> None:
    users = [f"u{n}" for n in range(10)]
    await fired(bench, *users)
    await bench.settle(*await bench.claim(TYPE))
    for user in users[:9]:
        bench.server.delete(name(bench, "task", TYPE, f"{user}:phone:bot"))
    assert [task.user_id for task in await bench.backend.triggers.states(TYPE, limit=1)] == ["u9"]
    assert bench.server.zcard(name(bench, "tasks", TYPE)) == 1


async def test_what_is_cancelled_before_it_ever_ran_leaves_no_key(bench: Bench) -> None:
    await touched(bench)
    assert await bench.backend.triggers.control(CancelTrigger(TYPE, ANN))
    assert key_names(bench) == set()
    (found,) = await bench.backend.triggers.statistics()
    assert (found.pending, found.running) == (0, 0)


async def stop(bench: Bench, claims: list) -> None:
    await bench.control(CancelItems, user_id="ann")
    await bench.settle(*claims, move=Move.RETRY)


ENDS = {
    "complete": lambda bench, claims: bench.settle(*claims),
    "bury": lambda bench, claims: bench.settle(*claims, move=Move.BURY),
    "cancel": lambda bench, claims: bench.settle(*claims, move=Move.CANCEL),
    "lose": lambda bench, claims: bench.settle(*claims, move=Move.LOSE),
    "retry when asked to stop": stop,
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_lock_is_there_exactly_while_it_is_claimed(bench: Bench, end: str) -> None:
    await touched(bench)
    assert not has_lock(bench)
    bench.clock.advance(10)
    await fire(bench)
    for _ in range(5 if end == "lose" else 1):
        assert not has_lock(bench)
        claims = await bench.claim(TYPE)
        assert has_lock(bench)
        await ENDS[end](bench, claims)
    assert not has_lock(bench)
    assert texts(bench, "task", TYPE, ANN)["status"] == ("completed" if end == "complete" else "failed")


async def test_a_run_that_ends_without_starting_has_ended(bench: Bench) -> None:
    await bench.queue.submit([message("first")])
    await fired(bench, "ann", depends_on=("first",))
    await bench.settle(*await bench.claim(), move=Move.BURY)
    assert texts(bench, "task", TYPE, ANN)["status"] == "failed"
    (found,) = await bench.backend.triggers.statistics()
    assert found.last_error == "dependency: first failed"
    bench.clock.advance(1)
    await bench.backend.triggers.control(RunTrigger(activity()))
    await fire(bench, deadline=within(12))
    bench.clock.advance(1)
    await bench.queue.advance(100)
    assert texts(bench, "task", TYPE, ANN)["status"] == "failed"
    assert (await bench.backend.triggers.statistics())[0].last_error == "deadline"


# -- tasks that depend on others ---------------------------------------------------------------------


async def test_what_waits_for_another_is_put_aside_until_that_changes(bench: Bench) -> None:
    depends_on = {"second": ("first",)}
    await bench.backend.triggers.put([definition("first"), definition("second")])
    await bench.backend.triggers.touch([activity(task_type=kind) for kind in ("first", "second")])
    bench.clock.advance(10)
    assert await due(bench, "second", **depends_on) == []
    aside, public = [(ANN, NOW + 10_000)], [(ANN, NOW / 1000 + 10)]
    assert (queued(bench, "second", kind="due"), queued(bench, "second", kind="blocked")) == ([], aside)
    assert queued(bench, "second") == public, "anyone sees that it is pending"
    for end in (Move.BURY, Move.COMPLETE):
        await fire(bench, "first")
        assert await due(bench, "second", **depends_on) == []
        await bench.backend.triggers.touch([activity(task_type="first")])
        await bench.settle(*await bench.claim("first"), move=end)
        waiting = queued(bench, "second", kind="due")
        assert waiting == ([] if end is Move.BURY else aside), "it runs once more, or has run"
        bench.clock.advance(10)
    assert len(await due(bench, "second", **depends_on)) == 1
    await fire(bench, "second")
    assert not any(key.startswith("blocked") for key in key_names(bench))


async def test_it_comes_back_when_that_is_cancelled_or_counts_no_more(bench: Bench) -> None:
    await bench.backend.triggers.put([definition("first"), definition("second")])
    for _ in range(2):
        await bench.backend.triggers.touch([activity(task_type=kind) for kind in ("first", "second")])
    bench.clock.advance(10)
    assert await due(bench, "second", second=("first",)) == []
    await bench.backend.triggers.control(CancelTrigger("first", ANN))
    assert len(await due(bench, "second", second=("first",))) == 1
    await bench.backend.triggers.touch([activity(task_type="first")])
    assert await due(bench, "second", second=("first",)) == []
    assert len(await due(bench, "second")) == 1, "it does not depend on anything any more"


async def test_many_that_wait_for_others_are_looked_at_once() -> None:
    types = {"second": ("first",)}
    users = [f"u{n}" for n in range(3000)]
    with valkey() as url:
        async with open_bench(url) as bench:
            store = bench.backend.triggers
            await store.put([definition("first"), definition("second")])
            for kind in ("first", "second"):
                await store.touch([activity(user, kind) for user in users])
            bench.clock.advance(1)
            await store.touch([activity("free", "second")])
            bench.clock.advance(10)
            looks = 1
            while not (found := await store.due(types, 10)).triggers:
                looks += 1
                assert found.next_due <= found.now, "there is more to look at"
            assert ([task.user_id for task in found.triggers], looks) == (["free"], 3)
            assert await bench.cost(store.due(types, 10)) < 20


# -- whom it wakes -----------------------------------------------------------------------------------


async def test_only_an_earlier_due_time_and_the_end_of_a_run_wake(bench: Bench) -> None:
    def taken() -> int:
        tokens = bench.tokens("_triggers")
        bench.server.delete(f"{bench.prefix}:wake:_triggers")
        return tokens

    store = bench.backend.triggers
    await store.put([definition()])
    taken()
    await store.touch([activity()])
    assert taken() > 1
    await store.touch([activity()])
    assert taken() == 0, "nothing has changed"
    bench.clock.advance(1)
    await store.touch([activity("bob")])
    assert taken() == 0, "it is due after what was known"
    await store.touch([activity("cem", interval_ms=500)])
    assert taken() > 1
    bench.clock.advance(1)
    await fire(bench)
    assert taken() == 0
    claims = await bench.claim(TYPE)
    await store.touch([activity("cem")])
    assert taken() == 0, "it runs"
    await bench.settle(*claims)
    assert taken() >= 1


# -- nothing twice, nothing half done ----------------------------------------------------------------


async def test_the_answer_to_a_firing_is_lost() -> None:
    with valkey() as url:
        async with open_bench(url) as bench, proxy(url.removeprefix("unix://")) as way:
            await touched(bench, "ann", "bob")
            bench.clock.advance(10)
            firings = [firing(task) for task in await due(bench)]
            far = RedisBackend(way.url, prefix=bench.prefix, allow_volatile=True)
            await far.open()
            async with way.losing("trigger_fire"):
                with pytest.raises(BackendUnavailableError):
                    await far.triggers.fire(firings)
            assert texts(bench, "task", TYPE, ANN)["status"] == "running", "the server has done it"
            assert await far.triggers.fire(firings) == [False, False]
            await far.close()
            claims = await bench.claim(TYPE)
            assert len(claims) == 2
            await bench.settle(*claims)
            assert await bench.claim(TYPE) == []
            (found,) = await bench.backend.triggers.statistics()
            assert (found.fired, found.runs, found.running, found.pending) == (2, 2, 0, 0)


async def test_a_run_whose_message_is_known_cannot_hold_up_its_task(bench: Bench) -> None:
    """Its end was written before, and comes no second time."""
    await fired(bench)
    await bench.settle(*await bench.claim(TYPE))
    await bench.backend.triggers.control(RunTrigger(activity()))
    assert await bench.backend.triggers.fire([firing(task) for task in await due(bench)]) == [True]
    assert await bench.claim(TYPE) == []
    assert not has_lock(bench)
    assert texts(bench, "task", TYPE, ANN)["status"] == "completed"


@pytest.mark.parametrize("change", ["delete", "move", "spoil"])
async def test_what_somebody_changes_by_hand_holds_up_nobody(bench: Bench, change: str) -> None:
    await touched(bench, "ann", "bob")
    own = name(bench, "task", TYPE, ANN)
    if change == "delete":
        bench.server.delete(own)
    else:
        bench.server.hset(own, "scheduled_at", NOW // 1000 + (20 if change == "move" else 10))
        bench.server.hset(own, mapping={"interval": "soon"} if change == "spoil" else {"a": "b"})
    bench.clock.advance(10)
    found = await bench.backend.triggers.due({TYPE: ()}, 100)
    assert [task.user_id for task in found.triggers] == (["ann", "bob"] if change == "spoil" else ["bob"])
    await fire(bench)
    await bench.settle(*await bench.claim(TYPE))
    again = await bench.backend.triggers.due({TYPE: ()}, 100)
    assert (again.triggers, again.next_due) == ([], NOW + 20_000 if change == "move" else None)
    (counted,) = await bench.backend.triggers.statistics()
    assert (counted.pending, counted.running) == (change == "move", 0)


# -- what it costs -----------------------------------------------------------------------------------


async def test_the_cost_does_not_grow_with_the_number_of_tasks() -> None:
    costs = []
    with valkey() as url:
        for tasks in (10, 10_000):
            async with open_bench(url) as bench:
                store = bench.backend.triggers
                await touched(bench, *(f"due{n}" for n in range(5)))
                await store.touch([activity(f"u{n}", interval_ms=60_000) for n in range(tasks)])
                bench.clock.advance(10)
                firings = [firing(task) for task in await due(bench)]
                claims: list = []

                async def claim(bench: Bench = bench, claims: list = claims) -> None:
                    claims += await bench.claim(TYPE)

                costs.append(
                    [
                        await bench.cost(store.touch([activity("u3"), activity("new")])),
                        await bench.cost(store.due({TYPE: ()}, 100)),
                        await bench.cost(store.fire(firings)),
                        await bench.cost(claim()),
                        await bench.cost(bench.settle(*claims)),
                        await bench.cost(store.states(TYPE, limit=5)),
                        await bench.cost(store.statistics()),
                        await bench.cost(store.control(CancelTrigger(TYPE, "u3:phone:bot"))),
                    ]
                )
    assert costs[0] == costs[1]
