"""Timed tasks from end to end, on every backend, with time moved by hand.

Each test names what schedulers of this kind get wrong; it would fail on one that does.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from reverie import Scheduler, TaskScheduler, get_scheduler, mem_scheduler
from reverie.errors import (
    InvalidMessageError,
    InvalidSelectionError,
    InvalidSettingError,
    UnknownTaskTypeError,
)
from reverie.settings import Settings
from reverie.testing import ManualClock, drain
from support.living import passes, wait_until
from support.servers import RedisClock, delete_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie.observe.events import Event

START = 1_700_000_000_000


@dataclass
class House:
    """Any number of instances on one backend, and their time."""

    queue: dict[str, Any]
    folder: Path
    clocks: list[ManualClock | RedisClock]
    opened: list[Scheduler]

    def instance(self, **scheduler: Any) -> Scheduler:
        settings = Settings(data_dir=self.folder, queue=self.queue, scheduler=scheduler)
        settings.memory.url = f"sqlite:///{self.folder / 'memory.db'}"
        if "sqlite" in self.queue["url"]:
            settings.memory.url = None
        made = Scheduler(settings=settings, clock=self.clocks[0])
        self.opened.append(made)
        return made

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


@contextmanager
def memory(request: pytest.FixtureRequest, folder: Path) -> Iterator[House]:
    yield House({"url": "memory://"}, folder, [ManualClock(START)], [])


@contextmanager
def sqlite(request: pytest.FixtureRequest, folder: Path) -> Iterator[House]:
    url = f"sqlite:///{folder / 'reverie.db'}"
    yield House({"url": url, "durability": "normal"}, folder, [ManualClock(START)], [])


@contextmanager
def redis(request: pytest.FixtureRequest, folder: Path) -> Iterator[House]:
    url, prefix = request.getfixturevalue("redis_url"), f"test-{uuid.uuid4()}"
    clock = RedisClock(url, prefix, START)
    queue = {"url": url, "redis_prefix": prefix, "allow_volatile": True}
    yield House(queue, folder, [ManualClock(START), clock], [])
    clock.close()
    delete_keys(url, prefix)


HOUSES = {"memory": memory, "sqlite": sqlite, "redis": redis}


@contextmanager
def _open(request: pytest.FixtureRequest, folder: Path) -> Iterator[House]:
    with HOUSES[request.param](request, folder) as built:
        try:
            yield built
        finally:
            for scheduler in built.opened:
                scheduler.close()


@pytest.fixture(params=HOUSES)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with _open(request, tmp_path) as built:
        yield built


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """A house that several instances can use."""
    with _open(request, tmp_path) as built:
        yield built


def recording(scheduler: Scheduler, task_type: str = "digest", answers: list[Any] | None = None, **options):
    """Let a type note for whom it ran."""
    ran: list[tuple[str | None, ...]] = []
    left = list(answers or [])

    @scheduler.trigger(task_type, **({"interval": 10} | options))
    def work(user_id, device_id, agent_id):
        ran.append((user_id, device_id, agent_id))
        answer = left.pop(0) if left else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ran


# -- activity ----------------------------------------------------------------------------------------


def test_activity_leads_to_one_run_after_the_interval(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    assert scheduler.schedule_user_task("digest", "ann", "phone", "bot") is True
    assert scheduler.schedule_user_task("digest", "ann", "phone", "bot") is False
    drain(scheduler)
    assert ran == []
    house.advance(10)
    drain(scheduler)
    assert ran == [("ann", "phone", "bot")]
    house.advance(100)
    drain(scheduler)
    assert len(ran) == 1


def test_many_callers_at_once_schedule_one_run(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: scheduler.schedule_user_task("digest", "ann"), range(40)))
    assert sorted(answers) == [False] * 39 + [True]
    house.advance(10)
    drain(scheduler)
    assert len(ran) == 1


def test_all_that_is_due_runs_at_once(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    assert all(scheduler.schedule_user_tasks("digest", [(f"u{n}", None, None) for n in range(60)]))
    house.advance(10)
    drain(scheduler)
    assert {user for user, *_ in ran} == {f"u{n}" for n in range(60)}
    assert len(ran) == 60


def test_activity_during_a_run_leads_to_exactly_one_more(house: House) -> None:
    scheduler = house.instance()
    ran: list[str] = []

    @scheduler.trigger("digest", interval=10)
    async def digest(user_id, device_id, agent_id):
        ran.append(user_id)
        if len(ran) == 1:
            who = [(user_id, device_id, agent_id)] * 3
            assert await scheduler.asynchronous.schedule_user_tasks("digest", who) == [True, False, False]

    scheduler.schedule_user_task("digest", "ann")
    for _ in range(5):
        house.advance(10)
        drain(scheduler)
    assert ran == ["ann", "ann"]


def test_activity_right_after_a_run_is_not_lost(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    scheduler.schedule_user_task("digest", "ann")
    house.advance(10)
    drain(scheduler)
    house.advance(1)
    assert scheduler.schedule_user_task("digest", "ann") is True
    house.advance(9)
    drain(scheduler)
    assert len(ran) == 1, "the interval counts from the activity"
    house.advance(1)
    drain(scheduler)
    assert len(ran) == 2


def test_a_short_memory_of_finished_tasks_does_not_lose_those_that_wait(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, interval=100, task_ttl=1)
    scheduler.schedule_user_task("digest", "ann")
    house.advance(100)
    drain(scheduler)
    assert len(ran) == 1


def test_a_run_can_be_put_off_by_more_activity(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, debounce=True, max_wait=25)
    for _ in range(3):
        scheduler.schedule_user_task("digest", "ann")
        house.advance(8)
        drain(scheduler)
    assert ran == []
    house.advance(1)
    drain(scheduler)
    assert len(ran) == 1, "but not for ever"


def test_users_whose_ids_look_alike_are_apart(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    for who in (("a:b", "c", "d"), ("a", "b:c", "d"), ("global", "d", "a"), ("ü %", "d", "a")):
        assert scheduler.schedule_user_task("digest", *who) is True
    house.advance(10)
    drain(scheduler)
    assert sorted(ran) == sorted(
        [("a:b", "c", "d"), ("a", "b:c", "d"), ("global", "d", "a"), ("ü %", "d", "a")]
    )


def test_a_running_scheduler_fires_by_itself(house: House) -> None:
    scheduler = house.instance()
    ran = threading.Semaphore(0)

    @scheduler.trigger("digest", interval=10)
    def digest(user_id, device_id, agent_id) -> None:
        ran.release()

    with scheduler:
        for _ in range(3):
            scheduler.schedule_user_task("digest", "ann")
            house.advance(10)
            assert ran.acquire(timeout=20)
            wait_until(lambda: scheduler.triggers.task("digest", user_id="ann").status == "completed")

        @scheduler.trigger("later", interval=5)
        async def later(user_id, device_id, agent_id) -> None:
            ran.release()

        scheduler.schedule_user_task("later", "ann")
        house.advance(5)
        assert ran.acquire(timeout=20)


# -- failure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [False, RuntimeError("broken")])
def test_a_failure_is_tried_again(house: House, answer: Any) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, answers=[answer, answer])
    scheduler.schedule_user_task("digest", "ann")
    for _ in range(4):
        house.advance(300)
        drain(scheduler)
    assert len(ran) == 3
    task = scheduler.triggers.task("digest", user_id="ann")
    assert (task.status, task.retry_count) == ("completed", 2)


def test_after_max_retries_it_has_failed_and_can_be_scheduled_again(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, answers=[False] * 3)
    scheduler.schedule_user_task("digest", "ann")
    for _ in range(6):
        house.advance(300)
        drain(scheduler)
    assert len(ran) == 3
    task = scheduler.triggers.task("digest", user_id="ann")
    assert (task.status, task.last_exec) == ("failed", None)
    assert scheduler.control.dead_letters(user_id="ann").rows[0].item_id == task.item_id
    assert scheduler.schedule_user_task("digest", "ann") is True


def test_one_that_fails_does_not_stop_the_others(house: House) -> None:
    scheduler = house.instance()
    recording(scheduler, "bad", [RuntimeError("broken")] * 9, mode="periodic")
    good = recording(scheduler, "good", mode="periodic")
    drain(scheduler)
    for _ in range(3):
        house.advance(10)
        drain(scheduler)
    assert len(good) == 3


def test_an_async_handler_really_runs(house: House) -> None:
    scheduler = house.instance()
    ran = asyncio.Event()

    class Digest:
        async def __call__(self, user_id, device_id, agent_id) -> bool:
            await passes()
            ran.set()
            return True

    scheduler.trigger("digest", interval=10)(Digest())
    scheduler.schedule_user_task("digest", "ann")
    house.advance(10)
    drain(scheduler)
    assert ran.is_set()


def test_a_run_that_takes_too_long_is_ended(house: House) -> None:
    scheduler = house.instance()
    ended: list[str] = []

    @scheduler.trigger("digest", interval=10, timeout=0.05, max_retries=1)
    async def digest(user_id, device_id, agent_id) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(user_id)
            raise

    scheduler.schedule_user_task("digest", "ann")
    house.advance(10)
    drain(scheduler)
    assert ended == ["ann"]
    assert scheduler.triggers.task("digest", user_id="ann").status == "failed"


def test_a_task_whose_worker_died_is_handed_on(shared: House) -> None:
    first, second = shared.instance(), shared.instance()
    recording(first)
    ran = recording(second)
    first.schedule_user_task("digest", "ann")
    shared.advance(10)
    first.run(first.runtime.triggers.clock.fire_due())
    request = first.runtime.worker.request()
    assert len(first.run(first.runtime.backend.queue.claim(request))) == 1  # and then it is killed
    drain(second)
    assert ran == []
    shared.advance(31)
    drain(second)
    assert len(ran) == 1
    assert second.triggers.task("digest", user_id="ann").status == "completed"


# -- tasks that belong to no user --------------------------------------------------------------------


def test_nothing_fires_at_the_first_start(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, "tick", mode="periodic")
    drain(scheduler)
    house.advance(9)
    drain(scheduler)
    assert ran == []
    house.advance(1)
    drain(scheduler)
    assert ran == [(None, None, None)]


def test_two_instances_run_each_due_time_once(shared: House) -> None:
    one, two = shared.instance(), shared.instance()
    ran = [recording(one, "tick", mode="periodic"), recording(two, "tick", mode="periodic")]
    drain(one)
    drain(two)
    for n in range(1, 11):
        shared.advance(10)
        threads = [threading.Thread(target=drain, args=(s,)) for s in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(map(len, ran)) == n


def test_an_instance_without_a_handler_uses_nothing_up(shared: House) -> None:
    idle, busy = shared.instance(), shared.instance()
    ran = recording(busy, "tick", mode="periodic")
    idle.runtime.triggers.define("tick", busy.runtime.triggers.types.get("tick"))
    drain(busy)
    idle.triggers.types()
    shared.advance(10)
    drain(idle)
    assert ran == []
    drain(busy)
    assert len(ran) == 1


def test_a_run_that_failed_is_not_counted_as_done(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, "tick", [False], mode="periodic", interval=1000)
    drain(scheduler)
    house.advance(1000)
    drain(scheduler)
    assert scheduler.triggers.task("tick").status == "running"
    house.advance(5)
    drain(scheduler)
    assert len(ran) == 2
    assert scheduler.triggers.task("tick").last_exec == START + 1_005_000


def test_what_runs_for_nobody_is_run_for_nobody(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler, "tick", mode="periodic")
    with pytest.raises(InvalidSelectionError, match="tick runs for nobody in particular"):
        scheduler.triggers.run("tick", user_id="ann")
    assert scheduler.triggers.run("tick") is True
    drain(scheduler)
    assert ran == [(None, None, None)]
    assert [task.user_key for task in scheduler.triggers.tasks("tick")] == [""]


def test_no_client_can_name_the_system_tenant(house: House) -> None:
    scheduler = house.instance()
    recording(scheduler, "tick", mode="periodic")
    with pytest.raises(InvalidMessageError, match="reserved"):
        scheduler.submit("tick", user_id="_system")
    recording(scheduler)
    with pytest.raises(InvalidMessageError, match="reserved"):
        scheduler.schedule_user_task("digest", "_system")


# -- types -------------------------------------------------------------------------------------------


def test_what_cannot_be_scheduled_answers_false(house: House) -> None:
    scheduler = house.instance()
    recording(scheduler, "tick", mode="periodic")
    assert scheduler.schedule_user_task("unknown", "ann") is False
    assert scheduler.schedule_user_task("tick", "ann") is False
    assert scheduler.schedule_user_task("embedding_refresh", "ann") is False, "it is disabled"
    assert house.instance(enabled=False).schedule_user_task("memory_compression", "ann") is False


def test_a_type_of_three_keys_works(house: House) -> None:
    tasks = {"my_new_task": {"enabled": True, "trigger_mode": "user_activity", "interval": 600}}
    scheduler = house.instance(tasks=tasks)
    ran: list[str] = []
    TaskScheduler(scheduler).register_handler(
        "my_new_task", lambda user_id, device_id, agent_id: ran.append(user_id)
    )
    assert scheduler.schedule_user_task("my_new_task", "ann") is True
    house.advance(600)
    drain(scheduler)
    assert ran == ["ann"]


def test_a_type_that_a_newer_configuration_leaves_out_is_off(shared: House) -> None:
    old = shared.instance(version=1, tasks={"old": {"enabled": True, "interval": 10}})
    ran: list[str] = []
    TaskScheduler(old).register_handler("old", lambda user_id, device_id, agent_id: ran.append(user_id))
    old.schedule_user_task("old", "ann")
    new = shared.instance(version=2, tasks={"new": {"enabled": True}})
    assert {known.name: known.enabled for known in new.triggers.types()} == {"new": True, "old": False}
    shared.advance(10)
    drain(old)
    assert ran == []
    assert (
        shared.instance(version=1, tasks={"old": {"enabled": True}}).schedule_user_task("old", "bob") is False
    )


def test_the_ids_that_tell_users_apart_do_not_change_under_tasks_that_wait(shared: House) -> None:
    three = shared.instance()
    recording(three)
    three.schedule_user_task("digest", "ann")
    two = shared.instance(version=1, user_key_config={"use_agent_id": False})
    recording(two)
    with pytest.raises(
        InvalidSettingError, match="1 tasks of digest wait under keys of user_id:device_id:agent_id"
    ):
        two.schedule_user_task("digest", "bob")
    shared.advance(10)
    drain(three)
    assert two.schedule_user_task("digest", "bob") is True


def test_a_person_can_run_cancel_disable_and_enable(house: House) -> None:
    scheduler = house.instance()
    ran = recording(scheduler)
    triggers = scheduler.triggers
    assert triggers.run("digest", user_id="ann") is True
    drain(scheduler)
    assert len(ran) == 1
    scheduler.schedule_user_task("digest", "ann")
    assert triggers.cancel("digest", user_id="ann") is True
    assert triggers.cancel("digest", user_id="ann") is False
    triggers.disable("digest")
    assert scheduler.schedule_user_task("digest", "ann") is False
    triggers.enable("digest")
    assert scheduler.schedule_user_task("digest", "ann") is True
    for ask in (triggers.task, triggers.run, triggers.enable):
        with pytest.raises(UnknownTaskTypeError, match="there is no task type 'unknown'"):
            ask("unknown")


# -- pulling -----------------------------------------------------------------------------------------


PULLED = {"pulled": {"enabled": True, "interval": 10, "timeout": 60, "max_retries": 2}}


def test_a_task_can_be_done_without_a_handler(house: House) -> None:
    tasks = TaskScheduler(house.instance(tasks=PULLED))
    tasks.schedule_user_task("pulled", "ann", "phone", "bot")
    assert tasks.get_pending_task("pulled") is None
    house.advance(10)
    task = tasks.get_pending_task("pulled")
    assert task is not None
    token = task.pop("lock_token")
    assert task == {
        "task_type": "pulled",
        "user_key": "ann:phone:bot",
        "user_id": "ann",
        "device_id": "phone",
        "agent_id": "bot",
    }
    assert tasks.get_pending_task("pulled") is None
    assert tasks.complete_task("pulled", "ann:phone:bot", "another") is False
    assert tasks.complete_task("pulled", "ann:phone:bot", token) is True
    assert tasks.complete_task("pulled", "ann:phone:bot", token) is False
    (state,) = tasks.list_tasks("pulled")
    assert state.status == "completed"


def test_who_comes_too_late_completes_nothing(house: House) -> None:
    tasks = TaskScheduler(house.instance(tasks=PULLED))
    tasks.schedule_user_task("pulled", "ann")
    house.advance(10)
    first = tasks.get_pending_task("pulled")
    house.advance(61)
    drain(tasks._scheduler)
    second = tasks.get_pending_task("pulled")
    assert first is not None
    assert second is not None
    assert tasks.complete_task("pulled", first["user_key"], first["lock_token"]) is False
    assert tasks.complete_task("pulled", second["user_key"], second["lock_token"], success=False) is True
    assert tasks.list_tasks("pulled")[0].status == "running", "it is tried again"
    house.advance(300)
    drain(tasks._scheduler)
    third = tasks.get_pending_task("pulled")
    assert third is not None
    assert tasks.complete_task("pulled", third["user_key"], third["lock_token"], success=False) is True
    assert tasks.list_tasks("pulled")[0].status == "failed"


def pull(tasks: TaskScheduler) -> dict[str, Any]:
    task = tasks.get_pending_task("pulled")
    assert task is not None
    return task


def test_a_pulled_task_that_is_not_completed_comes_back_without_a_worker(house: House) -> None:
    tasks = TaskScheduler(house.instance(tasks=PULLED))
    tasks.schedule_user_task("pulled", "ann")
    house.advance(10)
    first = pull(tasks)
    house.advance(59)
    assert tasks.get_pending_task("pulled") is None, "its timeout is not over"
    house.advance(1)
    second = pull(tasks)
    assert second["user_key"] == first["user_key"]
    assert tasks.complete_task("pulled", first["user_key"], first["lock_token"]) is False
    assert tasks.complete_task("pulled", second["user_key"], second["lock_token"], success=False) is True
    house.advance(300)
    third = pull(tasks)
    assert tasks.complete_task("pulled", third["user_key"], third["lock_token"]) is True
    assert tasks.list_tasks("pulled")[0].status == "completed"


def test_any_instance_completes_what_another_pulled(shared: House) -> None:
    first, second = (TaskScheduler(shared.instance(tasks=PULLED)) for _ in range(2))
    first.schedule_user_tasks("pulled", [("ann", None, None), ("bob", None, None)])
    shared.advance(10)
    tokens = {(task := pull(first))["user_key"]: task["lock_token"] for _ in range(2)}
    ann, bob = sorted(tokens)
    assert second.complete_task("pulled", ann, tokens[bob]) is False
    assert second.complete_task("pulled", ann, tokens[ann]) is True
    assert second.complete_task("pulled", bob) is True, "who holds it is known where the queue is"
    assert second.complete_task("pulled", bob) is False
    assert first.complete_task("pulled", bob, tokens[bob]) is False
    assert {task.status for task in second.list_tasks("pulled")} == {"completed"}


def test_what_a_worker_runs_is_not_completed_without_a_token(house: House) -> None:
    scheduler = house.instance(tasks=PULLED)
    tasks, answers = TaskScheduler(scheduler), []

    def handler(user_id, device_id, agent_id) -> None:
        answers.append(tasks.complete_task("pulled", "ann:default:default"))

    tasks.register_handler("pulled", handler)
    tasks.schedule_user_task("pulled", "ann")
    house.advance(10)
    drain(scheduler)
    assert answers == [False]
    assert tasks.list_tasks("pulled")[0].status == "completed"


def test_pulled_tasks_have_the_events_of_messages(house: House) -> None:
    scheduler = house.instance(tasks=PULLED)
    tasks = TaskScheduler(scheduler)
    seen: list[Event] = []
    scheduler.runtime.bus.subscribe(seen.extend)
    tasks.schedule_user_task("pulled", "ann")
    house.advance(10)
    token = pull(tasks)["lock_token"]
    house.advance(2)
    tasks.complete_task("pulled", "ann:default:default", token)
    scheduler.runtime.bus.flush(5)
    assert [(event.event, event.status) for event in seen] == [
        ("enqueue", "waiting"),
        ("dequeue", "in_progress"),
        ("start", "in_progress"),
        ("finish", "completed"),
    ]
    assert [event.queue_wait_ms for event in seen[1:3]] == [0, 0]
    assert (seen[3].exec_duration_ms, seen[3].total_duration_ms) == (2000, 2000)


def test_messages_that_triggers_fire_have_the_enqueue_event(house: House) -> None:
    scheduler = house.instance()
    recording(scheduler)
    recording(scheduler, "tick", mode="periodic")
    seen: list[Event] = []
    scheduler.runtime.bus.subscribe(seen.extend)
    scheduler.schedule_user_task("digest", "ann")
    drain(scheduler)
    house.advance(10)
    drain(scheduler)
    scheduler.runtime.bus.flush(5)
    for label in ("digest", "tick"):
        told = [event.event for event in seen if event.label == label]
        assert told == ["enqueue", "dequeue", "start", "finish"]


def test_what_has_a_handler_is_not_pulled(house: House) -> None:
    scheduler = house.instance(tasks=PULLED)
    tasks = TaskScheduler(scheduler)
    tasks.register_handler("pulled", lambda user_id, device_id, agent_id: True)
    tasks.schedule_user_task("pulled", "ann")
    house.advance(10)
    assert tasks.get_pending_task("pulled") is None
    drain(scheduler)
    assert tasks.list_tasks("pulled")[0].status == "completed"


# -- the loop ----------------------------------------------------------------------------------------


async def started(tasks: TaskScheduler) -> asyncio.Task[None]:
    """A `start` under way whose worker runs."""
    running = asyncio.create_task(tasks.start())
    await asyncio.to_thread(wait_until, lambda: tasks._scheduler.runtime.does("work"))
    assert not running.done(), "it is the loop itself"
    return running


async def test_start_is_the_loop_until_a_plain_stop(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    running = await started(tasks)
    tasks.stop()
    async with asyncio.timeout(20):
        await running
    assert not tasks._scheduler.runtime.does("work")


async def test_a_stop_may_be_awaited_and_comes_again(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    await tasks.stop()
    for _ in range(2):
        running = await started(tasks)
        await tasks.stop()
        assert not tasks._scheduler.runtime.does("work")
        async with asyncio.timeout(20):
            await running


async def test_a_stop_from_another_thread_waits_for_the_end(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    running = await started(tasks)

    def stop() -> bool:
        tasks.stop()
        return tasks._scheduler.runtime.does("work")

    assert await asyncio.to_thread(stop) is False
    async with asyncio.timeout(20):
        await running


async def test_a_start_that_is_cancelled_stops(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    running = await started(tasks)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not tasks._scheduler.runtime.does("work")


async def test_a_stop_before_the_start_has_begun_is_no_deadlock(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    running = asyncio.create_task(tasks.start())
    await passes()
    await tasks.stop()
    async with asyncio.timeout(20):
        await running
    assert not tasks._scheduler.runtime.does("work")


def test_a_task_scheduler_takes_a_cache_and_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv("REVERIE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("REVERIE_QUEUE__ALLOW_VOLATILE", "true")
    monkeypatch.setenv("REVERIE_QUEUE__REDIS_PREFIX", prefix := f"test-{uuid.uuid4()}")
    assert TaskScheduler(redis_cache=None, config=None)._scheduler is mem_scheduler
    config = {"check_interval": 1, "user_key_config": {"use_agent_id": False}, "tasks": PULLED}
    for cache in (f"sqlite:///{tmp_path / 'queue.db'}", redis_url):
        tasks = TaskScheduler(cache, config)
        assert tasks.schedule_user_task("pulled", "ann", "phone") is True
        assert [task.user_key for task in tasks.list_tasks("pulled")] == ["ann:phone"]
        assert tasks._scheduler.runtime.settings.queue_url == cache
        tasks._scheduler.close()
    delete_keys(redis_url, prefix)


def test_a_cache_or_config_that_means_nothing_is_refused(house: House) -> None:
    with pytest.raises(InvalidSettingError, match="must be a Scheduler, or the URL of a queue"):
        TaskScheduler(object())
    with pytest.raises(InvalidSettingError, match="has its settings already"):
        TaskScheduler(house.instance(), {"tasks": PULLED})
    with pytest.raises(InvalidSettingError, match=r"scheduler\.check_interval"):
        TaskScheduler(config={"check_interval": -1})


def test_the_process_has_one_scheduler_of_timed_tasks() -> None:
    assert get_scheduler() is get_scheduler()


def test_handlers_that_cannot_be_called_are_refused(house: House) -> None:
    tasks = TaskScheduler(house.instance())
    with pytest.raises(InvalidSettingError, match="must take user_id, device_id and agent_id"):
        tasks.register_handler("memory_compression", lambda user_id: True)
