"""The status tracker: what it says of items and of business tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie import Bury, Message, Scheduler
from reverie.backends.moves import Status
from reverie.observe.status import business_status
from reverie.testing import ManualClock, drain

if TYPE_CHECKING:
    pass

WEEK_S = 7 * 24 * 3600
AT = "2027-01-15T08:00:00+00:00"
LATER = "2027-01-15T08:00:05+00:00"


@pytest.fixture
def scheduler(scheduler: Scheduler, clock: ManualClock) -> Scheduler:
    @scheduler.handler("work")
    def work(message: Message):
        clock.advance(5)
        return Bury("broken") if message.content == "bad" else None

    return scheduler


def status_of(scheduler: Scheduler, item_id: str):
    return scheduler.observe.tasks.get_task_status(item_id, "ann")


def test_an_item_on_its_way(scheduler: Scheduler) -> None:
    assert status_of(scheduler, "1") is None
    scheduler.submit("work", user_id="ann", item_id="1", mem_cube_id="cube", task_id="t")
    waiting = {
        "status": "waiting",
        "task_type": "work",
        "mem_cube_id": "cube",
        "submitted_at": AT,
        "started_at": None,
        "business_task_id": "t",
    }
    assert status_of(scheduler, "1") == waiting
    drain(scheduler)
    ended = {"status": "completed", "started_at": AT, "completed_at": LATER}
    assert status_of(scheduler, "1") == waiting | ended


def test_an_item_that_fails(scheduler: Scheduler) -> None:
    scheduler.submit("work", user_id="ann", item_id="1", content="bad")
    drain(scheduler)
    status = status_of(scheduler, "1")
    assert (status["status"], status["failed_at"], status["error"]) == ("failed", LATER, "broken")
    assert "completed_at" not in status


def test_items_expire_one_by_one_a_week_after_their_end(scheduler: Scheduler, clock: ManualClock) -> None:
    scheduler.runtime.settings.scheduler.enabled = False  # timed tasks would be counted, too
    scheduler.submit("work", user_id="ann", item_id="1")
    drain(scheduler)
    clock.advance(3600)
    scheduler.submit("work", user_id="ann", item_id="2")
    drain(scheduler)

    def known() -> list[str]:
        drain(scheduler)
        return list(scheduler.observe.tasks.get_all_tasks_for_user("ann"))

    clock.advance(WEEK_S - 3600 - 10)
    assert known() == ["1", "2"]
    clock.advance(10)
    assert known() == ["2"]
    assert scheduler.observe.counts().all_tasks_summary.completed == 1
    clock.advance(3600)
    assert known() == []
    assert scheduler.observe.counts().all_tasks_summary.total == 0


def test_a_business_task_stands_as_its_items_do(scheduler: Scheduler) -> None:
    for item_id in ("1", "2"):
        scheduler.submit("work", user_id="ann", item_id=item_id, task_id="t")
    scheduler.submit("work", user_id="bob", item_id="1", task_id="t")
    assert scheduler.get_task_status_by_business_id("t", "ann") == {
        "status": "in_progress",
        "business_task_id": "t",
        "item_count": 2,
        "item_statuses": {"1": "waiting", "2": "waiting"},
    }
    assert scheduler.get_task_status_by_business_id("other", "ann") is None
    tasks = scheduler.observe.tasks
    assert tasks.get_task_status_by_business_id("t", "ann")["item_count"] == 2


@pytest.mark.parametrize(
    ("items", "task"),
    [
        ("completed completed", "completed"),
        ("completed failed waiting", "failed"),
        ("completed waiting", "in_progress"),
        ("completed in_progress cancelled", "in_progress"),
        ("completed cancelled", "completed"),
        ("cancelled cancelled", "cancelled"),
    ],
)
def test_the_rule_of_business_tasks(items: str, task: str) -> None:
    assert business_status(Status(item) for item in items.split()) == task
