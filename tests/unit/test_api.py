"""Answers under /product: the one shape, for errors too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.backends.views import StatusQuery
from reverie.errors import BackendUnavailableError
from reverie.server import create_app
from reverie.settings import load_settings

JSON = {"content-type": "application/json"}


@pytest.fixture
async def scheduler(clock):
    scheduler = AsyncScheduler("memory://", clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def ask(client: httpx.AsyncClient, method: str, path: str, **request) -> tuple[int, str, object]:
    response = await client.request(method, path, **request)
    answer = response.json()
    assert set(answer) - {"detail"} == {"code", "message", "data"}
    assert answer["code"] == response.status_code
    return answer["code"], answer["message"], answer["data"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 422, "body.user_id: Field required"),
        ({"user_id": "ann"}, 422, "there is nothing to remember"),
        ({"user_id": "ann", "messages": []}, 422, "there is nothing to remember"),
        ({"user_id": "ann", "messages": [{"role": "user"}]}, 422, "content: Field required"),
        ({"user_id": "", "memory_content": "x"}, 400, "user_id='': must not be empty"),
        ({"user_id": "_system", "memory_content": "x"}, 400, "reserved"),
        ({"user_id": "ann", "memory_content": " "}, 400, "has nothing to remember"),
        ({"user_id": "ann", "memory_content": "x" * 2**20}, 400, "at most 1048576 are allowed"),
        ({"user_id": "a\x00b", "memory_content": "x"}, 400, "NUL"),
        (
            {"user_id": "ann", "memory_content": "x", "item_id": "1", "writable_cube_ids": ["a", "b"]},
            422,
            "one cube",
        ),
    ],
)
async def test_bad_requests_are_refused_in_words(client, body, code, words) -> None:
    got, message, _ = await ask(client, "POST", "/product/add", json=body)
    assert got == code
    assert words in message


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("plain text", "plain text"),
        ({"doc": [7, None]}, '{"doc":[7,null]}'),
        ([1, "a"], '[1,"a"]'),
        (7, "7"),
        (10**30, str(10**30)),
        (2.5, "2.5"),
        (True, "true"),
        (None, "null"),
    ],
)
async def test_content_may_be_any_json_as_in_python(client, scheduler, content, kept) -> None:
    messages = [{"user_id": "ann", "label": "work", "item_id": "http", "content": content}]
    code, _, _ = await ask(client, "POST", "/product/scheduler/submit", json={"messages": messages})
    assert code == 200
    await scheduler.submit("work", user_id="ann", item_id="python", content=content)
    for item_id in ("http", "python"):
        query = StatusQuery(user_id="ann", item_id=item_id, with_message=True)
        (row,) = (await scheduler.runtime.backend.views.read(query)).rows
        assert row.message.content == kept


async def test_content_that_is_nested_too_deeply_is_refused(client) -> None:
    content: list = []
    for _ in range(40):
        content = [content]
    messages = [{"user_id": "ann", "label": "work", "content": content}]
    code, message, _ = await ask(client, "POST", "/product/scheduler/submit", json={"messages": messages})
    assert (code, message.rpartition(": ")[2]) == (400, "is nested too deeply")


@pytest.mark.parametrize("user_id", ["", "x" * 10_000_000], ids=["empty", "10 MB"])
@pytest.mark.parametrize("path", ["search", "status", "task_queue_status"])
async def test_a_question_about_an_id_that_nobody_can_have_is_refused(client, path, user_id) -> None:
    if path == "search":
        got = await ask(client, "POST", "/product/search", json={"query": "tea", "user_id": user_id})
    else:  # a server refuses a longer path by itself
        query = {"user_id": user_id[:1000]}
        got = await ask(client, "GET", f"/product/scheduler/{path}", params=query)
    code, message, _ = got
    assert code == 400
    assert message.startswith("user_id=")
    assert ("must be at most 512 bytes" if user_id else "must not be empty") in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("search", {"user_id": "\ud800"}, "user_id"),
        ("search", {"query": "\ud800"}, "query"),
        ("search", {"mem_cube_id": "\ud800"}, "mem_cube_id"),
        ("search", {"readable_cube_ids": ["a", "\ud800"]}, "readable_cube_ids.1"),
        ("add", {"user_id": "\ud800"}, "user_id"),
        ("add", {"messages": [{"content": "a", "role": "\ud800"}]}, "messages"),
        ("add", {"info": {"\ud800": 1}}, "info"),
        ("scheduler/submit", {"messages": [{"user_id": "ann", "label": "\ud800"}]}, "label"),
        (
            "scheduler/submit",
            {"messages": [{"user_id": "ann", "label": "a", "depends_on": ["\ud800"]}]},
            "depends_on.0",
        ),
    ],
)
async def test_half_a_surrogate_pair_is_refused(client, path, body, field) -> None:
    content = json.dumps({"user_id": "ann", "query": "x", "memory_content": "x"} | body)
    code, message, _ = await ask(client, "POST", f"/product/{path}", content=content, headers=JSON)
    assert code in {400, 422}
    assert field in message
    assert "is not valid Unicode text" in message


async def test_what_is_no_json_is_refused(client) -> None:
    for content, place in ((b"{", "line 1 column 2"), (b'{"a":\n  x}', "line 2 column 3")):
        code, message, _ = await ask(client, "POST", "/product/add", content=content, headers=JSON)
        assert code == 422
        assert message.startswith("the body is no JSON: Expecting ")
        assert message.endswith(f" at {place}")


async def test_a_body_that_cannot_be_read_as_text_is_refused(client) -> None:
    for content in (b'{"user_id": "\xff"}', b"[" * 200_000):
        code, message, _ = await ask(client, "POST", "/product/search", content=content, headers=JSON)
        assert (code, message) == (400, "There was an error parsing the body")


async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(client) -> None:
    async def unannounced():
        for _ in range(17):
            yield b"x" * 1024 * 1024

    for content in (b"x" * (17 * 1024 * 1024), unannounced()):
        code, message, _ = await ask(client, "POST", "/product/add", content=content, headers=JSON)
        assert code == 413
        assert "16777216 bytes" in message


async def test_unknown_paths_tasks_and_methods(client) -> None:
    assert (await ask(client, "GET", "/product/nothing"))[:2] == (404, "Not Found")
    assert (await ask(client, "GET", "/product/add"))[0] == 405
    assert (await client.get("/product/add")).headers["allow"] == "POST"
    assert (await ask(client, "POST", "/product/add/"))[0] == 404
    assert (await ask(client, "GET", "/product"))[0] == 404
    query = {"user_id": "ann", "task_id": "none"}
    assert (await ask(client, "GET", "/product/scheduler/status", params=query))[0] == 404


async def test_the_schema_of_the_interface(client) -> None:
    schema = (await client.get("/openapi.json")).json()
    assert {"/product/add", "/product/scheduler/wait/stream", "/health"} <= set(schema["paths"])


async def test_several_cubes_are_several_messages(client) -> None:
    body = {"user_id": "ann", "memory_content": "x", "writable_cube_ids": ["home", "work"]}
    _, _, data = await ask(client, "POST", "/product/add", json=body)
    assert [entry["cube_id"] for entry in data] == ["home", "work"]
    assert len({entry["item_id"] for entry in data}) == 2


async def test_content_in_parts_becomes_its_text(client) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = {"user_id": "ann", "messages": [{"role": "user", "content": parts}]}
    _, _, data = await ask(client, "POST", "/product/add", json=body)
    assert [entry["memory"] for entry in data] == ["look"]


async def test_an_id_that_is_taken(client) -> None:
    for text, code in (("one", 200), ("one", 200), ("two", 409)):
        body = {"user_id": "ann", "memory_content": text, "item_id": "1"}
        assert (await ask(client, "POST", "/product/add", json=body))[0] == code


async def test_submit_answers_one_receipt_for_each_message(client) -> None:
    messages = [
        {"user_id": "ann", "label": "work", "item_id": "1", "task_id": "t"},
        {"user_id": "ann", "label": "work", "item_id": "1", "task_id": "t"},
        {"user_id": "ann", "label": "other", "item_id": "1"},
    ]
    _, _, data = await ask(client, "POST", "/product/scheduler/submit", json={"messages": messages})
    assert data == [
        {"item_id": "1", "status": "accepted"},
        {"item_id": "1", "status": "duplicate"},
        {"item_id": "1", "status": "conflict"},
    ]
    _, _, data = await ask(client, "GET", "/product/scheduler/status", params={"user_id": "ann"})
    assert data == [{"task_id": "1", "status": "waiting"}]
    query = {"user_id": "ann", "task_id": "t"}
    _, _, data = await ask(client, "GET", "/product/scheduler/status", params=query)
    assert data == [{"task_id": "t", "status": "in_progress"}]


async def test_one_bad_message_refuses_the_whole_submit(client) -> None:
    messages = [{"user_id": "ann", "label": "work", "item_id": "1"}, {"user_id": "ann", "label": ""}]
    code, message, _ = await ask(client, "POST", "/product/scheduler/submit", json={"messages": messages})
    assert (code, message) == (400, "label='': must not be empty")
    _, _, data = await ask(client, "GET", "/product/scheduler/status", params={"user_id": "ann"})
    assert data == []


async def test_a_backend_that_is_away_and_a_bug(client, scheduler, monkeypatch) -> None:
    async def away(*_):
        raise BackendUnavailableError("redis://here did not answer")

    async def bug(*_):
        raise ZeroDivisionError("secret detail")

    query = {"user_id": "ann"}
    monkeypatch.setattr(scheduler, "status", away)
    assert (await ask(client, "GET", "/product/scheduler/status", params=query))[0] == 503
    monkeypatch.setattr(scheduler, "status", bug)
    code, message, _ = await ask(client, "GET", "/product/scheduler/status", params=query)
    assert code == 500
    assert "secret" not in message


async def test_a_full_queue_says_when_to_try_again() -> None:
    settings = load_settings(queue={"url": "memory://", "max_depth": 1}, memory={"url": "memory://"})
    scheduler = AsyncScheduler(settings=settings)
    transport = httpx.ASGITransport(create_app(scheduler, run_worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        messages = [{"user_id": "ann", "label": "work"}]
        responses = [
            await client.post("/product/scheduler/submit", json={"messages": messages}) for _ in range(2)
        ]
    await scheduler.stop()
    assert [response.status_code for response in responses] == [200, 429]
    assert responses[1].headers["retry-after"] == "5"
    assert "queue.max_depth = 1 is reached" in responses[1].json()["message"]


async def test_a_submitted_message_may_wait_for_another(client) -> None:
    messages = [
        {"user_id": "ann", "label": "work", "item_id": "2", "depends_on": ["1"]},
        {
            "user_id": "ann",
            "label": "work",
            "item_id": "1",
            "unique_key": "k",
            "deadline": "2100-01-01T00:00:00Z",
        },
    ]
    code, _, data = await ask(client, "POST", "/product/scheduler/submit", json={"messages": messages})
    assert (code, [one["status"] for one in data]) == (200, ["accepted", "accepted"])
    lost = [{"user_id": "ann", "label": "work", "depends_on": ["nobody"]}]
    code, message, _ = await ask(client, "POST", "/product/scheduler/submit", json={"messages": lost})
    assert (code, "depends_on='nobody'" in message) == (400, True)


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({"host": "evil.example"}, 421, "'evil.example' is no name of this server"),
        ({"host": "127.0.0.1.evil.example:8000"}, 421, "server.allowed_hosts"),
        ({"host": "10.0.0.1:8000"}, 421, "ask 127.0.0.1"),
        ({"host": ""}, 421, "is no name"),
        ({"host": "[::1].evil.example"}, 421, "is no name"),
        ({"host": "[::1]:80.evil.example"}, 421, "is no name"),
        ({"host": "[localhost]evil.example"}, 421, "is no name"),
        ({"host": "[localhost]"}, 421, "is no name"),
        ({"origin": "https://evil.example"}, 403, "'https://evil.example' may not ask"),
        ({"origin": "http://127.0.0.1.evil.example"}, 403, "server.allowed_hosts"),
        ({"origin": "http://["}, 403, "may not ask"),
        ({"origin": "http://[::1].evil.example"}, 403, "may not ask"),
        ({"origin": "http://localhost:1@evil.example"}, 403, "may not ask"),
        ({"origin": "null"}, 403, "may not ask"),
        ({"sec-fetch-site": "cross-site"}, 403, "another site"),
        ({"content-type": "text/plain"}, 415, "'Content-Type: application/json'"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "send JSON"),
        ({"content-type": "text/plain; x=application/json"}, 415, "send JSON"),
        ({"content-type": ""}, 415, "send JSON"),
    ],
)
async def test_a_web_page_can_neither_write_nor_read(client, headers, code, words) -> None:
    body = b'{"user_id": "ann", "memory_content": "x"}'
    got, message, _ = await ask(client, "POST", "/product/add", content=body, headers=JSON | headers)
    assert got == code
    assert words in message
    if code != 415:
        assert (await ask(client, "GET", "/health", headers=headers))[0] == code
    _, _, data = await ask(client, "GET", "/product/scheduler/status", params={"user_id": "ann"})
    assert data == []


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8000", "origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        {"host": "LOCALHOST."},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000", "sec-fetch-site": "same-origin"},
        {"host": "[::1]"},
        {"host": "127.1.2.3"},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/problem+json"},
    ],
)
async def test_who_asks_this_machine_is_let_in(client, headers) -> None:
    body = b'{"user_id": "ann", "memory_content": "x"}'
    assert (await ask(client, "POST", "/product/add", content=body, headers=JSON | headers))[0] == 200


async def test_a_body_of_unknown_length_must_be_json_and_no_body_needs_no_type(client) -> None:
    async def pieces():
        yield b"{}"

    assert (await ask(client, "POST", "/product/add", content=pieces()))[0] == 415
    assert (await ask(client, "POST", "/product/scheduler/wait", params={"user_name": "ann"}))[0] == 200


async def test_a_host_that_the_settings_allow() -> None:
    server = {"allowed_hosts": ["Reverie.example"]}
    settings = load_settings(queue={"url": "memory://"}, memory={"url": "memory://"}, server=server)
    scheduler = AsyncScheduler(settings=settings)
    transport = httpx.ASGITransport(create_app(scheduler, run_worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="https://reverie.example") as client:
        allowed = await client.get("/health", headers={"origin": "https://reverie.example:8443"})
        foreign = await client.get("/health", headers={"host": "other.example"})
    await scheduler.stop()
    assert (allowed.status_code, foreign.status_code) == (200, 421)


async def test_a_request_that_is_half_sent_when_the_server_stops_is_answered(scheduler) -> None:
    app = create_app(scheduler, run_worker=False)
    asked, sent = asyncio.Event(), []
    pieces = [{"type": "http.request", "body": b'{"user_id"', "more_body": True}]

    async def receive():
        if pieces:
            return pieces.pop()
        asked.set()
        return await asyncio.Future()

    async def send(message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"99"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/product/add",
        "query_string": b"",
        "headers": headers,
    }
    request = asyncio.ensure_future(app(scope, receive, send))
    await asked.wait()
    app.state.stopping.set()
    request.cancel()
    await request
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"]) == {
        "code": 503,
        "message": "the server stops: ask again when it is back",
        "data": None,
    }


def test_the_api_needs_no_redis() -> None:
    program = "import sys; sys.modules['redis'] = None; import reverie.server"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_a_search_ends_when_its_client_hangs_up(scheduler, monkeypatch) -> None:
    ended = asyncio.Event()

    async def search(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(scheduler.memory, "search", search)
    body = json.dumps({"user_id": "ann", "query": "tea"}).encode()
    heard = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/product/search",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
    }

    async def receive() -> dict:
        return next(heard)

    async def send(_: object) -> None:
        pass

    await asyncio.wait_for(create_app(scheduler, run_worker=False)(scope, receive, send), 30)
    assert ended.is_set()


async def test_a_query_that_is_too_long_is_refused(client) -> None:
    query = {"user_id": "ann", "query": "x" * (2**20 + 1)}
    code, message, _ = await ask(client, "POST", "/product/search", json=query)
    assert code == 400
    assert "limits.max_content_bytes" in message


async def test_a_user_has_pages_only_when_they_are_asked_for(client, scheduler) -> None:
    for number in range(3):
        await scheduler.submit("work", user_id="ann", item_id=str(number))
    states = [{"task_id": str(number), "status": "waiting"} for number in range(3)]
    path = "/product/scheduler/status?user_id=ann"
    assert await ask(client, "GET", path) == (200, "ok", states)
    _, _, page = await ask(client, "GET", f"{path}&limit=2")
    assert page["items"] == states[:2]
    assert await ask(client, "GET", f"{path}&cursor={page['next']}") == (
        200,
        "ok",
        {"items": states[2:], "next": None},
    )
    for query, code in (
        ("limit=0", 422),
        ("limit=1001", 422),
        ("cursor=x", 400),
        (f"cursor={'9' * 99}", 400),
        ("limit=2&task_id=0", 400),
    ):
        assert (await ask(client, "GET", f"{path}&{query}"))[0] == code
