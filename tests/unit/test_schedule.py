"""When schedules are due: no drift, daylight saving time, and what was missed."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.backends.triggers import GLOBAL_KEY, DueTrigger
from reverie.base.clock import to_epoch_ms
from reverie.triggers.plan import SYSTEM_USER, jitter_ms, plan
from reverie.triggers.schedule import CronSchedule, PeriodicSchedule, schedule_of
from reverie.triggers.settings import TaskSettings

HOUR = 3_600_000


def at(zone: str, *moment: int, fold: int = 0) -> int:
    return to_epoch_ms(datetime(*moment, tzinfo=ZoneInfo(zone), fold=fold))  # type: ignore[arg-type, misc]


def times(expression: str, zone: str, start: int, count: int) -> list[str]:
    ticks = CronSchedule(expression, ZoneInfo(zone)).upcoming(start, count)
    return [datetime.fromtimestamp(tick / 1000, ZoneInfo(zone)).strftime("%d %H:%M %z") for tick in ticks]


def test_a_period_does_not_drift() -> None:
    start = due = 1_700_000_000_000
    for n in range(1000):
        late = n * 37 % 9000  # whenever it happened to be fired
        following = plan(task(due), periodic(), 3, due + late).next_anchor
        assert following is not None
        due = following
    assert due == start + 1000 * 10_000


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
def test_due_times_of_a_period(interval: int, due: int, later: int) -> None:
    schedule, moment = PeriodicSchedule(interval), due + later
    following, last = schedule.after(due, moment), schedule.last(due, moment)
    assert moment < following <= moment + interval
    assert (following - due) % interval == (last - due) % interval == 0
    assert moment - interval < last <= moment
    assert schedule.first(due) == due + interval, "nothing runs at the first start"


CHANGES = {
    # zone: (the day when clocks go forward, the one when they go back), both in 2026
    "Europe/Berlin": ((2026, 3, 28, 12), (2026, 10, 24, 12)),
    "America/New_York": ((2026, 3, 7, 12), (2026, 10, 31, 12)),
}


@pytest.mark.parametrize("zone", CHANGES)
def test_a_fixed_hour_runs_once_on_both_changes(zone: str) -> None:
    forward, back = (at(zone, *moment) for moment in CHANGES[zone])
    missing, doubled = times("30 2 * * *", zone, forward, 2), times("30 2 * * *", zone, back, 2)
    assert [t[3:8] for t in missing] == ["03:00", "02:30"], "the missing half hour: right after it"
    days = {t[:2] for t in times("30 1 * * *", zone, back, 3)}
    assert len(days) == 3, "once a day, also when there are two of that hour"
    assert len({t[:2] for t in doubled}) == 2


@pytest.mark.parametrize("zone", CHANGES)
def test_every_half_hour_goes_on_through_both_changes(zone: str) -> None:
    for start in CHANGES[zone]:
        ticks = CronSchedule("*/30 * * * *", ZoneInfo(zone)).upcoming(at(zone, *start), 48)
        assert {later - earlier for earlier, later in pairwise(ticks)} == {HOUR // 2}


def test_a_zone_without_changes() -> None:
    start = at("Asia/Shanghai", 2026, 3, 28, 12)
    assert times("30 2 * * *", "Asia/Shanghai", start, 3) == [
        "29 02:30 +0800",
        "30 02:30 +0800",
        "31 02:30 +0800",
    ]


def test_the_last_due_time_of_a_cron_expression() -> None:
    schedule = CronSchedule("0 3 * * *", ZoneInfo("Europe/Berlin"))
    due = at("Europe/Berlin", 2026, 3, 20, 3)
    assert schedule.last(due, at("Europe/Berlin", 2026, 3, 31, 2, 59)) == at("Europe/Berlin", 2026, 3, 30, 3)
    assert schedule.last(due, at("Europe/Berlin", 2026, 3, 31, 3)) == at("Europe/Berlin", 2026, 3, 31, 3)
    assert schedule.last(due, due) == due


# -- what becomes of a due task ----------------------------------------------------------------------


def task(anchor: int, scheduled_at: int | None = None, **fields) -> DueTrigger:
    own = {"task_type": "t", "user_key": GLOBAL_KEY, "user_id": None, "device_id": None, "agent_id": None}
    moment = anchor if scheduled_at is None else scheduled_at
    return DueTrigger(**(own | fields), scheduled_at=moment, anchor=anchor)


def periodic(**fields) -> TaskSettings:
    return TaskSettings(enabled=True, trigger_mode="periodic", interval=10, **fields)


def test_a_user_task_has_no_next_time() -> None:
    due = task(5000, user_key="ann:d:a", user_id="ann", device_id="d", agent_id="a")
    firing = plan(due, TaskSettings(enabled=True), 3, 6000)
    assert (firing.next_at, firing.next_anchor) == (None, None)
    assert firing.message is not None
    assert (firing.message.user_id, firing.message.mem_cube_id, firing.message.label) == ("ann", "ann", "t")
    assert firing.message.info == {"device_id": "d", "agent_id": "a"}
    assert firing.message.item_id == "t:ann:d:a:5000"


def test_a_user_task_of_a_type_that_has_become_periodic_runs_once() -> None:
    firing = plan(task(5000, user_key="ann", user_id="ann"), periodic(), 3, 6000)
    assert firing.message is not None
    assert firing.next_at is None


def test_the_next_time_follows_the_schedule_not_the_run() -> None:
    firing = plan(task(50_000), periodic(), 3, 57_000)
    assert (firing.next_at, firing.next_anchor) == (60_000, 60_000)
    assert firing.message is not None
    assert (firing.message.user_id, firing.message.item_id) == (SYSTEM_USER, "t:50000")


def test_times_that_were_missed() -> None:
    late = task(50_000)
    once = plan(late, periodic(misfire="run_once"), 3, 87_000)
    assert (once.message and once.message.item_id, once.next_at) == ("t:80000", 90_000)
    every = plan(late, periodic(misfire="run_all"), 3, 87_000)
    assert (every.message and every.message.item_id, every.next_at) == ("t:50000", 60_000)
    skipped = plan(late, periodic(misfire="skip"), 3, 87_000)
    assert (skipped.message, skipped.next_at) == (None, 90_000)
    in_time = plan(late, periodic(misfire="skip"), 3, 59_000)
    assert in_time.message is not None
    hourly = TaskSettings(enabled=True, trigger_mode="periodic", interval=3600, misfire="skip")
    assert plan(task(0), hourly, 3, 61_000).message is None


def test_a_run_that_a_person_asks_for_leaves_the_schedule_alone() -> None:
    firing = plan(task(60_000, scheduled_at=42_000), periodic(), 3, 42_000)
    assert (firing.message and firing.message.item_id, firing.next_at) == ("t:42000", 60_000)
    overtaken = plan(task(60_000, scheduled_at=42_000), periodic(), 3, 65_000)
    assert overtaken.next_at == 70_000


def test_a_run_never_has_the_id_of_the_one_before() -> None:
    seen: list[str | None] = [None]
    for _ in range(4):
        firing = plan(task(5000, last_item_id=seen[-1]), TaskSettings(enabled=True), 3, 5000)
        assert firing.message is not None
        seen.append(firing.message.item_id)
    assert len(set(seen)) == 5


def test_long_ids_are_shortened_and_differ() -> None:
    made = {
        plan(task(5000, user_key="k" * n, user_id="u"), TaskSettings(enabled=True), 3, 5000).message.item_id  # type: ignore[union-attr]
        for n in (300, 301)
    }
    assert len(made) == 2
    assert all(len(item_id) < 200 for item_id in made)


def test_jitter_is_bounded_and_the_same_for_everyone() -> None:
    settings = periodic(jitter=3)
    found = {jitter_ms(settings, "", due) for due in range(0, 2_000_000, 10_000)}
    assert found == {jitter_ms(settings, "", due) for due in range(0, 2_000_000, 10_000)}
    assert min(found) >= 0
    assert max(found) <= 3000
    assert len(found) > 100
    firing = plan(task(50_000, scheduled_at=51_000), settings, 3, 51_000)
    assert firing.next_anchor == 60_000
    assert firing.next_at == 60_000 + jitter_ms(settings, "", 60_000)


def test_only_time_makes_schedules() -> None:
    assert schedule_of(TaskSettings()) is None
    assert schedule_of(periodic()) == PeriodicSchedule(10_000)
    cron = TaskSettings(trigger_mode="cron", cron="0 3 * * *", timezone="Europe/Berlin")
    assert schedule_of(cron) == CronSchedule("0 3 * * *", ZoneInfo("Europe/Berlin"))
