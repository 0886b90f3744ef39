"""Timed tasks over HTTP: pushing a chat, the types, their tasks, and what can be asked of them."""

from __future__ import annotations

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.backends.triggers import Activity
from reverie.errors import BackendUnavailableError
from reverie.message import Key
from reverie.settings import load_settings
from reverie.testing import ManualClock
from reverie.turn import read_turns

TRIGGERS = "/product/scheduler/triggers"
PUSH = "/api/push/chat/message"
TASKS = {
    "memory_compression": {"enabled": True, "interval": 1800},
    "sweep": {"enabled": True, "trigger_mode": "periodic", "interval": 60, "description": "sweeps"},
    "night": {"enabled": False, "trigger_mode": "cron", "cron": "0 3 * * *", "timezone": "Europe/Berlin"},
}


@pytest.fixture
def section() -> dict[str, object]:
    """The section `scheduler` of the settings."""
    return {"tasks": TASKS}


@pytest.fixture
async def scheduler(clock: ManualClock, section):
    settings = load_settings(queue={"url": "memory://"}, scheduler=section)
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    scheduler.handler("memory_compression")(lambda message: None)  # activity touches what a handler serves
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def ask(client: httpx.AsyncClient, method: str, path: str = "", **request) -> tuple[int, str, object]:
    response = await client.request(method, TRIGGERS + path, **request)
    told = response.json()
    assert set(told) - {"detail"} == {"code", "message", "data"}
    assert told["code"] == response.status_code
    return told["code"], told["message"], told["data"]


# -- push --------------------------------------------------------------------------------------------


async def test_a_push_is_kept_for_memory_and_notes_activity(client, scheduler: AsyncScheduler) -> None:
    body = {
        "user_id": "ann",
        "device_id": "phone",
        "agent_id": "tutor",
        "session_id": "s1",
        "messages": [{"role": "user", "content": "I like tea"}, {"role": "assistant", "content": "Good"}],
    }
    told = (await client.post(PUSH, json=body)).json()
    item_id = told.pop("item_id")
    assert told == {"status": "success", "message_status": "accepted", "scheduled": True}
    ((message, _),) = await scheduler.control._find(await _keys(scheduler, "ann"))
    assert (message.item_id, message.label, message.session_id) == (item_id, "add", "s1")
    assert message.info == {"device_id": "phone", "agent_id": "tutor"}
    assert [(turn.role, turn.content) for turn in read_turns(message.content)] == [
        ("user", "I like tea"),
        ("assistant", "Good"),
    ]
    (task,) = await scheduler.triggers.tasks("memory_compression")
    assert (task.user_key, task.status) == ("ann:phone:tutor", "pending")
    again = (await client.post(PUSH, json={**body, "messages": "and milk"})).json()
    assert again["scheduled"] is False


async def _keys(scheduler: AsyncScheduler, user_id: str):
    return [Key(user_id, row.item_id) for row in await scheduler.status(user_id)]


@pytest.mark.parametrize("ids", [{}, {"user_id": "", "device_id": "", "agent_id": None}])
async def test_ids_that_are_missing_become_default(client, scheduler: AsyncScheduler, ids) -> None:
    told = (await client.post(PUSH, json={**ids, "content": "tea", "role": "assistant"})).json()
    assert (told["status"], told["scheduled"]) == ("success", True)
    (task,) = await scheduler.triggers.tasks("memory_compression")
    assert task.user_key == "default:default:default"
    ((message, _),) = await scheduler.control._find(await _keys(scheduler, "default"))
    assert message.info == {"device_id": "default", "agent_id": "default"}
    assert read_turns(message.content)[0].role == "assistant"


@pytest.mark.parametrize("section", [{"enabled": False}])
async def test_a_push_is_kept_also_without_timed_tasks(client, scheduler: AsyncScheduler) -> None:
    told = (await client.post(PUSH, json={"user_id": "ann", "content": "tea"})).json()
    assert (told["status"], told["scheduled"], told["message_status"]) == ("success", False, "accepted")
    assert len(await scheduler.status("ann")) == 1


async def test_the_same_push_again_is_a_duplicate_and_another_a_conflict(client) -> None:
    body = {"user_id": "ann", "item_id": "1", "content": "tea"}
    assert (await client.post(PUSH, json=body)).json()["message_status"] == "accepted"
    assert (await client.post(PUSH, json=body)).json()["message_status"] == "duplicate"
    other = await client.post(PUSH, json={**body, "content": "milk"})
    assert other.status_code == 409
    assert "is taken by another message" in other.json()["message"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 422, "nothing was said"),
        ({"content": ""}, 422, "nothing was said"),
        ({"content": "a", "messages": "b"}, 422, "either messages or content"),
        ({"messages": [{"role": "user"}]}, 422, "content: Field required"),
        ({"content": " "}, 400, "has nothing to remember"),
        ({"content": "a", "user_id": "_system"}, 400, "reserved"),
        ({"content": "a", "user_id": 7}, 422, "body.user_id"),
        ({"content": "a", "device_id": "d" * 513}, 400, "device_id="),
        ({"content": "a", "agent_id": "a\x00b"}, 400, "agent_id="),
    ],
)
async def test_a_bad_push_is_refused_in_words_and_nothing_is_kept(
    client, scheduler: AsyncScheduler, body, code, words
) -> None:
    refused = await client.post(PUSH, json=body)
    assert refused.status_code == refused.json()["code"] == code
    assert words in refused.json()["message"]
    assert await scheduler.status("default") == []
    assert await scheduler.triggers.tasks("memory_compression") == []


async def test_a_message_that_is_kept_is_a_success_even_if_its_activity_is_not_noted(
    client, scheduler: AsyncScheduler, monkeypatch
) -> None:
    async def away(*_):
        raise BackendUnavailableError("it is away")

    monkeypatch.setattr(scheduler.runtime.backend.triggers, "touch", away)
    told = (await client.post(PUSH, json={"content": "tea"})).json()
    assert (told["status"], told["scheduled"], told["not_noted"]) == ("success", False, "it is away")


# -- the types ---------------------------------------------------------------------------------------


async def test_the_types_with_their_statistics(client, scheduler: AsyncScheduler, clock) -> None:
    code, _, types = await ask(client, "GET")
    assert (code, [one["task_type"] for one in types]) == (200, ["memory_compression", "night", "sweep"])
    compression, night, sweep = types
    assert (compression["enabled"], night["enabled"]) == (True, False)
    assert compression["settings"]["interval"] == 1800
    assert compression["settings"]["trigger_mode"] == "user_activity"
    assert night["settings"]["timezone"] == "Europe/Berlin"
    assert (sweep["next_due"], compression["next_due"]) == (clock.now() + 60_000, None)
    assert (sweep["statistics"]["runs"], sweep["workers"]) == (0, 0)


async def test_one_type_and_its_tasks_page_by_page(client, scheduler: AsyncScheduler) -> None:
    for name in "abc":
        await scheduler.schedule_user_task("memory_compression", name)
    code, _, first = await ask(client, "GET", "/memory_compression", params={"limit": 2})
    assert (code, first["task_type"], first["statistics"]["pending"]) == (200, "memory_compression", 3)
    assert [task["user_id"] for task in first["tasks"]] == ["a", "b"]
    for name in ("cursor", "after"):
        params = {"limit": 2, name: first["next"]}
        _, _, last = await ask(client, "GET", "/memory_compression", params=params)
        assert ([task["user_id"] for task in last["tasks"]], last["next"]) == (["c"], None)


async def test_a_page_never_ends_at_the_task_of_nobody(client, scheduler: AsyncScheduler) -> None:
    """A type that activity made run before has tasks of users, too."""
    await scheduler.triggers.types()
    users = [Activity(task_type="sweep", user_key=u, user_id=u, interval_ms=1) for u in ("ann", "bob")]
    assert await scheduler.runtime.backend.triggers.touch(users) == [True, True]
    _, _, page = await ask(client, "GET", "/sweep", params={"limit": 1})
    assert [task["user_id"] for task in page["tasks"]] == [None, "ann"]
    _, _, page = await ask(client, "GET", "/sweep", params={"limit": 1, "cursor": page["next"]})
    assert ([task["user_id"] for task in page["tasks"]], page["next"]) == (["bob"], None)


async def test_run_and_cancel(client, scheduler: AsyncScheduler, clock) -> None:
    ann = {"user_id": "ann", "device_id": "phone", "agent_id": "tutor"}
    assert (await ask(client, "POST", "/memory_compression/run", json=ann))[2] == {
        "task_type": "memory_compression",
        "run": True,
        **ann,
    }
    task = await scheduler.triggers.task("memory_compression", **ann)
    assert task.scheduled_at == clock.now()
    for cancelled in (True, False):
        _, _, told = await ask(client, "POST", "/memory_compression/cancel", json=ann)
        assert told["cancelled"] is cancelled
    assert (await ask(client, "POST", "/sweep/run"))[0] == 200
    assert (await scheduler.triggers.task("sweep")).scheduled_at == clock.now()
    for action in ("run", "cancel"):
        code, message, _ = await ask(client, "POST", f"/memory_compression/{action}")
        assert (code, message) == (400, "user_id='': must not be empty")


async def test_enable_and_disable(client, scheduler: AsyncScheduler) -> None:
    code, message, _ = await ask(client, "POST", "/night/run")
    assert (code, message) == (409, "'night' is disabled: POST …/triggers/night/enable first")
    assert (await ask(client, "POST", "/night/enable"))[2] == {"task_type": "night", "enabled": True}
    assert (await ask(client, "POST", "/night/run"))[0] == 200
    assert (await ask(client, "POST", "/sweep/disable"))[2]["enabled"] is False
    assert (await ask(client, "GET", "/sweep"))[2]["enabled"] is False


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), *(("POST", f"/{do}") for do in ("run", "cancel", "enable", "disable"))]
)
async def test_an_unknown_type_is_not_found(client, method: str, path: str) -> None:
    code, message, _ = await ask(client, method, f"/nothing{path}")
    assert code == 404
    assert "there is no task type 'nothing'" in message
    assert "memory_compression, night, sweep" in message


async def test_bad_pages_and_bodies_are_refused(client) -> None:
    assert (await ask(client, "GET", "/sweep", params={"limit": 0}))[0] == 422
    assert (await ask(client, "GET", "/sweep", params={"limit": 1001}))[0] == 422
    assert (await ask(client, "POST", "/sweep/run", json={"user_id": 7}))[0] == 422
    code, message, _ = await ask(
        client, "POST", "/memory_compression/run", json={"user_id": "ann", "device_id": "d" * 600}
    )
    assert (code, message[:11]) == (400, "device_id='")
    code, message, _ = await ask(client, "POST", "/sweep/run", json={"user_id": "ann"})
    assert (code, message) == (400, "sweep runs for nobody in particular: leave out whose it is")


@pytest.mark.parametrize("section", [{"enabled": False, "tasks": TASKS}])
async def test_without_timed_tasks_the_types_are_shown_and_nothing_runs(client) -> None:
    assert [one["task_type"] for one in (await ask(client, "GET"))[2]] == sorted(TASKS)
    code, message, _ = await ask(client, "POST", "/sweep/run")
    assert (code, message) == (409, "timed tasks are off: scheduler.enabled is false")
