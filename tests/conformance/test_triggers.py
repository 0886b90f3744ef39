"""What every trigger store does: activity, due times, firing, types and statistics."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from conformance.conftest import Bench, done, settle
from conformance.triggering import (
    TYPE,
    activity,
    definition,
    due,
    fire,
    fired,
    firing,
    global_state,
    ready,
    run,
    state,
)
from reverie.backends.moves import Move, ScopeLimits, Settlement
from reverie.backends.triggers import (
    GLOBAL_KEY,
    TRIGGERS,
    CancelTrigger,
    Due,
    RunTrigger,
    SwitchType,
)
from support.living import started

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
    """A look that puts aside its whole page of tasks finds no other task; the next look is due at once."""
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
