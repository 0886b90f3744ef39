"""A new memory from outside is a user's activity: it touches the triggers that a handler serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler, Done, Message, Scheduler, Turn
from reverie.backends.moves import Submitted
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings
from reverie.testing import ManualClock
from reverie.triggers import activity
from support.living import wait_until
from support.places import sqlite

if TYPE_CHECKING:
    from pathlib import Path

TASKS = {
    "served": {"enabled": True, "interval": 60},
    "unserved": {"enabled": True, "interval": 60},
    "disabled": {"enabled": False, "interval": 60},
    "periodic": {"enabled": True, "trigger_mode": "periodic", "interval": 60},
}


@pytest.fixture(params=["memory", "sqlite"])
async def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": url, "durability": "normal"}, data_dir=tmp_path, scheduler={"tasks": TASKS}
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    for name in ("served", "disabled", "periodic"):
        scheduler.handler(name)(lambda message: None)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def noted(scheduler: AsyncScheduler) -> dict[str, list[str]]:
    """The user keys that each activity type has scheduled."""
    await scheduler.runtime.activity.flush()
    found = {}
    for name in ("served", "unserved", "disabled"):
        found[name] = [task.user_key for task in await scheduler.triggers.tasks(name)]
    return {name: keys for name, keys in found.items() if keys}


async def test_an_add_from_python_touches_what_a_handler_serves(scheduler: AsyncScheduler) -> None:
    info = {"device_id": "phone", "agent_id": "tutor"}
    await scheduler.memory.add([Turn(content="tea")], user_id="ann", info=info)
    await scheduler.memory.add("milk", user_id="bob")
    assert await noted(scheduler) == {"served": ["ann:phone:tutor", "bob:default:default"]}


async def test_other_labels_and_known_ids_are_no_activity(scheduler: AsyncScheduler) -> None:
    await scheduler.submit("note", user_id="ann")
    assert await noted(scheduler) == {}
    await scheduler.memory.add("tea", user_id="ann", item_id="1")
    await scheduler.triggers.cancel("served", user_id="ann")
    scheduler.runtime.activity._noted.clear()
    assert (await scheduler.memory.add("tea", user_id="ann", item_id="1")).status == "duplicate"
    await scheduler.runtime.activity.flush()
    await scheduler.triggers.cancel("served", user_id="ann")
    assert await noted(scheduler) == {}


async def test_a_user_is_noted_at_most_once_a_second(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[list[str]] = []
    original = scheduler.runtime.triggers.touch

    async def touch(whose):
        touched.append([who["user_id"] for who in whose])
        return await original(whose)

    monkeypatch.setattr(scheduler.runtime.triggers, "touch", touch)
    notes = scheduler.runtime.activity
    for moment in (100.0, 100.5, 100.9, 101.1):
        monkeypatch.setattr(activity, "_now", lambda moment=moment: moment)
        await scheduler.memory.add("tea", user_id="ann")
        await notes.flush()
    assert touched == [["ann"], ["ann"]]


async def test_what_comes_as_the_last_note_ends_is_noted(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may note something after the task has looked for the last time, and before it has ended."""
    touched: list[str] = []
    second = asyncio.Event()

    async def touch(whose):
        touched.extend(who["user_id"] for who in whose)
        if "bob" in touched:
            second.set()
        return [False] * len(whose)

    runtime = scheduler.runtime
    original = runtime.activity._note_waiting

    async def note_waiting() -> None:
        await original()
        if "bob" not in touched:
            message = Message(user_id="bob", label="add")
            runtime.activity.note([message], [Submitted(message.item_id, "accepted")])

    monkeypatch.setattr(runtime.triggers, "touch", touch)
    monkeypatch.setattr(runtime.activity, "_note_waiting", note_waiting)
    await scheduler.memory.add("tea", user_id="ann")
    async with asyncio.timeout(10):
        await second.wait()
    assert touched == ["ann", "bob"]


async def test_nothing_is_noted_once_triggers_are_switched_off(scheduler: AsyncScheduler) -> None:
    await scheduler.memory.add("tea", user_id="ann")
    assert await noted(scheduler) == {"served": ["ann:default:default"]}
    scheduler.runtime.triggers.reload(load_settings(scheduler={"enabled": False, "tasks": TASKS}).scheduler)
    await scheduler.memory.add("milk", user_id="bob")
    assert await noted(scheduler) == {"served": ["ann:default:default"]}


async def test_follow_ups_and_fired_messages_are_no_activity(scheduler: AsyncScheduler) -> None:
    @scheduler.handler("work")
    def work(message: Message) -> Done:
        return Done(follow_ups=[Message(user_id="ann", label="add", content='[{"content": "tea"}]')])

    await scheduler.submit("work", user_id="ann")
    await scheduler.runtime.drain()
    assert len(await scheduler.memory.search("tea", user_id="ann")) == 1
    assert await noted(scheduler) == {}


async def test_what_goes_wrong_with_noting_does_not_touch_the_message(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    async def touch(activities):
        raise BackendUnavailableError("away")

    monkeypatch.setattr(scheduler.runtime.backend.triggers, "touch", touch)
    assert (await scheduler.memory.add("tea", user_id="ann")).status == "accepted"
    await scheduler.runtime.activity.flush()
    assert "activity.not_noted" in caplog.text


def test_a_thread_that_submits_directly_notes_before_the_scheduler_is_closed(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'q.db'}"}, scheduler={"tasks": TASKS})
    scheduler = Scheduler(settings=settings, clock=clock)
    scheduler.handler("served")(lambda message: None)
    with scheduler.used():
        scheduler.open()
        scheduler.memory.add("tea", user_id="ann")
    with scheduler.used():
        assert [task.user_key for task in scheduler.triggers.tasks("served")] == ["ann:default:default"]


def test_the_shell_and_the_spool_note_activity_of_what_a_live_worker_serves(tmp_path: Path) -> None:
    with sqlite(tmp_path) as place:
        settings = place.settings().model_copy(update={"labels": {}})
        scheduler = Scheduler(settings=settings)
        scheduler.handler("memory_compression")(lambda message: None)
        with scheduler:
            place.command("add", "tea", "--user", "ann")
            scheduler.runtime.spool.write(
                {"user_id": "bob", "label": "add", "content": '[{"content": "milk"}]'}
            )
            wait_until(lambda: len(scheduler.triggers.tasks("memory_compression")) == 2)
            keys = [task.user_key for task in scheduler.triggers.tasks("memory_compression")]
    assert keys == ["ann:default:default", "bob:default:default"]
