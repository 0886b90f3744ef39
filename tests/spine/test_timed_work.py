"""The timed tasks' work as functions: they submit it, wait for it, and say whether it has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie import (
    AsyncScheduler,
    Done,
    Message,
    Scheduler,
    TaskScheduler,
    create_cleanup_handler,
    create_compression_handler,
)
from reverie.backends.moves import Status
from reverie.effect import Remember
from reverie.handlers import memory_compression
from reverie.settings import load_settings
from reverie.testing import drain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie.testing import ManualClock

WEEK_S = 7 * 24 * 3600
without_triggers = pytest.mark.parametrize("scheduler", ["no triggers"], indirect=True)


@pytest.fixture(params=["triggers"])
def scheduler(request, tmp_path: Path, clock: ManualClock) -> Iterator[Scheduler]:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}"},
        memory={"embedding": "none"},
        upkeep={"enabled": False},
        scheduler={"enabled": request.param == "triggers"},
        labels={"memory_compression": {"max_attempts": 1}},
    )
    scheduler = Scheduler(settings=settings, clock=clock)
    yield scheduler
    scheduler.close()


def say_twice(scheduler: Scheduler, cube: str, what: str = "I like tea") -> None:
    info = {"device_id": "phone", "agent_id": "tutor"}
    for text in (what, f"{what}!"):
        scheduler.memory.add(text, user_id="ann", mem_cube_id=cube, info=info)


def living(scheduler: Scheduler, cube: str) -> int:
    return len(scheduler.memory.page(user_id="ann", mem_cube_id=cube).items)


def compressions(scheduler: Scheduler) -> list[tuple[str, str]]:
    return sorted(
        (item.mem_cube_id, item.status.value)
        for item in scheduler.status("ann")
        if item.task_type == "memory_compression"
    )


def test_a_users_trigger_compresses_each_changed_cube_once(scheduler, clock) -> None:
    for cube in ("ann", "work"):
        say_twice(scheduler, cube)
    drain(scheduler)
    clock.advance(1800)
    drain(scheduler)
    done = [("ann", "completed"), ("ann", "completed"), ("work", "completed")]  # the first is the trigger's
    assert compressions(scheduler) == done
    assert (living(scheduler, "ann"), living(scheduler, "work")) == (1, 1)
    for what in ("trains", "ships"):  # what the first pass has merged is looked at once more
        before = compressions(scheduler)
        clock.advance(24 * 3600)
        say_twice(scheduler, "work", f"I like {what}")
        scheduler.schedule_user_task("memory_compression", "ann", "phone", "tutor")
        drain(scheduler)
        clock.advance(1800)
        drain(scheduler)
    assert compressions(scheduler) == sorted([*before, ("ann", "completed"), ("work", "completed")])
    assert living(scheduler, "work") == 3


@without_triggers
def test_compression_after_a_missed_week_processes_the_whole_week(scheduler, clock) -> None:
    with scheduler:
        assert scheduler.periodic_memory_compression_for_user("ann", None, None, 1800)
        assert compressions(scheduler) == []  # nobody has said anything
        for day in range(7):
            say_twice(scheduler, "ann", f"I like number {day}")
            scheduler.observe.wait_idle("ann")
            clock.advance(WEEK_S / 7)
        assert living(scheduler, "ann") == 14
        assert scheduler.periodic_memory_compression_for_user("ann", "phone", "tutor", interval_seconds=60)
        assert living(scheduler, "ann") == 7
        assert len(compressions(scheduler)) == 1


@without_triggers
def test_cleaning_up_removes_what_is_expired_of_all_users(scheduler, clock) -> None:
    @scheduler.handler("keep")
    def keep(message: Message) -> Done:
        return Done(effects=[Remember(memory_id="m", text="tea", expires_at=clock.now() + 1000)])

    with scheduler:
        receipts = [scheduler.submit("keep", user_id=user) for user in ("ann", "bob")]
        for receipt, user in zip(receipts, ("ann", "bob"), strict=True):
            scheduler.wait(receipt.item_id, user_id=user)
        assert create_cleanup_handler(scheduler)(None, None, None) is True
        assert scheduler.memory.page(user_id="bob").items
        clock.advance(1)
        assert create_cleanup_handler(scheduler)(None, None, None) is True
        assert not scheduler.memory.page(user_id="bob").items
        assert not scheduler.memory.page(user_id="ann").items


def test_handlers_of_the_factories_wait_in_no_worker(scheduler, clock) -> None:
    tasks = TaskScheduler(scheduler)
    tasks.register_handler("memory_compression", create_compression_handler(scheduler))
    tasks.register_handler("data_cleanup", create_cleanup_handler(scheduler))
    assert scheduler.runtime.own_handlers == []  # the built-in ones do it
    say_twice(scheduler, "ann")
    drain(scheduler)
    clock.advance(1800)
    drain(scheduler)
    assert living(scheduler, "ann") == 1


@without_triggers
def test_work_that_fails_is_no_success(scheduler, monkeypatch) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(memory_compression, "run_pass", fail)
    compress = create_compression_handler(scheduler)
    with scheduler:
        say_twice(scheduler, "ann")
        scheduler.observe.wait_idle("ann")
        assert compress("ann", "phone", "tutor") is False
        (item,) = [item for item in scheduler.status("ann") if item.task_type == "memory_compression"]
        assert item.status is Status.FAILED


def test_other_objects_will_do_and_may_fail() -> None:
    called = []

    class Merger:
        def periodic_memory_compression_for_user(self, **fields: object) -> None:
            called.append(fields)
            if fields["user_id"] is None:
                raise ValueError("no")

    compress = create_compression_handler(Merger())
    assert (compress("ann", "phone", "tutor"), compress(None, None, None)) == (True, False)
    assert called[0] == {
        "user_id": "ann", "device_id": "phone", "agent_id": "tutor", "interval_seconds": 1800,
    }  # fmt: skip


async def test_an_async_scheduler_gives_async_handlers(tmp_path, clock) -> None:
    settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, memory={"embedding": "none"})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    assert await create_cleanup_handler(scheduler)(None, None, None) is True
    assert await create_compression_handler(scheduler)("ann", None, None) is True
    await scheduler.stop()
