"""A trace goes from the request through the message to its handler, its events and what it submits."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from reverie import AsyncScheduler, Done, Message
from reverie.observe.tracing import current_trace_id
from reverie.server import create_app
from reverie.settings import load_settings

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture(params=["memory", "sqlite"])
async def scheduler(request: pytest.FixtureRequest, tmp_path):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    return AsyncScheduler(settings=load_settings(queue={"url": url}))


@pytest.fixture
async def client(scheduler: AsyncScheduler):
    app = create_app(scheduler)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


async def submit(client: httpx.AsyncClient, headers=None, **fields) -> str:
    """Submit a message; the trace id that the answer names."""
    message = {"user_id": "ann", "label": "first", "item_id": "1", **fields}
    response = await client.post(
        "/product/scheduler/submit", json={"messages": [message]}, headers=headers or {}
    )
    assert response.status_code == 200
    return response.headers["x-trace-id"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_from_the_request_to_all_that_follows(client, scheduler, kind: str) -> None:
    seen: dict[str, str | None] = {}
    events, all_done = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen(batch) -> None:
        events.extend(batch)
        if sum(event.event == "finish" for event in events) == 3:
            loop.call_soon_threadsafe(all_done.set)

    subscription = scheduler.observe.subscribe(listen)

    def sync(message: Message) -> Done:
        seen["first"] = message.trace_id
        submitting = scheduler.submit("second", user_id="ann", item_id="2")
        asyncio.run_coroutine_threadsafe(submitting, loop).result(30)
        return Done(follow_ups=[Message(user_id="ann", label="last", item_id="3")])

    async def asynchronous(message: Message) -> Done:
        seen["first"] = message.trace_id
        await scheduler.submit("second", user_id="ann", item_id="2")
        return Done(follow_ups=[Message(user_id="ann", label="last", item_id="3")])

    scheduler.handler("first")(sync if kind == "sync" else asynchronous)
    scheduler.handler("second")(lambda message: seen.update(second=message.trace_id))
    scheduler.handler("last")(lambda message: seen.update(last=message.trace_id))
    assert await submit(client, PARENT) == TRACE
    await asyncio.wait_for(all_done.wait(), 30)
    subscription.close()
    assert seen == {"first": TRACE, "second": TRACE, "last": TRACE}
    assert {event.trace_id for event in events} == {TRACE}
    assert {event.event for event in events} >= {"enqueue", "dequeue", "start", "finish"}


async def test_a_message_keeps_a_trace_of_its_own(client, scheduler) -> None:
    seen = asyncio.Queue()

    @scheduler.handler("first")
    async def first(message: Message) -> None:
        seen.put_nowait(message.trace_id)

    assert await submit(client, PARENT, trace_id="mine") == TRACE
    assert await asyncio.wait_for(seen.get(), 30) == "mine"


@pytest.mark.parametrize("traceparent", [None, "", "nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01"])
async def test_a_request_without_a_trace_gets_one(client, traceparent: str | None) -> None:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    first = await submit(client, headers, item_id="1")
    second = await submit(client, headers, item_id="2")
    assert first != second
    assert len(first) == len(second) == 32


async def test_every_answer_names_its_trace_errors_too(client, scheduler, monkeypatch) -> None:
    async def bug(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler, "status", bug)
    too_much = {"content": b"x" * (17 * 1024 * 1024)}
    for method, path, more, code in (
        ("GET", "/health", {}, 200),
        ("GET", "/nothing", {}, 404),
        ("GET", "/product/nothing", {}, 404),
        ("GET", "/product/add", {}, 405),
        ("POST", "/product/add", {"json": {}}, 422),
        ("POST", "/product/add", too_much, 413),
        ("GET", "/product/scheduler/status?user_id=ann", {}, 500),
    ):
        headers = PARENT | {"content-type": "application/json"}
        response = await client.request(method, path, headers=headers, **more)
        assert (response.status_code, response.headers["x-trace-id"]) == (code, TRACE), path
    assert current_trace_id.get() is None
