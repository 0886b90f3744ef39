"""Alerts about timed tasks: late, missed, failing, and configured in two ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import Scheduler
from reverie.backends.moves import Presence
from reverie.observe.rules import Alert
from reverie.observe.settings import AlertSettings
from reverie.observe.trigger_rules import TriggerHealth, TypeHealth, check_triggers
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., Scheduler]


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    """Instances on one SQLite file, with time moved by hand."""
    opened: list[Scheduler] = []

    def make(**scheduler: Any) -> Scheduler:
        url = f"sqlite:///{tmp_path / 'r.db'}"
        settings = load_settings(queue={"url": url, "durability": "normal"}, scheduler=scheduler)
        opened.append(Scheduler(settings=settings, clock=clock))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def attend(scheduler: Scheduler, *labels: str) -> None:
    """Let there be a worker that handles these."""
    scheduler.open()
    presence = Presence(worker="w", labels=labels, lives_ms=10_000_000)
    scheduler.run(scheduler.runtime.backend.queue.renew([], 0, presence))


def found(scheduler: Scheduler) -> dict[str, Alert]:
    return {one.rule: one for one in scheduler.observe.alerts() if one.rule.startswith("trigger")}


# -- the rules ---------------------------------------------------------------------------------------


def words(**fields: Any) -> Alert:
    (alert,) = check_triggers(TriggerHealth(types=[TypeHealth(task_type="sweep", **fields)]), AlertSettings())
    assert alert.id == f"{alert.rule}:sweep"
    return alert


def test_nothing_is_wrong() -> None:
    fine = TypeHealth(task_type="sweep", late_s=60, last_error="long ago")
    assert check_triggers(TriggerHealth(types=[fine]), AlertSettings()) == []


def test_each_says_what_is_wrong_and_what_to_do() -> None:
    late = words(late_s=61)
    assert (late.rule, late.level) == ("trigger_late", "warning")
    assert "'sweep' is due for 61 s and does not run" in late.message
    assert "`reverie worker restart`" in late.remedy
    missed = words(missed=1)
    assert (missed.rule, missed.level) == ("trigger_missed", "warning")
    assert "due times of 'sweep' were missed" in missed.message
    assert "`reverie triggers run sweep`" in missed.remedy
    failing = words(failures=2, last_error="Traceback\nValueError: broken\n")
    assert (failing.rule, failing.level) == ("trigger_failing", "error")
    assert "the last 2 runs of 'sweep' failed" in failing.message
    assert failing.message.endswith(": ValueError: broken")
    assert "`reverie dead requeue --label sweep --all`" in failing.remedy
    (differs,) = check_triggers(TriggerHealth(differing=("a", "b"), version=4), AlertSettings())
    assert (differs.rule, differs.level) == ("trigger_differs", "error")
    assert "a, b" in differs.message
    assert "scheduler.version = 5" in differs.remedy
    assert "`reverie config reload`" in differs.remedy


def test_how_late_is_late_is_a_setting() -> None:
    health = TriggerHealth(types=[TypeHealth(task_type="sweep", late_s=5)])
    assert check_triggers(health, AlertSettings(trigger_late_s=4))


def test_a_name_that_looks_like_an_option_is_none() -> None:
    (alert,) = check_triggers(TriggerHealth(types=[TypeHealth(task_type="-x", missed=1)]), AlertSettings())
    assert "`reverie triggers run -- -x`" in alert.remedy


# -- on a queue --------------------------------------------------------------------------------------

PERIODIC = {"enabled": True, "trigger_mode": "periodic", "interval": 10}


def test_what_is_due_and_does_not_run_is_late_if_a_live_worker_handles_it(
    make: Make, clock: ManualClock
) -> None:
    scheduler = make(tasks={"digest": {"enabled": True, "interval": 10}, "sweep": PERIODIC})
    scheduler.schedule_user_task("digest", "ann")
    attend(scheduler)
    clock.advance(10 + 61)
    assert found(scheduler) == {}  # nobody handles it: nobody is late
    attend(scheduler, "digest")
    late = found(scheduler)["trigger_late"]
    assert (late.subject, "is due for 61 s" in late.message) == ("digest", True)
    scheduler.triggers.disable("digest")
    assert found(scheduler) == {}
    scheduler.triggers.enable("digest")
    scheduler.triggers.cancel("digest", user_id="ann")
    assert found(scheduler) == {}


def test_what_waits_for_another_type_is_not_late(make: Make, clock: ManualClock) -> None:
    activity = {"enabled": True, "interval": 10}
    scheduler = make(
        tasks={"first": {**activity, "interval": 1000}, "then": {**activity, "depends_on": ["first"]}}
    )
    for name in ("first", "then"):
        scheduler.schedule_user_task(name, "ann")
    attend(scheduler, "first", "then")
    clock.advance(500)
    assert found(scheduler) == {}
    clock.advance(600)
    assert found(scheduler)["trigger_late"].subject == "first"


def test_due_times_that_were_skipped_are_told_for_ten_minutes(make: Make, clock: ManualClock) -> None:
    scheduler = make()
    scheduler.trigger("sweep", mode="periodic", interval=100, misfire="skip")(lambda *_: True)
    drain(scheduler)
    assert found(scheduler) == {}
    clock.advance(1000)
    drain(scheduler)
    for _ in range(2):
        assert found(scheduler)["trigger_missed"].subject == "sweep"
    assert found(make()) == {}  # who has just come has missed nothing
    clock.advance(601)
    assert found(scheduler) == {}


def test_a_type_whose_last_runs_failed(make: Make, clock: ManualClock) -> None:
    scheduler, answers = make(), [True, False, False, True]
    scheduler.trigger("sweep", mode="periodic", max_retries=1)(lambda *_: answers.pop(0))

    def run() -> dict[str, Alert]:
        clock.advance(1)
        scheduler.triggers.run("sweep")
        drain(scheduler)
        return found(scheduler)

    assert run() == {}
    assert "the last run of 'sweep' failed" in run()["trigger_failing"].message
    failing = run()["trigger_failing"]
    assert "the last 2 runs" in failing.message
    assert failing.message.endswith("the handler answered False")
    assert found(make()) == {}  # who has just come does not know which came last
    assert run() == {}


def test_who_comes_later_sees_that_none_ever_ended_well(make: Make) -> None:
    scheduler = make()
    scheduler.trigger("sweep", mode="periodic", max_retries=1)(lambda *_: False)
    scheduler.triggers.run("sweep")
    drain(scheduler)
    assert set(found(make())) == {"trigger_failing"}


def test_two_configurations_of_one_version(make: Make) -> None:
    first = make(tasks={"sweep": PERIODIC}, version=3)
    other = make(tasks={"sweep": {**PERIODIC, "interval": 20}}, version=3)
    for scheduler in (first, other):
        scheduler.triggers.types()
    assert found(first) == {}
    assert "sweep" in found(other)["trigger_differs"].message
    make(tasks={"sweep": {**PERIODIC, "interval": 20}}, version=4).triggers.types()
    other.run(other.runtime.triggers.types.refresh())
    assert found(other) == {}


def test_each_process_tells_of_its_own_configuration(make: Make, caplog) -> None:
    make(tasks={"sweep": PERIODIC}).triggers.types()
    other = make(tasks={"sweep": {**PERIODIC, "interval": 20}})
    other.triggers.types()
    attend(other, "sweep")  # a worker of another process leads
    other.run(other.runtime.watcher.watch())
    assert "rule='trigger_differs'" in caplog.text


def test_without_timed_tasks_nothing_is_looked_at(make: Make) -> None:
    assert found(make(enabled=False)) == {}
