"""The MCP server over HTTP: each request has the rights of its key, and learns nothing about others.

As in the matrix of the routes, each caller that is bound to some data asks in two worlds: one in which there
is only its own data, and one that also has data of others. Every answer must be the same in both.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from typer.testing import CliRunner

from reverie import AsyncScheduler
from reverie.access.keys import KeyLimits
from reverie.cli.main import cli
from reverie.mcp.callers import KeyCallers
from reverie.mcp.server import new_server
from reverie.mcp.tools import TOOLS
from reverie.memory.sessions import SessionNote
from reverie.principal import LOCAL_ADMIN, Principal, Role, current_principal
from reverie.server import create_app
from reverie.settings import load_settings
from reverie.testing import ManualClock
from support.matrix import CUBE, SECRET, USER, Ask
from unit.test_governance import SECRET as TEAM
from unit.test_governance import ByTeam
from unit.test_matrix import CALLERS, TARGETS, Caller, fill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VOLATILE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|20\d\d-[0-9T:-]+Z")
"""Parts of answers that differ each time: new ids, and times of the real clock."""
HEADERS = {"accept": "application/json, text/event-stream"}
IDS = ("own-ann.0", "own-vault.0", "own-bob.0", "nothing.0")

ROWS: dict[str, list[dict[str, Any]]] = {
    "search": [
        {"query": "bees"},
        {"query": f"bees {SECRET}", "limit": 50, "kind": "observation"},
        {"query": SECRET, "file": f"src/{SECRET}.py"},
    ],
    "timeline": [
        *({"memory_id": memory_id} for memory_id in IDS),
        *({"session_id": f"work-{name}"} for name in ("ann", "vault", "bob", "nothing")),
    ],
    "details": [{"ids": [memory_id]} for memory_id in IDS] + [{"ids": list(IDS)}],
    "search_by_file": [{"path": "door.py"}, {"path": f"src/{SECRET}.py"}],
    "sessions": [{}, {"limit": 1}, {"status": "active"}],
    "add": [{"text": "bees like borage"}],
    "feedback": [
        *({"ids": [memory_id], "verdict": "like"} for memory_id in IDS),
        {"ids": [], "text": "No, I keep wasps"},
    ],
}
"""Tool → at least one call."""
WHOSE = ({"user_id": USER, "mem_cube_id": CUBE}, {"mem_cube_id": CUBE}, {})
"""The ways to say whose memories are meant."""


def test_every_tool_has_a_row() -> None:
    assert set(ROWS) == {tool.name for tool in TOOLS}


@pytest.mark.parametrize("caller", CALLERS, ids=str)
async def test_a_key_reaches_what_it_may_and_learns_nothing_else(caller: Caller, caplog) -> None:
    caplog.set_level("DEBUG")
    own = [("ann", "ann")] if caller.cubes else [("ann", "ann"), ("ann", "vault")]
    others = [("bob", "bob"), *([("ann", "vault")] if caller.cubes else [])]
    async with AsyncExitStack() as worlds:
        full = await worlds.enter_async_context(world(caller, own, others))
        empty = await worlds.enter_async_context(world(caller, own, [])) if caller.bound else None
        for tool in TOOLS:
            for row in ROWS[tool.name]:
                sent: list[Any] = []
                for whose in WHOSE:
                    for user_id, cube in TARGETS.values():
                        given = Ask(body={**row, **whose}).filled(user_id, cube).body
                        if given in sent:
                            continue
                        sent.append(given)
                        where = f"{tool.name} by {caller}: {given}"
                        status, body = await call(full, tool.name, given)
                        if empty is not None:
                            assert SECRET in str(row) or SECRET not in body, where
                            assert (status, body) == await call(empty, tool.name, given), where
                        if caller.role is None:
                            assert status == 401, where
                            continue
                        assert status == 200, f"{where}: {body}"
                        check_rights(caller, tool.role, given, json.loads(body)["result"], where)
    assert SECRET not in caplog.text
    assert "I keep bees" not in caplog.text


def check_rights(
    caller: Caller, role: Role, given: dict[str, Any], result: dict[str, Any], where: str
) -> None:
    """Whether an answer is one that the caller may get."""
    text = result["content"][0]["text"]
    where = f"{where}: {text}"
    user_id = given.get("user_id") or (caller.users[0] if caller.users else None)
    if user_id is None:
        assert "say whose memories" in text, where
    elif caller.users is not None and user_id not in caller.users:
        assert "this key may not touch the user" in text, where
    elif caller.cubes is not None and given.get("mem_cube_id", "ann") not in caller.cubes:
        assert "this key may not touch the cube" in text, where
    elif caller.role < role:
        assert f"needs the role {role.title}" in text, where
    else:
        named = json.dumps(given)
        is_own = not any(name in named for name in ("vault", "bob", "nothing")) or "own-ann.0" in named
        if is_own and user_id == "ann":
            assert not result.get("isError"), where
            return
        if result.get("isError"):
            assert "there is no " in text, where
        return
    assert result["isError"], where
    assert "structuredContent" not in result, where


async def call(client: httpx.AsyncClient, tool: str, arguments: dict[str, Any]) -> tuple[int, str]:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    response = await client.post("/mcp", json=request, headers=HEADERS)
    return response.status_code, VOLATILE.sub("", response.text)


@asynccontextmanager
async def world(
    caller: Caller, own: list[tuple[str, str]], others: list[tuple[str, str]]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with memories, observations and sessions of these tenants."""
    settings = load_settings(queue={"url": "memory://"}, memory={"embedding": "none"})
    scheduler = AsyncScheduler(settings=settings, clock=ManualClock(start_ms=1_800_000_000_000))
    scheduler.handler("export")(lambda message: None)
    await scheduler.open()
    for tenants, word in ((others, SECRET), (own, "honey")):
        for user_id, cube in tenants:
            await fill(scheduler, user_id, cube, word)
            ids = {"user_id": user_id, "mem_cube_id": cube, "session_id": f"work-{cube}"}
            note = SessionNote(at=scheduler.runtime.clock.now(), prompt=f"bees and {word}", **ids)
            await scheduler.runtime.store.note_sessions([note])
            await scheduler.capture.observation(
                title=f"Read about {word}",
                files_read=["/src/door.py", f"/src/{word}.py"],
                item_id=f"saw-{cube}",
                **ids,
            )
            await scheduler.runtime.worker.drain()
    await scheduler.keys.create("boss", "admin")
    token = caller.key
    if caller.role is not None:
        made = await scheduler.keys.create("k", caller.role.title, users=caller.users, cubes=caller.cubes)
        token = made.token
    async with client_of(scheduler, token) as client:
        yield client
    await scheduler.stop()


@asynccontextmanager
async def client_of(
    scheduler: AsyncScheduler, token: str = "", caller: Principal = LOCAL_ADMIN
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(scheduler, run_worker=False, caller=caller)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


@pytest.fixture
async def scheduler() -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(
        queue={"url": "memory://"}, memory={"embedding": "none"}, server={"max_body_bytes": 10_000}
    )
    scheduler = AsyncScheduler(settings=settings)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


async def test_a_local_caller_without_keys_names_the_user(scheduler: AsyncScheduler) -> None:
    async with client_of(scheduler) as client:
        status, body = await call(client, "add", {"text": "I keep bees", "user_id": "ann"})
        assert (status, json.loads(body)["result"]["structuredContent"]["status"]) == (200, "accepted")
        assert "say whose memories" in (await call(client, "search", {"query": "bees"}))[1]


@pytest.mark.parametrize(
    ("method", "headers", "body", "status"),
    [
        ("GET", {"accept": "text/event-stream"}, "", 405),
        ("DELETE", {}, "", 405),
        ("POST", {"host": "pages.example"}, json.dumps(LIST), 421),
        ("POST", {"origin": "https://pages.example"}, json.dumps(LIST), 403),
        ("POST", {"sec-fetch-site": "cross-site"}, json.dumps(LIST), 403),
        ("POST", {"content-type": "text/plain"}, json.dumps(LIST), 415),
        ("POST", {}, json.dumps(LIST) + " " * 10_000, 413),
        ("POST", {"x-forwarded-for": "10.0.0.1"}, json.dumps(LIST), 403),
        ("POST", {}, "{", 400),
        ("POST", {}, "[" * 9000, 400),
        ("POST", {}, json.dumps(LIST), 200),
    ],
)
async def test_a_request_passes_the_door_as_everywhere(
    scheduler: AsyncScheduler, method: str, headers: dict[str, str], body: str, status: int
) -> None:
    async with client_of(scheduler) as client:
        given = {"content-type": "application/json", **HEADERS, **headers}
        response = await client.request(method, "/mcp", content=body, headers=given)
        assert response.status_code == status, response.text
        assert response.headers["x-trace-id"]


async def test_limits_of_a_key_hold(scheduler: AsyncScheduler) -> None:
    made = await scheduler.keys.create(
        "k",
        "user",
        users=["ann"],
        limits=KeyLimits(max_json_depth=4, max_body_bytes=400, requests_per_s=1),
    )
    async with client_of(scheduler, made.token) as client:
        status, body = await call(client, "details", {"ids": ["a"], "extra": [[[1]]]})
        assert (status, json.loads(body)["message"]) == (
            400,
            "the body is nested more than 4 deep: this key allows no more",
        )
        assert (await call(client, "add", {"text": "long " * 100}))[0] == 413
        statuses = [(await call(client, "sessions", {}))[0] for _ in range(3)]
        assert statuses[-1] == 429


async def test_feedback_changes_only_what_its_caller_may_read() -> None:
    settings = load_settings(
        queue={"url": "memory://"}, memory={"embedding": "none"}, governance=f"{ByTeam.__module__}:ByTeam"
    )
    scheduler = AsyncScheduler(settings=settings)
    await scheduler.memory.add(
        "I keep wasps", user_id="ann", item_id="one", info={"custom_tags": [TEAM]}, mem_cube_id="ann"
    )
    await scheduler.runtime.drain()
    made = await scheduler.keys.create("k", "user", users=["ann"])
    async with client_of(scheduler, made.token) as client:
        for given in ({"ids": ["one.0"], "verdict": "like"}, {"ids": [], "text": "I keep bees, not wasps"}):
            assert (await call(client, "feedback", given))[0] == 200
    await scheduler.runtime.drain()
    current_principal.set(Principal(key="k", role=Role.USER, attributes={"team": TEAM}))
    item = await scheduler.memory.get("one.0", user_id="ann")
    assert item is not None
    assert (item.id, item.version) == ("one.0", 1)
    await scheduler.stop()


async def test_a_key_for_one_cube_writes_to_that_cube(scheduler: AsyncScheduler) -> None:
    made = await scheduler.keys.create("k", "user", users=["ann"], cubes=["app"])
    async with client_of(scheduler, made.token) as client:
        await call(client, "add", {"text": "The build needs cmake"})
        await scheduler.runtime.drain()
        (item,) = (await scheduler.memory.page(user_id="ann")).items
        assert item.mem_cube_id == "app"


async def test_only_the_searches_of_callers_who_may_write_are_noted(scheduler: AsyncScheduler) -> None:
    await scheduler.start()
    noted = []
    for role in ("read-only", "user"):
        made = await scheduler.keys.create(role, role, users=["ann"])
        async with client_of(scheduler, made.token) as client:
            assert (await call(client, "search", {"query": "bees"}))[0] == 200
        await scheduler.runtime.query_notes.close()
        noted.append(bool(await scheduler.status("ann")))
    assert noted == [False, True]


async def test_the_rights_of_one_request_do_not_reach_another(scheduler: AsyncScheduler) -> None:
    """The library runs tools in tasks of its own: each must have the principal of its own request."""
    tokens = {}
    for user_id in ("ann", "bob"):
        await scheduler.memory.add(f"{user_id} keeps bees", user_id=user_id)
        tokens[user_id] = (await scheduler.keys.create(user_id, "user", users=[user_id])).token
    await scheduler.runtime.drain()
    async with client_of(scheduler) as client:

        async def asks(user_id: str) -> None:
            headers = HEADERS | {"authorization": f"Bearer {tokens[user_id]}"}
            params = {"name": "search", "arguments": {"query": "bees"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            response = await client.post("/mcp", json=body, headers=headers)
            (hit,) = response.json()["result"]["structuredContent"]["hits"]
            assert hit["title"] == f"{user_id} keeps bees"

        await asyncio.gather(*(asks(user_id) for user_id in ("ann", "bob") * 20))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_talks_to_it(scheduler: AsyncScheduler, mode: str) -> None:
    app = create_app(scheduler, run_worker=False)
    transport = httpx2.ASGITransport(app)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        Client(streamable_http_client("http://127.0.0.1/mcp", http_client=http), mode=mode) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == [tool.name for tool in TOOLS]
        answer = await client.call_tool("search", {"query": "bees", "user_id": "ann"})
        assert answer.structured_content == {"hits": []}


async def test_without_the_extra_the_server_says_what_to_install(
    scheduler: AsyncScheduler, monkeypatch
) -> None:
    monkeypatch.setattr("reverie.mcp.http.find_spec", lambda _: None)
    async with client_of(scheduler) as client:
        response = await client.post("/mcp", json=LIST)
        assert response.status_code == 501
        assert "pip install 'reverie[mcp]'" in response.json()["message"]


def test_without_the_extra_the_command_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    shown = CliRunner().invoke(cli, ["mcp"])
    assert shown.exit_code == 1
    assert "pip install 'reverie[mcp]'" in shown.stderr


def test_the_server_starts_without_loading_the_library() -> None:
    program = "import reverie.server, reverie.cli.main, sys; print('mcp' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


async def test_the_library_changes_no_logs(scheduler: AsyncScheduler) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    new_server(scheduler, KeyCallers(scheduler))
    assert (root.level, root.handlers) == before
