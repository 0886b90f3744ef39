"""Sessions of agents over HTTP: what is captured, the list of sessions, timelines, and deletion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler, Remember
from reverie.message import derived_id
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client, fits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.testing import ManualClock

SEEN = {
    "memorySessionId": "s1",
    "projectId": "app",
    "type": "Edit",
    "title": "Edited /app/port.py",
    "narrative": "The port is read from the settings",
    "facts": ["The port is a setting"],
    "concepts": ["settings"],
    "filesRead": ["/app/settings.py"],
    "filesModified": ["/app/port.py"],
    "info": {"agent_id": "codex"},
}


class Api:
    """The HTTP face of a scheduler, asked by a caller with or without a key."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self.scheduler = scheduler
        self.clock: ManualClock = scheduler.runtime.clock
        self._app = create_app(scheduler, run_worker=False)
        self.headers: dict[str, str] = {}

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str, Any]:
        async with documented_client(self._app) as client:
            response = await client.request(
                method,
                f"/product/{path}",
                content=None if body is None else json.dumps(body),
                params=query,
                headers={"content-type": "application/json", **self.headers},
            )
        told = response.json()
        assert told["code"] == response.status_code
        return told["code"], told["message"], told["data"]

    async def data(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        code, message, data = await self.ask(method, path, body, **query)
        assert code == 200, message
        return data

    async def observe(self, **fields: Any) -> dict[str, str]:
        return await self.data("POST", "capture/observation", {"user_id": "ann", **SEEN, **fields})

    async def tell(self, event: str, session_id: str = "s1", **fields: Any) -> dict[str, str]:
        """Tell that something happens in a session, a second after what was told before."""
        self.clock.advance(1)
        body = {"user_id": "ann", "session_id": session_id, "mem_cube_id": "app", "event": event, **fields}
        told = await self.data("POST", "capture/session", body)
        await self.scheduler.runtime.drain()
        return told

    async def session(self, session_id: str = "s1", user_id: str = "ann") -> Any:
        return await self.data("GET", f"sessions/{session_id}", user_id=user_id)

    async def listed(self, **query: Any) -> list[str]:
        page = await self.data("GET", "sessions", user_id="ann", **query)
        return [session["session_id"] for session in page["sessions"]]

    async def timeline(self, **query: Any) -> list[str]:
        found = await self.data("GET", "timeline", user_id="ann", **query)
        return [memory["memory"] for memory in found["memories"]]


@pytest.fixture
async def api(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Api]:
    settings = load_settings(
        data_dir=tmp_path,
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"},
        memory={"embedding": "none"},
        capture={"exclude_tools": ["mcp__mail__*"]},
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await scheduler.open()
    yield Api(scheduler)
    await scheduler.stop()


# -- capture ---------------------------------------------------------------------------------------------


async def test_an_observation_becomes_a_memory(api: Api) -> None:
    told = await api.observe(item_id="o1")
    assert told == {"item_id": "o1", "status": "accepted"}
    await api.scheduler.runtime.drain()
    (memory,) = (await api.data("GET", "timeline", user_id="ann", session_id="s1"))["memories"]
    assert (memory["id"], memory["type"], memory["title"]) == ("o1.0", "Edit", SEEN["title"])
    assert [memory[name] for name in ("narrative", "facts", "concepts")] == [
        SEEN["narrative"],
        SEEN["facts"],
        SEEN["concepts"],
    ]
    metadata = memory["metadata"]
    assert (metadata["kind"], metadata["session_id"], metadata["agent_id"]) == ("observation", "s1", "codex")
    assert metadata["info"]["files_read"] == SEEN["filesRead"]
    assert metadata["info"]["files_modified"] == SEEN["filesModified"]


async def test_fields_may_be_named_as_in_the_other_routes(api: Api) -> None:
    body = {
        "user_id": "ann",
        "session_id": "s1",
        "mem_cube_id": "app",
        "title": "Read port.py",
        "files_read": ["port.py"],
    }
    await api.data("POST", "capture/observation", body)
    await api.scheduler.runtime.drain()
    assert await api.timeline(file="port.py") == ["Read port.py"]
    assert (await api.session())["mem_cube_id"] == "app"
    body = {"user_id": "ann", "memorySessionId": "s2", "event": "started"}
    await api.data("POST", "capture/session", body)
    assert (await api.session("s2"))["mem_cube_id"] == "ann"


async def test_the_same_item_is_kept_once(api: Api) -> None:
    assert [(await api.observe(item_id="o1"))["status"] for _ in range(2)] == ["accepted", "duplicate"]
    other = {"user_id": "ann", **SEEN, "item_id": "o1", "title": "Something else"}
    code, message, _ = await api.ask("POST", "capture/observation", other)
    assert (code, "'o1' is taken" in message) == (409, True)


@pytest.mark.parametrize(
    ("path", "fields", "code", "words"),
    [
        ("observation", {"title": " "}, 400, "title=' ': has nothing to remember"),
        ("observation", {"title": None}, 422, "body.title"),
        ("observation", {"type": "mcp__mail__read"}, 400, "is excluded by capture.exclude_tools"),
        ("observation", {"facts": "one"}, 422, "body.facts"),
        ("observation", {"facts": ["\ud800"]}, 422, "is not valid Unicode text"),
        ("observation", {"memorySessionId": ""}, 422, "body.memorySessionId"),
        ("observation", {"projectId": "\ud800"}, 422, "is not valid Unicode text"),
        ("session", {"event": "slept"}, 422, "body.event"),
        ("session", {"event": "prompt"}, 400, "text='': is needed: what the prompt says"),
        ("session", {"event": "started", "agent": "x" * 101}, 422, "body.agent"),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    api: Api, path: str, fields: dict[str, Any], code: int, words: str
) -> None:
    body = {"user_id": "ann", **SEEN, **fields}
    refused = await api.ask("POST", f"capture/{path}", body)
    assert (refused[0], words in refused[1]) == (code, True), refused
    assert await api.listed() == []


async def test_a_session_walks_through_its_states(api: Api) -> None:
    await api.tell("started", agent="codex")
    began = await api.session()
    assert (began["status"], began["agent"], began["prompts"]) == ("created", "codex", 0)
    await api.tell("prompt", text="Read the port\nfrom the settings")
    await api.tell("answer", text="The port is a setting now")
    active = await api.session()
    assert (active["status"], active["title"]) == ("active", "Read the port from the settings")
    assert (active["prompts"], active["created_at"]) == (1, began["created_at"])
    await api.tell("ended", reason="logout")
    ended = await api.session()
    assert (ended["status"], ended["error"]) == ("completed", None)
    assert ended["ended_at"] == ended["completed_at"] == ended["updated_at"]
    await api.tell("prompt", text="And the host")
    again = await api.session()
    assert (again["status"], again["ended_at"], again["completed_at"]) == ("active", None, None)
    await api.tell("failed", reason="the machine was switched off")
    failed = await api.session()
    assert (failed["status"], failed["error"]) == ("failed", "the machine was switched off")
    assert "context" not in failed


@pytest.mark.parametrize("works", [True, False], ids=["after its work", "before its work"])
async def test_a_repeated_call_tells_nothing_new(api: Api, works: bool) -> None:
    bodies: list[dict[str, Any]] = [
        {"event": "started", "agent": "codex"},
        {"event": "prompt", "text": "Read the port"},
        {"event": "answer", "text": "It is a setting now"},
        {"event": "summary"},
        {"event": "ended", "reason": "logout"},
    ]
    for number, body in enumerate(bodies):
        answers, seen = [], []
        api.headers = {"idempotency-key": f"k-{number}"}
        for _ in range(3):
            api.clock.advance(1)
            told = {"user_id": "ann", "session_id": "s1", "mem_cube_id": "app", **body}
            answers.append(await api.data("POST", "capture/session", told))
            if works:
                await api.scheduler.runtime.drain()
            seen.append(await api.session())
        assert [answer["status"] for answer in answers] == ["accepted", "duplicate", "duplicate"]
        assert len({answer["item_id"] for answer in answers}) == 1
        assert seen[1:] == seen[:1] * 2
    api.headers = {}
    await api.scheduler.runtime.drain()
    ended = await api.session()
    assert (ended["status"], ended["prompts"]) == ("completed", 1)
    assert ended["ended_at"] == ended["updated_at"]


async def test_what_is_private_is_not_kept(api: Api) -> None:
    await api.tell("prompt", text="Use <private>my old name</private> port 80")
    assert "old name" not in str(await api.session())
    assert "old name" not in str(await api.timeline(session_id="s1"))


# -- sessions --------------------------------------------------------------------------------------------


async def test_sessions_are_listed_page_by_page_the_latest_first(api: Api) -> None:
    for number in range(5):
        await api.tell("started" if number % 2 else "prompt", f"s{number}", text="go")
    await api.tell("prompt", "other", mem_cube_id="site", text="go")
    assert await api.listed() == ["other", "s4", "s3", "s2", "s1", "s0"]
    assert await api.listed(mem_cube_id="app", status="created") == ["s3", "s1"]
    seen, cursor = [], {}
    while cursor is not None:
        page = await api.data("GET", "sessions", user_id="ann", limit=2, **cursor)
        seen += [session["session_id"] for session in page["sessions"]]
        cursor = None if page["next"] is None else {"cursor": page["next"]}
    assert seen == ["other", "s4", "s3", "s2", "s1", "s0"]
    assert (await api.ask("GET", "sessions", user_id="ann", cursor="x"))[0] == 400
    assert (await api.ask("GET", "sessions", user_id="ann", status="asleep"))[0] == 422


async def test_a_cursor_of_a_bound_key_tells_nothing_and_works(api: Api) -> None:
    ids = ["short", "5b2e4c1a-7d3f-4e89-9a60-1c2d3e4f5a6b", "long" * 50, "other"]
    for session_id in ids:
        await api.tell("started", session_id)
    made = await api.scheduler.keys.create("ann's", "read-only", users=["ann"])
    api.headers = {"authorization": f"Bearer {made.token}"}
    seen: list[str] = []
    page: dict[str, Any] = {"next": None}
    while not seen or page["next"] is not None:
        cursor = {} if page["next"] is None else {"cursor": page["next"]}
        page = await api.data("GET", "sessions", user_id="ann", limit=1, **cursor)
        seen += [session["session_id"] for session in page["sessions"]]
        assert page["next"] is None or (page["next"].startswith("s1_") and "short" not in page["next"])
    assert seen == ids[::-1]


async def test_a_foreign_session_looks_like_none(api: Api) -> None:
    await api.tell("prompt", "secret", text="go", mem_cube_id="vault")
    await api.tell("prompt", "of-bob", text="go", user_id="bob", mem_cube_id="app")
    made = await api.scheduler.keys.create("app only", "user", users=["ann"], cubes=["app"])
    api.headers = {"authorization": f"Bearer {made.token}"}
    for method in ("GET", "DELETE"):
        refused = [
            await api.ask(method, f"sessions/{session_id}", user_id="ann")
            for session_id in ("secret", "of-bob", "never")
        ]
        assert [code for code, _, _ in refused] == [404, 404, 404]
        assert {
            message.replace(name, "x")
            for (_, message, _), name in zip(refused, ("secret", "of-bob", "never"), strict=True)
        } == {"there is no session 'x' of this user"}
        assert (await api.ask(method, "sessions/of-bob", user_id="bob"))[0] == 403
    assert await api.listed() == []
    assert await api.timeline(session_id="secret") == await api.timeline(session_id="never") == []
    api.headers = {}


async def test_a_foreign_session_cannot_be_changed(api: Api) -> None:
    await api.tell("prompt", "secret", text="go", mem_cube_id="vault")
    before = await api.session("secret")
    items = len(await api.scheduler.status("ann"))
    made = await api.scheduler.keys.create("app only", "user", users=["ann"], cubes=["app"])
    api.headers = {"authorization": f"Bearer {made.token}"}
    ids = {"user_id": "ann", "memorySessionId": "secret", "projectId": "app"}
    api.clock.advance(1)
    for event in ("started", "prompt", "answer", "summary", "ended", "failed"):
        refused = await api.ask("POST", "capture/session", {**ids, "event": event, "text": "x"})
        assert refused[:2] == (404, "there is no session 'secret' of this user")
    assert (await api.ask("POST", "capture/observation", {**SEEN, **ids}))[0] == 404
    assert len(await api.scheduler.status("ann")) == items
    end = {**ids, "at": api.clock.now(), "status": "failed", "reason": "x"}
    message = {"user_id": "ann", "mem_cube_id": "app", "label": "session_complete", "content": end}
    await api.data("POST", "scheduler/submit", {"messages": [message]})
    await api.scheduler.runtime.drain()
    api.headers = {"authorization": (await api.scheduler.keys.create("boss", "admin")).token}
    assert await api.session("secret") == before


async def test_a_session_ends_in_the_cube_in_which_it_began(api: Api) -> None:
    await api.tell("prompt", text="go")
    await api.tell("prompt", text="and there", mem_cube_id="site")
    await api.tell("ended", mem_cube_id="site")
    assert (await api.session())["status"] == "completed"
    assert (await api.session())["mem_cube_id"] == "app"


async def test_a_session_has_a_summary_in_each_cube(api: Api) -> None:
    for cube in ("app", "site"):
        await api.tell("summary", text=f"about the {cube}", mem_cube_id=cube)
    for cube in ("app", "site"):
        (text,) = await api.timeline(session_id="s1", mem_cube_id=cube)
        assert f"about the {cube}" in text
    assert {row.status for row in await api.scheduler.status("ann")} == {"completed"}


async def test_a_summary_with_a_former_id_keeps_it(api: Api) -> None:
    former = f"{derived_id('summary', 's1')}.0"
    old = Remember(memory_id=former, text="Request: tea", kind="summary", session_id="s1")
    await api.scheduler.runtime.store.change(("ann", "app"), [old])
    await api.tell("summary", text="about the app")
    await api.tell("summary", text="about the site", mem_cube_id="site")
    (memory,) = (await api.data("GET", "timeline", user_id="ann", session_id="s1", mem_cube_id="app"))[
        "memories"
    ]
    assert (memory["id"], "about the app" in memory["memory"]) == (former, True)
    assert len(await api.timeline(session_id="s1", mem_cube_id="site")) == 1


async def test_a_session_is_deleted_with_its_memories(api: Api) -> None:
    await api.tell("prompt", text="Tea, please")
    await api.observe(item_id="o1")
    await api.tell("prompt", "s2", text="Coffee, please")
    before = len(await api.timeline(session_id="s1"))
    assert before >= 2
    deleted = await api.data("DELETE", "sessions/s1", user_id="ann")
    assert deleted == {"session_id": "s1", "memories": before}
    assert await api.timeline(session_id="s1") == []
    assert await api.timeline(session_id="s2") == ["Coffee, please"]
    assert await api.listed() == ["s2"]
    assert (await api.ask("DELETE", "sessions/s1", user_id="ann"))[0] == 404


async def test_memories_of_a_conversation_that_no_agent_has_noted_are_deleted_too(api: Api) -> None:
    await api.scheduler.memory.add("I like tea", user_id="ann", session_id="chat")
    await api.scheduler.runtime.drain()
    assert (await api.ask("GET", "sessions/chat", user_id="ann"))[0] == 404
    assert (await api.data("DELETE", "sessions/chat", user_id="ann"))["memories"] == 1


# -- timelines -------------------------------------------------------------------------------------------


async def walk(api: Api, count: int = 5) -> None:
    """Let an agent do something again and again, a second apart."""
    for number in range(count):
        api.clock.advance(1)
        await api.observe(item_id=f"o{number}", title=f"Step {number}", filesRead=[f"/app/{number}.py"])
        await api.scheduler.runtime.drain()


async def test_a_timeline_of_a_session_around_a_memory_and_of_a_file(api: Api) -> None:
    await walk(api)
    steps = [f"Step {number}" for number in range(5)]
    assert await api.timeline(session_id="s1") == steps
    assert await api.timeline(session_id="s1", before=1, after=1) == steps[-3:]
    assert await api.timeline(around="o2.0", before=1, after=1) == steps[1:4]
    assert await api.timeline(around="o2.0", before=0, after=9) == steps[2:]
    assert await api.timeline(file="3.py") == await api.timeline(file="/app/3.py") == ["Step 3"]
    assert await api.timeline(file="/app/port.py") == steps
    assert await api.timeline(file="port.py", mem_cube_id="site") == []
    assert await api.timeline(session_id="s1", mem_cube_id="site") == []


async def test_a_timeline_fits_its_type(api: Api) -> None:
    await walk(api, 1)
    document = create_app(api.scheduler, run_worker=False).openapi()
    for path, query in (
        ("timeline", {"around": "o0.0"}),
        ("sessions", {}),
        ("sessions/{session_id}", {}),
    ):
        data = await api.data("GET", path.replace("{session_id}", "s1"), user_id="ann", **query)
        told = document["paths"][f"/product/{path}"]["get"]["responses"]["200"]
        schema = told["content"]["application/json"]["schema"]
        assert fits({"code": 200, "message": "ok", "data": data}, schema, document)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, 400),
        ({"session_id": "s1", "file": "a"}, 400),
        ({"around": "never"}, 404),
        ({"session_id": "s1", "before": 1001}, 422),
        ({"file": ""}, 422),
        ({"session_id": "x" * 600}, 400),
    ],
)
async def test_a_timeline_of_nothing_that_there_is_refused(
    api: Api, query: dict[str, Any], code: int
) -> None:
    assert (await api.ask("GET", "timeline", user_id="ann", **query))[0] == code


async def test_a_timeline_around_a_deleted_memory_says_so(api: Api) -> None:
    await walk(api, 1)
    await api.scheduler.memory.delete("o0.0", user_id="ann")
    assert (await api.ask("GET", "timeline", user_id="ann", around="o0.0"))[0] == 410
