"""What every trigger store does: activity, due times, firing, and what the end of a run means."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from conformance.conftest import Bench, done, ids, settle
from reverie.backends.control import CancelItems, RequeueItems
from reverie.backends.moves import Move, ScopeLimits, Settlement
from reverie.backends.triggers import (
    GLOBAL_KEY,
    TRIGGERS,
    Activity,
    CancelTrigger,
    Definition,
    Due,
    Firing,
    RunTrigger,
    SwitchType,
)
from reverie.message import Message
from support.living import started

INTERVAL_S = 10
TYPE = "memory_compression"


def definition(name: str = TYPE, *, enabled: bool = True, version: int = 1, first_due=None, **fields):
    fields = {"name": name, "trigger_mode": "user_activity", "interval": "10", **fields}
    return Definition(name=name, fields=fields, enabled=enabled, version=version, first_due=first_due)


def activity(user: str = "ann", task_type: str = TYPE, **fields) -> Activity:
    own = {
        "user_key": f"{user}:phone:bot",
        "user_id": user,
        "device_id": "phone",
        "agent_id": "bot",
        "interval_ms": INTERVAL_S * 1000,
    }
    return Activity(task_type=task_type, **(own | fields))


async def ready(bench: Bench, *names: str) -> None:
    await bench.backend.triggers.put([definition(name) for name in names or (TYPE,)])


async def due(bench: Bench, *types: str, limit: int = 100, **depends_on) -> Due:
    wanted = {name: depends_on.get(name, ()) for name in types or (TYPE,)}
    return await bench.backend.triggers.due(wanted, limit)


def firing(task, **fields) -> Firing:
    message = Message(
        user_id=task.user_id or "_system",
        label=task.task_type,
        item_id=f"{task.task_type}:{task.user_key}:{task.scheduled_at}",
        level=3,
        user_key=task.user_key,
        info={"device_id": task.device_id, "agent_id": task.agent_id},
    )
    return Firing(trigger=task, message=fields.pop("message", message), **fields)


async def fire(bench: Bench, *types: str, **fields) -> list[bool]:
    found = await due(bench, *types)
    return await bench.backend.triggers.fire([firing(task, **fields) for task in found.triggers])


async def run(bench: Bench, task_type: str = TYPE, move: Move = Move.COMPLETE, **fields) -> list[str]:
    """Claim what was fired and end it; the ids."""
    claims = await bench.claim(task_type)
    await settle(bench, *(Settlement(claim=claim, move=move, **fields) for claim in claims))
    return ids(claims)


async def state(bench: Bench, user: str = "ann", task_type: str = TYPE):
    found = await bench.backend.triggers.states(task_type, f"{user}:phone:bot")
    return found[0] if found else None


async def global_state(bench: Bench, task_type: str):
    (found,) = await bench.backend.triggers.states(task_type, GLOBAL_KEY)
    return found


# -- activity ----------------------------------------------------------------------------------------


async def test_the_first_activity_schedules_a_run(bench: Bench) -> None:
    await ready(bench)
    now = bench.clock.now()
    assert await bench.backend.triggers.touch([activity()]) == [True]
    found = await state(bench)
    assert (found.status, found.created_at, found.last_activity) == ("pending", now, now)
    assert found.scheduled_at == now + 10_000
    assert (found.user_id, found.device_id, found.agent_id) == ("ann", "phone", "bot")
    assert (found.retry_count, found.item_id, found.last_exec) == (0, None, None)
    assert await due(bench) == Due(now=now, triggers=[], next_due=now + 10_000)


async def test_more_activity_only_says_when_it_was(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity()])
    scheduled = (await state(bench)).scheduled_at
    bench.clock.advance(4)
    assert await bench.backend.triggers.touch([activity(), activity()]) == [False, False]
    found = await state(bench)
    assert (found.scheduled_at, found.last_activity) == (scheduled, bench.clock.now())


async def test_with_debounce_it_moves_the_run_up_to_a_limit(bench: Bench) -> None:
    await ready(bench)
    start = bench.clock.now()
    moves = {"debounce": True, "max_wait_ms": 15_000}
    moments = []
    for _ in range(3):
        await bench.backend.triggers.touch([activity(**moves)])
        moments.append((await state(bench)).scheduled_at - start)
        bench.clock.advance(4)
    assert moments == [10_000, 14_000, 15_000]
    endless = activity("bob", debounce=True)
    await bench.backend.triggers.touch([endless])
    bench.clock.advance(9)
    assert await bench.backend.triggers.touch([endless]) == [False]
    assert (await state(bench, "bob")).scheduled_at == bench.clock.now() + 10_000


async def test_users_and_types_have_tasks_of_their_own(bench: Bench) -> None:
    await ready(bench, TYPE, "embedding_refresh")
    batch = [activity(), activity("bob"), activity(task_type="embedding_refresh"), activity()]
    assert await bench.backend.triggers.touch(batch) == [True, True, True, False]
    assert [t.user_key for t in await bench.backend.triggers.states(TYPE)] == [
        "ann:phone:bot",
        "bob:phone:bot",
    ]


async def test_unknown_and_disabled_types_are_not_scheduled(bench: Bench) -> None:
    await bench.backend.triggers.put([definition(enabled=False)])
    assert await bench.backend.triggers.touch([activity(), activity(task_type="other")]) == [False, False]
    assert await state(bench) is None


async def test_tasks_come_by_pages(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity(f"u{n:02}") for n in range(7)])
    seen, after = [], ""
    while page := await bench.backend.triggers.states(TYPE, after=after, limit=3):
        seen += [task.user_id for task in page]
        after = page[-1].user_key
    assert seen == [f"u{n:02}" for n in range(7)]


# -- firing ------------------------------------------------------------------------------------------


async def test_a_due_task_becomes_one_message(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity()])
    assert await fire(bench) == []
    bench.clock.advance(10)
    found = await due(bench)
    assert [(t.user_key, t.scheduled_at, t.anchor) for t in found.triggers] == [
        ("ann:phone:bot", bench.clock.now(), bench.clock.now())
    ]
    assert (found.triggers[0].user_id, found.triggers[0].device_id, found.triggers[0].agent_id) == (
        "ann",
        "phone",
        "bot",
    )
    assert await bench.backend.triggers.fire([firing(found.triggers[0])]) == [True]
    running = await state(bench)
    assert (running.status, running.scheduled_at) == ("running", None)
    (claim,) = await bench.claim(TYPE)
    assert claim.message.item_id == running.item_id
    assert claim.message.info == {"device_id": "phone", "agent_id": "bot"}
    assert claim.message.user_key == "ann:phone:bot"
    assert (await due(bench)).triggers == []


async def test_whoever_is_late_fires_nothing(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    (task,) = (await due(bench)).triggers
    both = await asyncio.gather(*(bench.backend.triggers.fire([firing(task)]) for _ in range(5)))
    assert sorted(both) == [[False]] * 4 + [[True]]
    await run(bench)
    assert await bench.backend.triggers.fire([firing(task)]) == [False]
    assert await bench.claim(TYPE) == []


async def test_a_task_that_was_moved_since_is_not_fired(bench: Bench) -> None:
    await ready(bench)
    moving = activity(debounce=True)
    await bench.backend.triggers.touch([moving])
    bench.clock.advance(10)
    (task,) = (await due(bench)).triggers
    await bench.backend.triggers.touch([moving])
    assert await bench.backend.triggers.fire([firing(task)]) == [False]


async def test_those_due_longest_come_first_and_at_most_so_many(bench: Bench) -> None:
    await ready(bench, TYPE, "other")
    first = bench.clock.now()
    for n in range(5):
        await bench.backend.triggers.touch([activity(f"u{n}", task_type="other" if n % 2 else TYPE)])
        bench.clock.advance(1)
    bench.clock.advance(20)
    found = await due(bench, TYPE, "other", limit=3)
    assert [task.user_id for task in found.triggers] == ["u0", "u1", "u2"]
    assert found.next_due == first + 3000 + 10_000
    everything = await due(bench, TYPE, "other")
    assert (len(everything.triggers), everything.next_due) == (5, None)


async def test_types_that_nobody_asks_for_are_left_alone(bench: Bench) -> None:
    await ready(bench, TYPE, "other")
    await bench.backend.triggers.touch([activity(), activity(task_type="other")])
    bench.clock.advance(10)
    assert [task.task_type for task in (await due(bench, "other")).triggers] == ["other"]
    assert (await due(bench, "strange")).next_due is None


@pytest.mark.limits(total=ScopeLimits(depth=1))
async def test_a_full_queue_refuses_no_due_task(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity(f"u{n}") for n in range(3)])
    bench.clock.advance(10)
    assert await fire(bench) == [True] * 3
    assert len(await bench.claim(TYPE)) == 3


# -- the end of a run --------------------------------------------------------------------------------


async def fired(bench: Bench, *users: str) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity(user) for user in users or ("ann",)])
    bench.clock.advance(10)
    assert all(await fire(bench))


async def test_a_run_that_ends_well_is_completed(bench: Bench) -> None:
    await fired(bench)
    bench.clock.advance(2)
    await run(bench)
    found = await state(bench)
    assert (found.status, found.last_exec, found.scheduled_at) == ("completed", bench.clock.now(), None)
    assert found.retry_count == 0
    assert (await due(bench)).next_due is None


@pytest.mark.parametrize(("move", "error"), [(Move.BURY, "no"), (Move.CANCEL, None)])
async def test_a_run_that_ends_otherwise_is_failed(bench: Bench, move: Move, error: str | None) -> None:
    await fired(bench)
    await run(bench, move=move, error=error)
    found = await state(bench)
    assert (found.status, found.last_exec) == ("failed", None)


async def test_a_retry_is_counted_and_goes_on(bench: Bench) -> None:
    await fired(bench)
    await run(bench, move=Move.RETRY, error="again")
    found = await state(bench)
    assert (found.status, found.retry_count) == ("running", 1)
    await run(bench)
    found = await state(bench)
    assert (found.status, found.retry_count) == ("completed", 1)


async def test_a_run_that_is_lost_too_often_has_failed(bench: Bench) -> None:
    await fired(bench)
    for _ in range(3):
        await bench.claim(TYPE)
        await bench.advance(31)
    assert (await state(bench)).status == "failed"


async def test_a_waiting_run_that_is_cancelled_has_failed(bench: Bench) -> None:
    await fired(bench)
    item_id = (await state(bench)).item_id
    await bench.control(CancelItems, user_id="ann", item_ids=(item_id,))
    assert (await state(bench)).status == "failed"


async def test_activity_after_the_end_schedules_anew(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    bench.clock.advance(3)
    assert await bench.backend.triggers.touch([activity()]) == [True]
    found = await state(bench)
    assert (found.status, found.scheduled_at) == ("pending", bench.clock.now() + 10_000)


@pytest.mark.parametrize("move", [Move.COMPLETE, Move.BURY])
async def test_activity_during_a_run_leads_to_one_more(bench: Bench, move: Move) -> None:
    await fired(bench)
    claims = await bench.claim(TYPE)
    assert await bench.backend.triggers.touch([activity(), activity()]) == [True, False]
    bench.clock.advance(5)
    assert (await due(bench)).next_due is None, "nothing is due before the run has ended"
    await settle(bench, *(Settlement(claim=claim, move=move) for claim in claims))
    found = await state(bench)
    assert (found.status, found.scheduled_at) == ("pending", bench.clock.now() + 10_000)
    bench.clock.advance(10)
    assert await fire(bench) == [True]
    await run(bench)
    assert (await due(bench)).next_due is None


async def test_the_end_of_an_older_run_means_nothing(bench: Bench) -> None:
    await fired(bench)
    await run(bench, move=Move.BURY, error="no")
    first = (await state(bench)).item_id
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    await fire(bench)
    second = await state(bench)
    await bench.control(RequeueItems, user_id="ann", item_ids=(first,))
    claims = {claim.message.item_id: claim for claim in await bench.claim(TYPE)}
    await settle(bench, done(claims[first]))
    assert await state(bench) == second


async def test_the_claim_that_holds_a_run_can_be_found(bench: Bench) -> None:
    store = bench.backend.triggers
    await ready(bench)
    await store.touch([activity()])
    assert await store.held(TYPE, "ann:phone:bot") is None
    bench.clock.advance(INTERVAL_S)
    await fire(bench)
    assert await store.held(TYPE, "ann:phone:bot") is None, "nobody has claimed it"
    (claim,) = await bench.claim(TYPE)
    held = await store.held(TYPE, "ann:phone:bot")
    assert held is not None
    assert (held.claim_id, held.lease_until, held.key) == (claim.claim_id, claim.lease_until, claim.key)
    assert (held.message, held.submitted_at) == (claim.message, claim.submitted_at)
    await settle(bench, Settlement(claim=held, move=Move.RETRY))
    assert await store.held(TYPE, "ann:phone:bot") is None
    (again,) = await bench.claim(TYPE)
    found = await store.held(TYPE, "ann:phone:bot")
    assert found is not None
    assert (found.claim_id, found.message.attempts) == (again.claim_id, 1)
    (late,) = await bench.queue.settle([Settlement(claim=held, move=Move.COMPLETE)])
    assert late.state == "stale"
    await settle(bench, done(found))
    assert (await state(bench)).status == "completed"
    assert await store.held(TYPE, "bob:phone:bot") is None


async def test_a_stale_worker_ends_nothing(bench: Bench) -> None:
    await fired(bench)
    old = await bench.claim(TYPE, lease_ms=1000)
    await bench.advance(2)
    assert await settle(bench, *map(done, old)) == ["stale"]
    assert (await state(bench)).status == "running"


async def test_many_end_at_once(bench: Bench) -> None:
    users = [f"u{n}" for n in range(50)]
    await fired(bench, *users)
    await run(bench)
    found = await bench.backend.triggers.states(TYPE)
    assert {task.status for task in found} == {"completed"}
    assert len(found) == 50


async def test_what_has_ended_is_shown_for_its_ttl(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    bench.clock.advance(7199)
    assert (await due(bench)).triggers == []
    assert (await state(bench)).status == "completed"
    bench.clock.advance(1)
    assert (await due(bench)).triggers == []
    assert await state(bench) is None
    assert await bench.backend.triggers.states(TYPE) == []


async def test_when_it_last_ended_well_is_known_for_a_day(bench: Bench) -> None:
    """It is kept apart from the task, in whole seconds."""
    store = bench.backend.triggers
    bench.clock.advance(0.123)
    await fired(bench)
    ended = bench.clock.now()
    await run(bench)
    bench.clock.advance(7200)
    await due(bench)
    assert await store.touch([activity()]) == [True]
    found = await state(bench)
    assert (found.status, found.last_exec, found.item_id) == ("pending", ended // 1000 * 1000, None)
    assert (found.created_at, found.retry_count) == (bench.clock.now(), 0)
    bench.clock.advance(INTERVAL_S)
    await fire(bench)
    await run(bench)
    bench.clock.advance(7200)
    await due(bench)
    assert await store.control(RunTrigger(activity()))
    assert (await state(bench)).last_exec == (bench.clock.now() - 7_200_000) // 1000 * 1000


# -- tasks that belong to no user --------------------------------------------------------------------


async def test_a_schedule_goes_from_due_time_to_due_time(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.backend.triggers.put([definition("data_cleanup", first_due=start + 5000)])
    for n in range(1, 4):
        assert (await due(bench, "data_cleanup")).next_due == start + 5000 * n
        bench.clock.advance(5)
        (task,) = (await due(bench, "data_cleanup")).triggers
        assert (task.user_key, task.user_id, task.anchor) == (GLOBAL_KEY, None, start + 5000 * n)
        following = start + 5000 * (n + 1)
        assert await fire(bench, "data_cleanup", next_at=following, next_anchor=following) == [True]
        assert (await global_state(bench, "data_cleanup")).status == "running"
        assert len(await run(bench, "data_cleanup")) == 1
    assert (await global_state(bench, "data_cleanup")).last_exec == bench.clock.now()


async def test_it_is_not_due_while_it_runs(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.backend.triggers.put([definition("data_cleanup", first_due=start + 1000)])
    bench.clock.advance(1)
    await fire(bench, "data_cleanup", next_at=start + 2000, next_anchor=start + 2000)
    bench.clock.advance(5)
    assert (await due(bench, "data_cleanup")).triggers == []
    await run(bench, "data_cleanup")
    (task,) = (await due(bench, "data_cleanup")).triggers
    assert task.scheduled_at == start + 2000


async def test_a_due_time_can_be_skipped(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.backend.triggers.put([definition("data_cleanup", first_due=start)])
    assert await fire(bench, "data_cleanup", message=None, next_at=start + 1000, next_anchor=start + 900) == [
        True
    ]
    assert await bench.claim("data_cleanup") == []
    bench.clock.advance(1)
    (task,) = (await due(bench, "data_cleanup")).triggers
    assert (task.scheduled_at, task.anchor) == (start + 1000, start + 900)
    (statistics,) = await bench.backend.triggers.statistics()
    assert (statistics.skipped, statistics.fired) == (1, 0)


async def test_a_known_schedule_is_not_begun_anew(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.backend.triggers.put([definition("data_cleanup", first_due=start + 1000)])
    bench.clock.advance(0.5)
    again = definition("data_cleanup", first_due=start + 1500)
    await bench.backend.triggers.put([again])
    assert (await due(bench, "data_cleanup")).next_due == start + 1000
    newer = msgspec.structs.replace(again, version=2)
    await bench.backend.triggers.put([newer])
    assert (await due(bench, "data_cleanup")).next_due == start + 1000, "its schedule is the same"
    other = definition("data_cleanup", first_due=start + 9000, version=3, interval="9")
    await bench.backend.triggers.put([other])
    assert (await due(bench, "data_cleanup")).next_due == start + 9000


# -- types -------------------------------------------------------------------------------------------


async def test_the_higher_version_wins(bench: Bench) -> None:
    put = bench.backend.triggers.put
    (first,) = await put([definition(version=2, interval="20")])
    assert (first.version, first.fields["interval"], first.enabled, first.differs) == (2, "20", True, False)
    (older,) = await put([definition(version=1, interval="99", enabled=False)])
    assert older == first
    (same,) = await put([definition(version=2, interval="21")])
    assert same == msgspec.structs.replace(first, differs=True)
    (newer,) = await put([definition(version=3, interval="30", enabled=False)])
    assert (newer.version, newer.fields["interval"], newer.enabled) == (3, "30", False)
    assert await bench.backend.triggers.types() == [newer]


async def test_a_whole_configuration_disables_what_it_leaves_out(bench: Bench) -> None:
    put = bench.backend.triggers.put
    await put([definition("old"), definition("kept")], whole=True)
    answers = await put([definition("kept", version=2)], whole=True)
    assert [(known.name, known.enabled) for known in answers] == [("kept", True), ("old", False)]
    await put([definition("kept")], whole=True)
    assert [(known.name, known.enabled) for known in await bench.backend.triggers.types()] == [
        ("kept", True),
        ("old", False),
    ]


async def test_a_person_switches_a_type_off_and_on(bench: Bench) -> None:
    await ready(bench)
    control = bench.backend.triggers.control
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    (task,) = (await due(bench)).triggers
    assert await control(SwitchType(TYPE, enabled=False))
    assert (await due(bench)).triggers == []
    assert await bench.backend.triggers.fire([firing(task)]) == [False]
    assert await bench.backend.triggers.touch([activity("bob")]) == [False]
    (known,) = await bench.backend.triggers.put([definition()])
    assert (known.enabled, known.differs) == (False, False), "what a person has set outlives a restart"
    assert await control(SwitchType(TYPE, enabled=True))
    assert len((await due(bench)).triggers) == 1
    assert not await control(SwitchType("unknown", enabled=True))
    await control(SwitchType(TYPE, enabled=False))
    (known,) = await bench.backend.triggers.put([definition(version=2)])
    assert known.enabled, "but not a newer configuration"


# -- what a person asks for --------------------------------------------------------------------------


async def test_a_run_can_be_had_now(bench: Bench) -> None:
    await ready(bench)
    control = bench.backend.triggers.control
    assert await control(RunTrigger(activity()))
    await bench.backend.triggers.touch([activity("bob")])
    assert await control(RunTrigger(activity("bob")))
    found = (await due(bench)).triggers
    assert [(task.user_id, task.last_item_id) for task in found] == [("ann", None), ("bob", None)]
    assert all(await fire(bench))
    assert await control(RunTrigger(activity()))
    await run(bench)
    again = await state(bench)
    assert again.status == "pending"
    bench.clock.advance(10)
    assert [task.last_item_id for task in (await due(bench)).triggers] == [again.item_id]
    assert (await state(bench, "bob")).status == "completed"
    assert not await control(RunTrigger(activity(task_type="unknown")))


async def test_a_schedule_goes_on_after_a_run_now(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.backend.triggers.put([definition("data_cleanup", first_due=start + 60_000)])
    now = RunTrigger(activity(task_type="data_cleanup", user_key=GLOBAL_KEY))
    assert await bench.backend.triggers.control(now)
    (task,) = (await due(bench, "data_cleanup")).triggers
    assert (task.scheduled_at, task.anchor) == (start, start + 60_000)


async def test_a_scheduled_run_can_be_cancelled(bench: Bench) -> None:
    await ready(bench)
    control = bench.backend.triggers.control
    await bench.backend.triggers.touch([activity()])
    assert await control(CancelTrigger(TYPE, "ann:phone:bot"))
    assert not await control(CancelTrigger(TYPE, "ann:phone:bot"))
    assert await state(bench) is None
    assert (await due(bench)).next_due is None
    assert await bench.backend.triggers.touch([activity()]) == [True]


# -- messages that were there before -----------------------------------------------------------------


async def test_a_run_whose_message_has_ended_before_ends_with_it(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    ended = (await state(bench)).last_exec
    await bench.backend.triggers.control(RunTrigger(activity()))
    (again,) = (await due(bench)).triggers
    made = firing(msgspec.structs.replace(again, scheduled_at=ended))  # the id of the run before
    made = msgspec.structs.replace(made, trigger=again)
    bench.clock.advance(1)
    assert await bench.backend.triggers.fire([made]) == [True]
    assert await bench.claim(TYPE) == []
    found = await state(bench)
    assert (found.status, found.last_exec) == ("completed", bench.clock.now())


async def test_a_message_of_someone_else_holds_up_no_trigger(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    (one,) = (await due(bench)).triggers
    made = firing(one)
    await bench.queue.submit([Message(user_id="ann", label="other", item_id=made.message.item_id)])
    assert await bench.backend.triggers.fire([made]) == [True]
    assert (await state(bench)).status == "failed"
    (found,) = await bench.backend.triggers.statistics()
    assert (found.fired, found.runs, found.failures, found.running) == (1, 1, 1, 0)
    assert found.last_error == "its message was known already"
    assert ids(await bench.claim("other")) == [made.message.item_id]


# -- dependence, statistics, waking ------------------------------------------------------------------


async def test_a_task_waits_for_those_it_depends_on(bench: Bench) -> None:
    await ready(bench, "first", "second")
    depends_on = {"second": ("first",)}
    await bench.backend.triggers.touch([activity(task_type="second")])
    bench.clock.advance(10)
    assert len((await due(bench, "second", **depends_on)).triggers) == 1, "nothing else is scheduled"
    await bench.backend.triggers.touch([activity(task_type="first")])
    assert await due(bench, "second", **depends_on) == Due(now=bench.clock.now(), triggers=[], next_due=None)
    bench.clock.advance(10)
    assert await fire(bench, "first") == [True]
    assert (await due(bench, "second", **depends_on)).triggers == []
    await run(bench, "first")
    assert len((await due(bench, "second", **depends_on)).triggers) == 1
    await bench.backend.triggers.touch([activity(task_type="first")])
    assert len((await due(bench, "second", **depends_on)).triggers) == 1, (
        "it has ended well since the last run"
    )
    await fire(bench, "second")
    await run(bench, "second")
    await bench.backend.triggers.touch([activity(task_type="second")])
    bench.clock.advance(10)
    assert (await due(bench, "second", **depends_on)).triggers == []


async def test_tasks_that_wait_for_others_do_not_hide_those_behind_them(bench: Bench) -> None:
    """One look may put so many aside that it finds no other; then the next one is due at once."""
    await ready(bench, "first", "second")
    triggers, depends_on = bench.backend.triggers, {"second": ("first",)}
    users = [f"u{n:04}" for n in range(1100)]
    await triggers.touch([activity(user, "first", interval_ms=3_600_000) for user in users])
    await triggers.touch([activity(user, "second") for user in users])
    bench.clock.advance(1)
    await triggers.touch([activity("zoe", "second")])
    bench.clock.advance(10)
    now = bench.clock.now()

    async def look() -> list[str]:
        for _ in range(3):
            found = await due(bench, "second", limit=5, **depends_on)
            if found.triggers or found.next_due is None:
                break
            assert found.next_due == now
        return [task.user_id for task in found.triggers]

    assert await look() == ["zoe"]
    assert (await due(bench, "second", limit=5, **depends_on)).next_due is None
    for user in ("u0007", "u1099"):
        await triggers.control(CancelTrigger("first", f"{user}:phone:bot"))
    assert await look() == ["u0007", "u1099", "zoe"], "nothing is scheduled for them any more"
    await triggers.control(RunTrigger(activity("u0003", "first")))
    await fire(bench, "first")
    await run(bench, "first")
    assert await look() == ["u0003", "u0007", "u1099", "zoe"], "what it depends on has ended well"
    others = await due(bench, "second", limit=5)
    assert [task.user_id for task in others.triggers] == users[:5], "now it depends on nothing"


async def test_statistics_of_a_type(bench: Bench) -> None:
    await fired(bench, "ann", "bob", "cem")
    bench.clock.advance(2)
    claims = await bench.claim(TYPE)
    first, second, _ = claims
    await settle(bench, done(first), Settlement(claim=second, move=Move.BURY, error="broken"))
    await bench.backend.triggers.touch([activity("dan")])
    (found,) = await bench.backend.triggers.statistics()
    assert (found.task_type, found.pending, found.running) == (TYPE, 1, 1)
    assert (found.fired, found.runs, found.failures) == (3, 2, 1)
    assert (found.duration_ms, found.lateness_ms, found.max_lateness_ms) == (4000, 0, 0)
    assert (found.last_run_at, found.last_error) == (bench.clock.now(), "broken")
    bench.clock.advance(15)
    await fire(bench)
    (found,) = await bench.backend.triggers.statistics()
    assert (found.lateness_ms, found.max_lateness_ms) == (5000, 5000)


async def test_who_waits_is_woken_by_an_earlier_due_time(bench: Bench) -> None:
    await ready(bench)
    waiting = await started(bench.queue.wait((TRIGGERS,), bench.clock.now() + 3_600_000))
    await bench.backend.triggers.touch([activity()])
    async with asyncio.timeout(10):
        await waiting


async def test_who_waits_is_woken_by_a_run_that_moves_to_an_earlier_time(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity(interval_ms=3_600_000)])
    async with asyncio.timeout(10):
        await bench.queue.wait((TRIGGERS,), None)  # what happened before
    waiting = await started(bench.queue.wait((TRIGGERS,), None))
    assert await bench.backend.triggers.touch([activity(debounce=True)]) == [False]
    async with asyncio.timeout(10):
        await waiting


async def test_who_waits_is_woken_by_a_newer_configuration(bench: Bench) -> None:
    await bench.backend.triggers.put([definition(enabled=False)])
    async with asyncio.timeout(10):
        await bench.queue.wait((TRIGGERS,), None)  # what happened before
    waiting = await started(bench.queue.wait((TRIGGERS,), None))
    await bench.backend.triggers.put([definition(version=2)])
    async with asyncio.timeout(10):
        await waiting


async def test_who_waits_is_woken_by_the_end_of_a_run(bench: Bench) -> None:
    await fired(bench)
    claims = await bench.claim(TYPE)
    await bench.backend.triggers.touch([activity()])
    async with asyncio.timeout(10):
        await bench.queue.wait((TRIGGERS,), None)  # what happened before
    waiting = await started(bench.queue.wait((TRIGGERS,), None))
    await settle(bench, *map(done, claims))
    async with asyncio.timeout(10):
        await waiting


async def test_ids_of_any_kind_do_not_collide(bench: Bench) -> None:
    await ready(bench, TYPE, "a:b", "a")
    strange = [
        activity(user_key=key, user_id="u", task_type=kind)
        for kind, key in [("a:b", "c"), ("a", "b:c"), (TYPE, "%3A"), (TYPE, "ü %:"), (TYPE, "x" * 500)]
    ]
    assert await bench.backend.triggers.touch(strange) == [True] * 5
    bench.clock.advance(10)
    found = await due(bench, TYPE, "a:b", "a")
    assert {(task.task_type, task.user_key) for task in found.triggers} == {
        (one.task_type, one.user_key) for one in strange
    }
