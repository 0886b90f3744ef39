"""The rules of triggers: what holds whatever happens to one, in whatever order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.backends.moves import Status
from reverie.backends.trigger_state import (
    LEAST_KEPT_MS,
    Moved,
    Run,
    Trigger,
    TypeState,
    added,
    cancel,
    due_of,
    fire,
    is_blocked,
    is_news,
    known_run,
    known_type,
    left_out,
    move_run,
    put_type,
    run_now,
    schedule_first,
    touch,
)
from reverie.backends.triggers import GLOBAL_KEY, Activity, Definition, Firing, TypeStatistics
from reverie.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_800_000_000_000
INTERVAL_MS = 10_000
ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def activity(**fields) -> Activity:
    own = {"task_type": "digest", "user_key": "ann", "user_id": "ann", "interval_ms": INTERVAL_MS}
    return Activity(**(own | fields))


def firing(trigger: Trigger, *, next_at: int | None = None, skip: bool = False) -> Firing:
    message = Message(
        user_id=trigger.user_id or "_system",
        label=trigger.task_type,
        item_id=f"{trigger.user_key}:{trigger.scheduled_at}",
        user_key=trigger.user_key,
    )
    due = due_of(trigger)
    return Firing(trigger=due, message=None if skip else message, next_at=next_at, next_anchor=next_at)


def run_of(trigger: Trigger, status: Status, attempts: int = 1) -> Run:
    assert trigger.item_id is not None
    own = (trigger.task_type, trigger.user_key, trigger.item_id)
    return Run(*own, status, attempts, None if status is Status.COMPLETED else "no")


def running(now: int = NOW) -> Trigger:
    scheduled = touch(None, activity(interval_ms=0), now).trigger
    assert scheduled is not None
    fired = fire(scheduled, firing(scheduled), now).trigger
    assert fired is not None
    return fired


# -- whatever happens --------------------------------------------------------------------------------

_activities = st.builds(
    activity,
    interval_ms=st.integers(0, 20_000),
    debounce=st.booleans(),
    max_wait_ms=st.none() | st.integers(0, 30_000),
    ttl_ms=st.integers(1, 3 * LEAST_KEPT_MS),
)


def moves(user_key: str) -> st.SearchStrategy[Callable[[Trigger | None, int], Moved]]:
    """All that may happen to the trigger of a user, or to the one of no user."""

    def fired(trigger: Trigger | None, now: int, *, skip: bool) -> Moved:
        if trigger is None or trigger.scheduled_at is None:
            return Moved(trigger, answer=False)
        next_at = None if user_key else now + INTERVAL_MS
        return fire(trigger, firing(trigger, next_at=next_at, skip=skip), now)

    def ended(trigger: Trigger | None, now: int, *, status: Status) -> Moved:
        if trigger is None or trigger.item_id is None:
            return Moved(trigger, answer=False)
        return move_run(trigger, run_of(trigger, status), now)

    fires = st.booleans().map(lambda skip: lambda one, now: fired(one, now, skip=skip))
    ends = st.sampled_from((*ENDS, Status.WAITING)).map(
        lambda status: lambda one, now: ended(one, now, status=status)
    )
    runs = _activities.map(
        lambda given: lambda one, now: run_now(one, msgspec.structs.replace(given, user_key=user_key), now)
    )
    cancels = st.just(cancel)
    if user_key:
        touches = _activities.map(lambda given: lambda one, now: touch(one, given, now))
        return st.one_of(touches, fires, ends, runs, cancels)
    puts = st.tuples(st.integers(1, 20_000), st.booleans()).map(
        lambda given: (
            lambda one, now: schedule_first(
                one,
                Definition(name="digest", fields={}, enabled=True, first_due=now + given[0]),
                now,
                anew=given[1],
            )
        )
    )
    return st.one_of(puts, fires, ends, runs, cancels)


def lives(user_key: str) -> st.SearchStrategy[list[tuple[int, Callable[[Trigger | None, int], Moved]]]]:
    return st.lists(st.tuples(st.integers(0, 15_000), moves(user_key)), max_size=30)


def check(before: Trigger | None, after: Trigger | None, now: int) -> None:
    """What holds of every step."""
    if after is None:
        assert before is None or before.fired_at is None, "no trigger is forgotten while it runs"
        return
    is_idle = after.scheduled_at is None and after.fired_at is None
    if after.user_id is not None:
        assert (after.expires_at is not None) == is_idle
        assert after.expires_at is None or after.expires_at > now
    else:
        assert after.expires_at is None
        assert not is_idle, "a trigger of no user always has a next due time or runs"
    assert (after.scheduled_at is None) <= (after.anchor is None)
    assert (after.touched) <= (after.fired_at is not None)
    if before is not None and before.fired_at is not None and after.fired_at is not None:
        assert after.item_id == before.item_id, "one run at a time"
    if before is not None and before.touched and after.fired_at is None:
        assert after.scheduled_at is not None, "activity during a run leads to another"


@pytest.mark.parametrize("user_key", ["ann", GLOBAL_KEY])
@given(data=st.data())
def test_every_life_of_a_trigger(user_key: str, data: st.DataObject) -> None:
    trigger: Trigger | None = None
    now, total = NOW, TypeStatistics(task_type="digest")
    for later, move in data.draw(lives(user_key)):
        now += later
        before = trigger
        moved = move(before, now)
        trigger = moved.trigger
        check(before, trigger, now)
        if moved.counted is not None:
            total = added(total, moved.counted)
        is_running = trigger is not None and trigger.fired_at is not None
        assert total.fired - total.runs == int(is_running)
        if before is None or before.status in {"completed", "failed"}:
            assert is_news(before, trigger) == (trigger is not None and trigger.status == "pending")


@given(life=lives("ann"))
def test_the_clocks_hear_of_every_due_time_that_is_earlier(
    life: list[tuple[int, Callable[[Trigger | None, int], Moved]]],
) -> None:
    trigger: Trigger | None = None
    now, known = NOW, None
    for later, move in life:
        now += later
        before, trigger = trigger, move(trigger, now).trigger
        due = None if trigger is None or trigger.fired_at is not None else trigger.scheduled_at
        if is_news(before, trigger):
            known = due
        elif due is not None:
            assert known is not None
            assert known <= due, "a clock that sleeps until the time it knows wakes early enough"


# -- single rules ------------------------------------------------------------------------------------


def test_activity_during_a_run_is_noted_once() -> None:
    first = touch(running(), activity(), NOW + 5)
    second = touch(first.trigger, activity(interval_ms=20_000), NOW + 6)
    assert (first.answer, second.answer) == (True, False)
    assert second.trigger is not None
    ended = move_run(second.trigger, run_of(second.trigger, Status.FAILED), NOW + 9).trigger
    assert ended is not None
    assert (ended.scheduled_at, ended.created_at, ended.status) == (NOW + 20_009, NOW + 9, "pending")


@pytest.mark.parametrize("end", ENDS)
def test_only_a_good_end_counts_as_executed(end: Status) -> None:
    moved = move_run(running(), run_of(running(), end), NOW + 7)
    good = end is Status.COMPLETED
    assert moved.trigger is not None
    assert moved.trigger.status == ("completed" if good else "failed")
    assert moved.trigger.last_exec == (NOW + 7 if good else None)
    assert moved.trigger.expires_at == NOW + 7 + LEAST_KEPT_MS
    assert moved.counted == TypeStatistics(
        task_type="digest",
        runs=1,
        failures=0 if good else 1,
        duration_ms=7,
        last_run_at=NOW + 7,
        last_error=None if good else "no",
    )


def test_the_end_of_another_run_changes_nothing() -> None:
    trigger = running()
    other = run_of(trigger, Status.COMPLETED)._replace(item_id="other")
    assert move_run(trigger, other, NOW + 1) == Moved(trigger, answer=False)
    idle = move_run(trigger, run_of(trigger, Status.COMPLETED), NOW + 1).trigger
    assert idle is not None
    assert move_run(idle, run_of(trigger, Status.FAILED), NOW + 2) == Moved(idle, answer=False)


def test_who_fires_late_changes_nothing() -> None:
    trigger = touch(None, activity(), NOW).trigger
    assert trigger is not None
    mine = firing(trigger)
    moved = touch(trigger, activity(debounce=True), NOW + 1).trigger
    assert fire(moved, mine, NOW + 50_000) == Moved(moved, answer=False)
    assert fire(None, mine, NOW + 50_000) == Moved(None, answer=False)
    fired = fire(trigger, mine, NOW + 50_000)
    assert fired.counted == TypeStatistics(
        task_type="digest", fired=1, lateness_ms=40_000, max_lateness_ms=40_000
    )
    assert fire(fired.trigger, mine, NOW + 50_001).answer is False


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        (Run("digest", "ann", "i", Status.WAITING, 0, None), None),
        (Run("digest", "ann", "i", Status.IN_PROGRESS, 1, None), None),
        (
            Run("digest", "ann", "i", Status.COMPLETED, 1, None),
            (Status.COMPLETED, "its message was known already"),
        ),
        (Run("digest", "ann", "i", Status.FAILED, 3, "broken"), (Status.FAILED, "broken")),
        (
            Run("digest", "bob", "i", Status.WAITING, 0, None),
            (Status.FAILED, "its message was known already"),
        ),
        (Run("other", None, "i", Status.IN_PROGRESS, 0, "slow"), (Status.FAILED, "slow")),
        (Run("other", None, "i", Status.CANCELLED, 0, "cancelled"), (Status.CANCELLED, "cancelled")),
    ],
)
def test_a_message_that_was_there_before(found: Run, ended: tuple[Status, str] | None) -> None:
    message = Message(user_id="ann", label="digest", item_id="i", user_key="ann")
    answer = known_run(message, found)
    assert (answer and (answer.status, answer.error)) == ended
    assert answer is None or answer[:3] == ("digest", "ann", "i")


def test_a_trigger_waits_for_an_open_one_that_has_not_ended_well_since() -> None:
    mine = running(NOW)
    waiting = touch(None, activity(), NOW).trigger
    assert waiting is not None
    assert is_blocked(mine, [waiting])
    assert not is_blocked(mine, [])
    for last_exec, blocked in ((NOW - 1, True), (NOW, True), (NOW + 1, False)):
        assert is_blocked(mine, [msgspec.structs.replace(waiting, last_exec=last_exec)]) is blocked
    finished = msgspec.structs.replace(waiting, scheduled_at=None, ended="failed")
    assert not is_blocked(mine, [finished])


# -- types -------------------------------------------------------------------------------------------

_definitions = st.builds(
    Definition,
    name=st.just("digest"),
    fields=st.fixed_dictionaries({"interval": st.sampled_from(("1", "2"))}),
    enabled=st.booleans(),
    version=st.integers(0, 3),
)


@given(definitions=st.lists(_definitions, min_size=1, max_size=8), switched=st.none() | st.booleans())
def test_the_highest_version_that_came_first_is_in_force(
    definitions: list[Definition], switched: bool | None
) -> None:
    state: TypeState | None = None
    for definition in definitions:
        before, state = state, put_type(state, definition)
        same = (definition.fields, definition.enabled) == (state.fields, state.configured)
        assert known_type(state, definition).differs == (definition.version == state.version and not same)
        if state is not before:
            assert state.switched is None
            state = msgspec.structs.replace(state, switched=switched)
            assert known_type(state).enabled == (definition.enabled if switched is None else switched)
    assert state is not None
    highest = max(one.version for one in definitions)
    expected = next(one for one in definitions if one.version == highest)
    assert (state.version, state.fields, state.configured) == (highest, expected.fields, expected.enabled)


def test_a_whole_configuration_disables_older_types_that_it_leaves_out() -> None:
    known = [TypeState(name, {"of": name}, configured=True, version=n) for n, name in enumerate("abc")]
    whole = [Definition(name="a", fields={}, enabled=True, version=2)]
    assert left_out(known, whole) == [Definition(name="b", fields={"of": "b"}, enabled=False, version=2)]
    assert left_out(known, []) == []


def test_statistics_add_up() -> None:
    one = TypeStatistics(task_type="t", runs=2, failures=1, max_lateness_ms=9, last_run_at=5, last_error="no")
    good = TypeStatistics(task_type="t", runs=1, max_lateness_ms=3, last_run_at=7)
    assert added(one, good) == TypeStatistics(
        task_type="t", runs=3, failures=1, max_lateness_ms=9, last_run_at=7, last_error="no"
    )
    silent = TypeStatistics(task_type="t", runs=1, failures=1, last_run_at=8)
    assert added(one, silent).last_error is None, "the last failure said nothing"
    assert added(one, TypeStatistics(task_type="t", skipped=1)).last_run_at == 5
