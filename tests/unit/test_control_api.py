"""Control of the queue over HTTP: dead letters, cancel, labels and events; which role may submit a label."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reverie import AsyncScheduler, Bury
from reverie.backends.views import StatusQuery
from reverie.failures import InvalidWorkError
from reverie.observe.events import Event, EventName
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE = "/product/scheduler"


@pytest.fixture
async def scheduler(clock) -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(
        queue={"url": "memory://"}, memory={"embedding": "none"}, labels={"wipe": {"role": "service"}}
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)

    @scheduler.handler("export", role="admin")
    def export(message: Any) -> Bury:
        return Bury("the printer is on fire")

    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def data_of(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def test_dead_letters_are_listed_read_requeued_and_deleted(client, scheduler: AsyncScheduler) -> None:
    for number in range(3):
        await scheduler.submit("export", user_id="ann", item_id=f"e{number}", content={"doc": number})
    await scheduler.submit("export", user_id="bob", item_id="b")
    await scheduler.runtime.drain()
    letters = f"{QUEUE}/dead_letters"
    first = await data_of(await client.get(letters, params={"user_id": "ann", "limit": 2}))
    rest = await data_of(await client.get(letters, params={"user_id": "ann", "cursor": first["next"]}))
    assert [row["item_id"] for row in first["items"] + rest["items"]] == ["e0", "e1", "e2"]
    assert rest["next"] is None
    refused = await client.get(letters, params={"cursor": "x"})
    assert refused.json()["message"] == "cursor='x': give the `next` of the page before"
    everyone = await data_of(await client.get(letters))
    assert {row["user_id"] for row in everyone["items"]} == {"ann", "bob"}
    letter = await data_of(await client.get(f"{letters}/e1", params={"user_id": "ann"}))
    assert (letter["error"], letter["message"]["content"]) == ("the printer is on fire", '{"doc":1}')
    assert [run["outcome"] for run in letter["history"]] == ["failed"]
    assert (await client.get(f"{letters}/e1", params={"user_id": "bob"})).status_code == 404
    which = {"user_id": "ann", "item_ids": ["e0", "nothing"]}
    changed = await data_of(await client.post(f"{letters}/requeue", json=which))
    assert changed == {"changed": [{"user_id": "ann", "item_id": "e0"}], "requested": [], "more": False}
    assert [row.status for row in await scheduler.status("ann")] == ["waiting", "failed", "failed"]
    deleted = await data_of(
        await client.post(f"{letters}/delete", json={"user_id": "ann", "label": "export", "limit": 1})
    )
    assert (len(deleted["changed"]), deleted["more"]) == (1, True)
    for body in ({}, {"item_ids": ["e0"]}):
        assert (await client.post(f"{letters}/delete", json=body)).status_code == 400


async def test_cancel_and_labels(client, scheduler: AsyncScheduler) -> None:
    for label in ("a", "b", "c"):
        await scheduler.submit(label, user_id="ann", item_id=label)
    changed = await data_of(await client.post(f"{QUEUE}/cancel", json={"user_id": "ann", "label": "a"}))
    assert changed["changed"] == [{"user_id": "ann", "item_id": "a"}]
    paused = await data_of(await client.post(f"{QUEUE}/labels/b/pause", json={"reason": "the disk is full"}))
    assert paused == {"label": "b", "paused": "the disk is full"}
    pages, cursor = [], ""
    while cursor is not None:
        page = await data_of(await client.get(f"{QUEUE}/labels", params={"limit": 2, "cursor": cursor}))
        pages.append({state["label"]: state["paused"] for state in page["labels"]})
        cursor = page["next"]
    assert {label: why for page in pages for label, why in page.items() if label in "abc"} == {
        "a": None,
        "b": "the disk is full",
        "c": None,
    }
    assert len(pages[0]) == 2
    await data_of(await client.post(f"{QUEUE}/labels/b/resume"))
    assert all(state.paused is None for state in await scheduler.control.labels())


# -- events ----------------------------------------------------------------------------------------------


async def listens(scheduler: AsyncScheduler) -> None:
    """Wait until somebody listens."""
    while not scheduler.runtime.bus.active:  # noqa: ASYNC110  the bus tells nobody
        await asyncio.sleep(0)


async def heard(scheduler: AsyncScheduler, client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """The events that a caller hears while messages of two users are submitted and cancelled."""
    listening = asyncio.create_task(client.get(f"{QUEUE}/events", params=query))
    await listens(scheduler)
    for user_id, cube in (("bob", "bob"), ("ann", "vault"), ("ann", "ann")):
        await scheduler.submit("import", user_id=user_id, mem_cube_id=cube, item_id=f"{user_id}-{cube}")
    response = await listening
    assert response.status_code == 200
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    first, *events = map(json.loads, lines)
    assert first == {"event": "listening"}
    return events


@pytest.mark.parametrize(
    ("key", "count", "items"),
    [
        (None, 3, ["bob-bob", "ann-vault", "ann-ann"]),
        ({"role": "read-only", "users": ["ann"]}, 2, ["ann-vault", "ann-ann"]),
        ({"role": "user", "users": ["ann"], "cubes": ["ann"]}, 1, ["ann-ann"]),
        ({"role": "service", "users": ["bob"]}, 1, ["bob-bob"]),
    ],
)
async def test_a_caller_hears_of_the_work_of_its_own_users(scheduler, key, count, items) -> None:
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        if key is not None:
            client.headers["authorization"] = (await scheduler.keys.create("k", **key)).token
        events = await heard(scheduler, client, count=count)
    assert [(event["event"], event["item_id"]) for event in events] == [("enqueue", item) for item in items]


async def test_a_caller_chooses_among_events(client, scheduler: AsyncScheduler) -> None:
    events = await heard(scheduler, client, user_id="ann", item_id="ann-ann", label="import", count=1)
    assert [event["item_id"] for event in events] == ["ann-ann"]
    assert (await client.get(f"{QUEUE}/events", params={"event": "nothing"})).status_code == 422


@pytest.mark.parametrize(("users", "first"), [(["ann"], "enqueue"), (None, "alert")])
async def test_alerts_are_heard_by_callers_for_all_users_alone(scheduler, users, first: str) -> None:
    made = await scheduler.keys.create("k", "service", users=users)
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        listening = asyncio.create_task(client.get(f"{QUEUE}/events", params={"count": 1}))
        await listens(scheduler)
        scheduler.runtime.bus.publish([Event(EventName.ALERT, 0, error="the disk is full")])
        await scheduler.submit("import", user_id="ann", item_id="own")
        assert f'"event":"{first}"' in (await listening).text


@pytest.mark.parametrize("path", ["events", "wait/stream"])
@pytest.mark.parametrize("change", ["revoke", "rotate"])
async def test_a_stream_ends_with_its_key(scheduler, monkeypatch, path: str, change: str) -> None:
    monkeypatch.setattr("reverie.api.streams.RECHECK_S", 0.01)
    await scheduler.submit("import", user_id="ann")
    made = await scheduler.keys.create("k", "user", users=["ann"])
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        query = {"user_name": "ann", "timeout_seconds": 600}
        streaming = asyncio.create_task(client.get(f"{QUEUE}/{path}", params=query))
        await asyncio.wait({streaming}, timeout=0.05)
        assert not streaming.done()
        await getattr(scheduler.keys, change)(made.key.id)
        last = (await streaming).text.strip().split("\n\n")[-1]
    assert last.startswith('event: error\ndata: {"code":401,')


@pytest.mark.parametrize("change", ["revoke", "rotate"])
async def test_a_wait_ends_with_its_key(scheduler, monkeypatch, change: str) -> None:
    monkeypatch.setattr("reverie.api.streams.RECHECK_S", 0.01)
    await scheduler.submit("import", user_id="ann")
    made = await scheduler.keys.create("k", "user", users=["ann"])
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        query = {"user_name": "ann", "timeout_seconds": 600}
        waiting = asyncio.create_task(client.post(f"{QUEUE}/wait", params=query))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        await getattr(scheduler.keys, change)(made.key.id)
        assert (await waiting).status_code == 401


async def test_a_key_has_only_so_many_streams_open(client, scheduler, monkeypatch) -> None:
    monkeypatch.setattr("reverie.api.events.MOST_STREAMS", 1)
    listening = asyncio.create_task(client.get(f"{QUEUE}/events", params={"count": 1}))
    await listens(scheduler)
    refused = await client.get(f"{QUEUE}/events", params={"timeout_seconds": 0})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    await scheduler.submit("import", user_id="ann")
    assert (await listening).status_code == 200
    assert (await client.get(f"{QUEUE}/events", params={"timeout_seconds": 0})).status_code == 200


async def test_streams_that_are_opened_at_once_are_counted(client, scheduler, monkeypatch) -> None:
    monkeypatch.setattr("reverie.api.events.MOST_STREAMS", 2)
    asked = {asyncio.create_task(client.get(f"{QUEUE}/events", params={"count": 1})) for _ in range(8)}
    refused = [(await one).status_code for one in islice(asyncio.as_completed(asked), 6)]
    while any(not one.done() for one in asked):
        await scheduler.submit("import", user_id="ann")
        await asyncio.wait(asked, timeout=0.05)
    assert refused == [429] * 6
    assert sorted(one.result().status_code for one in asked) == [200] * 2 + refused
    assert (await client.get(f"{QUEUE}/events", params={"timeout_seconds": 0})).status_code == 200


# -- which role may submit a label -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "needed"),
    [
        ("import", "user"),
        ("add", "user"),
        ("memory_compression", "user"),
        ("data_cleanup", "service"),
        ("statistics_update", "service"),
        ("wipe", "service"),
        ("export", "admin"),
        ("webhook", "admin"),
    ],
)
async def test_a_label_is_submitted_by_its_role_and_those_above(scheduler, label: str, needed: str) -> None:
    order = ["user", "service", "admin"]
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        for role in order:
            users = None if role == "admin" else ["ann"]
            made = await scheduler.keys.create(role, role, users=users)
            body = {"messages": [{"user_id": "ann", "label": label, "content": "x", "item_id": role}]}
            response = await client.post(
                f"{QUEUE}/submit", json=body, headers={"authorization": f"Bearer {made.token}"}
            )
            is_allowed = order.index(role) >= order.index(needed)
            assert response.status_code == (200 if is_allowed else 403), (role, response.text)
            if not is_allowed:
                words = f"the label {label!r} needs the role {needed}; the caller has the role {role}"
                assert response.json()["message"] == words
    assert len(await scheduler.status("ann")) == 3 - order.index(needed)


async def test_a_timed_task_of_nobody_is_run_by_a_service(scheduler: AsyncScheduler) -> None:
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        for role, users, code in (("user", ["ann"], 403), ("service", None, 200)):
            made = await scheduler.keys.create(role, role, users=users)
            headers = {"authorization": made.token}
            for call in ("run", "cancel"):
                path = f"{QUEUE}/triggers/data_cleanup/{call}"
                for body in (None, {"user_id": "ann"} if role == "user" else None):
                    assert (await client.post(path, json=body, headers=headers)).status_code == code


@pytest.mark.parametrize("path", ["/product/add", "/api/push/chat/message"])
async def test_reserved_users_stay_reserved(client, path: str) -> None:
    body = {"user_id": "_system", "messages": "x"}
    assert (await client.post(path, json=body)).status_code == 400
    submit = {"messages": [{"user_id": "_system", "label": "data_cleanup"}]}
    assert (await client.post(f"{QUEUE}/submit", json=submit)).status_code == 400


# -- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["read-only", "service", "admin"])
async def test_only_admins_see_tracebacks(scheduler: AsyncScheduler, role: str) -> None:
    @scheduler.handler("broken", max_attempts=1)
    def broken(message: Any) -> None:
        raise ExceptionGroup("two problems", [LookupError("no such file"), ValueError("the key is red")])

    @scheduler.trigger("digest", mode="user_activity", interval=1)
    def digest(**_: Any) -> bool:
        raise InvalidWorkError("the key is red")

    made = await scheduler.keys.create("k", role)
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        hearing = client.get(f"{QUEUE}/events", params={"event": "finish", "count": 1, "label": "broken"})
        listening = asyncio.create_task(hearing)
        await listens(scheduler)
        await scheduler.submit("broken", user_id="ann", item_id="b")
        await scheduler.triggers.run("digest", user_id="ann")
        await scheduler.runtime.drain()
        told = (await listening).text.replace("\\n", "\n")
        whose = {"user_id": "ann"}
        letters = (await data_of(await client.get(f"{QUEUE}/dead_letters", params=whose)))["items"]
        letter = await data_of(await client.get(f"{QUEUE}/dead_letters/b", params=whose))
        types = await data_of(await client.get(f"{QUEUE}/triggers"))
    last = next(one["statistics"]["last_error"] for one in types if one["task_type"] == "digest")
    row = next(one["error"] for one in letters if one["item_id"] == "b")
    errors = [row, letter["error"], *(run["error"] for run in letter["history"]), last]
    if role == "admin":
        assert all("Traceback" in error and __file__ in error for error in (*errors, told))
    else:
        assert errors == ["ValueError: the key is red"] * 3 + [
            "reverie.failures.InvalidWorkError: the key is red"
        ]
        assert '"error":"ValueError: the key is red"' in told


# -- what a message may wait for -------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(), ("nobody",)], ids=["alone", "with an unknown one"])
async def test_an_item_of_another_cube_is_no_known_item(scheduler: AsyncScheduler, others: tuple) -> None:
    for cube in ("app", "vault"):
        await scheduler.submit("import", user_id="ann", mem_cube_id=cube, item_id=f"in-{cube}")
    made = await scheduler.keys.create("app", "user", users=["ann"], cubes=["app"])

    async def submit(client: httpx.AsyncClient, *parents: str, item_id: str | None = None) -> httpx.Response:
        ids = {"user_id": "ann", "mem_cube_id": "app", "label": "import"}
        messages = [{**ids, "depends_on": parents}, *([{**ids, "item_id": item_id}] if item_id else [])]
        headers = {"authorization": made.token}
        return await client.post(f"{QUEUE}/submit", json={"messages": messages}, headers=headers)

    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        assert (await submit(client, "in-app")).status_code == 200
        assert (await submit(client, "in-app", "new", item_id="new")).status_code == 200
        refused = await submit(client, "in-vault", *others)
        unknown = await submit(client, "is-vault", *others)
        assert (await submit(client, "in-vault", item_id="in-vault")).status_code == 400
    assert refused.status_code == 400
    assert refused.json()["message"] == unknown.json()["message"].replace("is-vault", "in-vault")
    assert len(await scheduler.status("ann")) == 5


async def test_a_key_for_some_cubes_names_not_too_many_items(scheduler: AsyncScheduler) -> None:
    made = await scheduler.keys.create("app", "user", users=["ann"], cubes=["app"])
    ids = {"user_id": "ann", "mem_cube_id": "app", "label": "import"}
    messages = [{**ids, "depends_on": [f"{one}-{other}" for other in range(100)]} for one in range(11)]
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        refused = await client.post(f"{QUEUE}/submit", json={"messages": messages})
    assert (refused.status_code, "depends_on=1100: " in refused.json()["message"]) == (400, True)


async def test_a_summary_of_a_bound_caller_waits_for_nothing_of_other_cubes(
    scheduler: AsyncScheduler,
) -> None:
    asked = {"user_id": "ann", "session_id": "s", "text": "tea"}
    await scheduler.capture.session("prompt", mem_cube_id="app", **asked)
    await scheduler.capture.session("prompt", mem_cube_id="vault", **asked)
    made = await scheduler.keys.create("app", "user", users=["ann"], cubes=["app"])
    body = {"user_id": "ann", "session_id": "s", "mem_cube_id": "app", "event": "summary"}
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = made.token
        answer = await data_of(await client.post("/product/capture/session", json=body))
    query = StatusQuery(user_id="ann", item_id=answer["item_id"], with_message=True)
    (row,) = (await scheduler.runtime.backend.views.read(query)).rows
    items = await scheduler.status("ann")
    assert row.message is not None
    assert set(row.message.depends_on) == {
        item.item_id
        for item in items
        if (item.mem_cube_id, item.task_type) in {("app", "add"), ("app", "query")}
    }
