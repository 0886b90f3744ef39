"""Waiting for a user to be idle: one look for all, news at once, nothing left behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import httpx
import pytest
from fastapi import FastAPI

from reverie import AsyncScheduler
from reverie.errors import BackendUnavailableError
from reverie.message import Key
from reverie.observe.finishes import Finishes
from reverie.observe.idle import IdleWatch
from reverie.server import create_app
from support.living import started, until

NEVER = 3600.0


class Users:
    """Counts that the test sets, and how often they were asked for."""

    def __init__(self) -> None:
        self.active = 1
        self.asked = 0
        self.let_through = asyncio.Event()
        self.let_through.set()

    async def count(self, user_id: str) -> int:
        self.asked += 1
        await self.let_through.wait()
        return self.active


@pytest.fixture
def users() -> Users:
    return Users()


@pytest.fixture
def finishes() -> Finishes:
    return Finishes()


@pytest.fixture
def watch(users: Users, finishes: Finishes) -> IdleWatch:
    return IdleWatch(users.count, finishes)


async def test_all_who_come_while_the_queue_is_asked_share_the_next_look(watch, users) -> None:
    users.let_through.clear()
    all_of_them = [watch.states("ann", NEVER, NEVER) for _ in range(100)]
    first = [asyncio.ensure_future(anext(states)) for states in all_of_them[:1]]
    await until(lambda: users.asked)
    rest = [await started(anext(states)) for states in all_of_them[1:]]
    users.let_through.set()
    assert {(await one).active_tasks for one in (*first, *rest)} == {1}
    assert users.asked == 2
    for states in all_of_them:
        await states.aclose()


async def test_who_polls_equally_often_looks_together(watch, users) -> None:
    async def follow() -> int:
        return len([state async for state in watch.states("ann", 0.5, 0.1)])

    told = await asyncio.gather(*(follow() for _ in range(200)))
    assert users.asked < sum(told) / 10


async def test_that_nothing_is_left_is_told_at_once(watch, users, finishes) -> None:
    async with aclosing(watch.states("ann", NEVER, NEVER)) as states:
        assert (await anext(states)).status == "running"
        users.active = 0
        last = await started(anext(states))
        finishes.announce([Key("bob", "1"), Key("ann", "1")])
        assert (await last).status == "idle"
        with pytest.raises(StopAsyncIteration):
            await anext(states)


async def test_each_poll_tells_how_it_stands_and_the_time_ends_it(watch) -> None:
    states = [state async for state in watch.states("ann", 1, 0.05)]
    assert [state.status for state in states[:-1]] == ["running"] * (len(states) - 1)
    assert len(states) > 2
    assert (states[-1].status, states[-1].timed_out) == ("timeout", True)


async def test_who_goes_leaves_nothing_behind(watch, finishes) -> None:
    states = watch.states("ann", NEVER, NEVER)
    await anext(states)
    going = await started(anext(states))
    going.cancel()
    await asyncio.wait({going})
    assert "ann" not in watch._looks
    assert not finishes.watched


async def test_a_look_that_fails_is_told_to_all_who_asked(finishes) -> None:
    async def away(user_id: str) -> int:
        raise BackendUnavailableError("away")

    watch = IdleWatch(away, finishes)
    for answer in await asyncio.gather(
        *(anext(watch.states("ann", NEVER, NEVER)) for _ in range(2)), return_exceptions=True
    ):
        assert isinstance(answer, BackendUnavailableError)
    assert not watch._looks


# -- over HTTP ---------------------------------------------------------------------------------------


class Call:
    """One request to an application, in the hand of the test: it says when the client hangs up."""

    def __init__(self, app: FastAPI, method: str, path: str, query: str = "") -> None:
        self.hung_up = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.sent: asyncio.Queue[dict] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(b"host", b"127.0.0.1")],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message) -> None:
        await self.takes.wait()
        self.sent.put_nowait(message)

    async def body(self) -> bytes:
        while (message := await self.sent.get())["type"] != "http.response.body":
            pass
        return message["body"]


@pytest.fixture
async def scheduler(clock):
    scheduler = AsyncScheduler("memory://", clock=clock)
    await scheduler.submit("work", user_id="ann")
    yield scheduler
    await scheduler.stop()


@pytest.fixture
def app(scheduler: AsyncScheduler) -> FastAPI:
    return create_app(scheduler, run_worker=False)


async def nobody_waits(scheduler: AsyncScheduler) -> None:
    await until(lambda: not (scheduler.observe._idle._looks or scheduler.runtime.finishes.watched))


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/product/scheduler/wait"), ("GET", "/product/scheduler/wait/stream")]
)
async def test_a_client_that_hangs_up_frees_everything(app, scheduler, method: str, path: str) -> None:
    before = asyncio.all_tasks()
    call = Call(app, method, path, "user_name=ann&poll_interval=60")
    await until(lambda: scheduler.runtime.finishes.watched)
    call.hung_up.set()
    await asyncio.wait_for(call.task, 30)
    await nobody_waits(scheduler)
    left = asyncio.all_tasks() - before - {call.task}
    assert [task for task in left if "_shutdown_watcher" not in repr(task)] == []


async def test_a_server_that_stops_ends_what_waits(app, scheduler) -> None:
    query = "user_name=ann&poll_interval=60"
    waiting = Call(app, "POST", "/product/scheduler/wait", query)
    streaming = Call(app, "GET", "/product/scheduler/wait/stream", query)
    assert b'"status":"running"' in await streaming.body()
    app.state.stopping.set()
    assert b'{"code":503,"message":"the server stops' in await waiting.body()
    assert (await streaming.body()).startswith(b'event: error\ndata: {"code":503,"message":"the server stops')
    await asyncio.gather(waiting.task, streaming.task)
    await nobody_waits(scheduler)


async def test_a_client_that_takes_nothing_is_hung_up_on(app, scheduler, monkeypatch) -> None:
    monkeypatch.setattr("reverie.api.streams.SEND_TIMEOUT_S", 0.05)
    call = Call(app, "GET", "/product/scheduler/wait/stream", "user_name=ann&poll_interval=0.05")
    await call.body()
    call.takes.clear()
    await asyncio.wait_for(call.task, 30)
    await nobody_waits(scheduler)


async def test_a_stream_tells_of_work_that_ends(app, scheduler) -> None:
    stream = Call(app, "GET", "/product/scheduler/wait/stream", "user_name=ann&poll_interval=60")
    assert b'"active_tasks":1' in await stream.body()
    await scheduler.control.cancel(user_id="ann")
    assert b'"active_tasks":0' in await stream.body()
    await stream.task


async def test_a_backend_that_is_away(app, scheduler, monkeypatch) -> None:
    async def away(*_):
        raise BackendUnavailableError("redis://here did not answer")

    stream = Call(app, "GET", "/product/scheduler/wait/stream", "user_name=ann&poll_interval=0.05")
    await stream.body()
    monkeypatch.setattr(scheduler.runtime.backend.views, "lanes", away)
    while (body := await stream.body()).startswith(b"data"):
        pass
    problem = b'event: error\ndata: {"code":503,"message":"redis://here did not answer","data":null}\n\n'
    assert body == problem
    await stream.task
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for method, path in (("POST", "wait"), ("GET", "wait/stream"), ("GET", "task_queue_status")):
            query = {"user_name": "ann", "user_id": "ann"}
            response = await client.request(method, f"/product/scheduler/{path}", params=query)
            assert (response.status_code, response.json()["code"]) == (503, 503)


async def test_a_body_that_nobody_asked_for_is_bounded_too(app) -> None:
    async def endless():
        while True:
            yield b"x" * 2**20

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        kind = {"content-type": "application/json"}
        response = await client.post("/product/scheduler/wait?user_name=ann", content=endless(), headers=kind)
    assert response.status_code == response.json()["code"] == 413


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "query.user_name: Field required"),
        ({"user_name": ""}, "query.user_name: String should have at least 1 character"),
        ({"timeout_seconds": "-1"}, "greater than or equal to 0"),
        ({"timeout_seconds": "86401"}, "less than or equal to 86400"),
        ({"timeout_seconds": "inf"}, "finite"),
        ({"timeout_seconds": "nan"}, "finite"),
        ({"timeout_seconds": "soon"}, "valid number"),
        ({"poll_interval": "0.04"}, "greater than or equal to 0.05"),
        ({"poll_interval": "61"}, "less than or equal to 60"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "wait"), ("GET", "wait/stream")])
async def test_ranges(app, method: str, path: str, query, words: str) -> None:
    query = {"user_name": "ann", **query} if query else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        response = await client.request(method, f"/product/scheduler/{path}", params=query)
    assert response.status_code == response.json()["code"] == 422
    assert words in response.json()["message"]
