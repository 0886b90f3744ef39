"""The request socket of a worker: what hooks ask, what they are told, who serves it."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reverie import AsyncScheduler
from reverie.capture.context_server import ContextServer
from reverie.capture.hook_input import BadCallError
from reverie.capture.hook_log import log_error
from reverie.capture.protocol import LARGEST_FRAME, ask_context, socket_path
from reverie.memory.sessions import SessionNote
from reverie.observe.alert import Alert
from reverie.observe.rules import BUDGET_SPENT
from reverie.settings import load_settings
from support.living import until

PROJECT = {"name": "app", "keys": ["remote:host/app", "folder:/app"]}


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[AsyncScheduler]:
    opened = AsyncScheduler(settings=load_settings(data_dir=tmp_path, spool={"look_s": 3600}))
    await opened.open()
    yield opened
    await opened.stop()


@asynccontextmanager
async def serving(scheduler: AsyncScheduler) -> AsyncIterator[ContextServer]:
    server = scheduler.runtime.context_server
    await server.start()
    path = Path(socket_path(str(scheduler.runtime.settings.data_dir)))
    await until(path.exists)
    try:
        yield server
    finally:
        await server.stop(5)


async def ask(scheduler: AsyncScheduler, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(
        socket_path(str(scheduler.runtime.settings.data_dir)), limit=LARGEST_FRAME
    )
    writer.write(line + b"\n")
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def context(event: str = "SessionStart", **given: Any) -> bytes:
    asked = {"v": 1, "ask": "context", "event": event, "user_id": "ann", "session_id": "s", "agent": "codex"}
    return json.dumps({**asked, "project": PROJECT, **given}).encode()


async def remember(scheduler: AsyncScheduler, text: str) -> str:
    cube = await scheduler.runtime.door.sessions.project_cube("ann", PROJECT["keys"], "app")
    await scheduler.memory.add(text, user_id="ann", mem_cube_id=cube, session_id="earlier")
    await scheduler.runtime.drain()
    return cube


async def test_a_prompt_is_told_what_is_remembered(scheduler: AsyncScheduler) -> None:
    await remember(scheduler, "The login token lives for ten minutes")
    async with serving(scheduler):
        answer = json.loads(await ask(scheduler, context("UserPromptSubmit", prompt="login token")))
        assert "The login token lives for ten minutes" in answer["context"]
        assert (answer["v"], answer["notice"]) == (1, None)
        foreign = json.loads(
            await ask(scheduler, context("UserPromptSubmit", prompt="login token", user_id="bob"))
        )
        assert foreign["context"] == ""
        other = {"name": "x", "keys": ["folder:/x"]}
        answer = json.loads(
            await ask(scheduler, context("UserPromptSubmit", prompt="login token", project=other))
        )
        assert answer["context"] == ""


async def test_the_client_of_hooks_understands_the_answer(scheduler: AsyncScheduler) -> None:
    await remember(scheduler, "The login token lives for ten minutes")
    async with serving(scheduler):
        asked = json.loads(context("UserPromptSubmit", prompt="login token of a half \ud800"))
        answer = await asyncio.to_thread(ask_context, str(scheduler.runtime.settings.data_dir), asked, 10_000)
        assert "ten minutes" in answer.context


@pytest.mark.parametrize("source", ["resume", "compact"])
async def test_a_session_that_goes_on_is_told_the_same(scheduler: AsyncScheduler, source: str) -> None:
    note = SessionNote(user_id="ann", session_id="s", mem_cube_id="app", at=1, context="as it was")
    await scheduler.runtime.door.note([note])
    async with serving(scheduler):
        assert json.loads(await ask(scheduler, context(source=source)))["context"] == "as it was"
        assert json.loads(await ask(scheduler, context(source="startup")))["context"] == ""


async def test_a_session_that_was_told_nothing_is_told_nothing_again(scheduler: AsyncScheduler) -> None:
    first = SessionNote(user_id="ann", session_id="s", mem_cube_id="app", at=1, context="")
    await scheduler.runtime.door.note([first, msgspec.structs.replace(first, at=2, context="another one")])
    cube = await scheduler.runtime.door.sessions.project_cube("ann", PROJECT["keys"], "app")
    await scheduler.capture.observation(user_id="ann", session_id="t", mem_cube_id=cube, title="Edited a.py")
    await scheduler.runtime.drain()
    async with serving(scheduler):
        assert "Edited a.py" in json.loads(await ask(scheduler, context(source="startup")))["context"]
        assert json.loads(await ask(scheduler, context(source="resume")))["context"] == ""


@pytest.mark.parametrize(
    ("rule", "is_told"), [("breaker_open", True), (BUDGET_SPENT, True), ("pending", False)]
)
async def test_the_next_session_is_told_what_keeps_memory_from_working(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch, rule: str, is_told: bool
) -> None:
    alert = Alert(rule=rule, level="error", subject="mem_read", message="mem_read rests", remedy="Pay")

    async def look() -> tuple[None, list[Alert]]:
        return None, [alert]

    monkeypatch.setattr(scheduler.runtime.watcher, "look", look)
    async with serving(scheduler):
        notice = json.loads(await ask(scheduler, context()))["notice"]
    assert notice == ("Reverie: mem_read rests. Pay" if is_told else None)


async def test_an_error_of_a_hook_is_told_to_the_next_session(scheduler: AsyncScheduler) -> None:
    folder = str(scheduler.runtime.settings.data_dir)
    log_error(folder, "Stop", BadCallError("the input is empty"), "the hook could not do its work")
    log_error(folder, "Stop", TimeoutError(), "no context from a worker")
    async with serving(scheduler):
        notice = json.loads(await ask(scheduler, context()))["notice"]
    assert notice == "Reverie: a hook failed: Stop: the hook could not do its work (the input is empty)"


async def test_a_look_makes_the_ingester_look(scheduler: AsyncScheduler) -> None:
    async with serving(scheduler):
        assert await ask(scheduler, b'{"v": 1, "ask": "look"}') == b""
        assert scheduler.runtime.ingester._asked.is_set()


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"no json", b"[1]", b'{"v": 2, "ask": "context"}', b'{"v": 1, "ask": "what"}', b"\xff\xfe",
     b'{"v": 1, "ask": "context"}', b"x" * (LARGEST_FRAME + 10)],
    ids=["empty", "object", "words", "list", "version", "question", "bytes", "no project", "long"],
)  # fmt: skip
async def test_what_is_no_request_is_not_answered_and_harms_nobody(
    scheduler: AsyncScheduler, line: bytes
) -> None:
    async with serving(scheduler):
        assert await ask(scheduler, line) == b""
        assert json.loads(await ask(scheduler, context()))["v"] == 1


async def test_one_process_serves_and_another_takes_over(scheduler: AsyncScheduler, tmp_path: Path) -> None:
    second = AsyncScheduler(settings=load_settings(data_dir=tmp_path, spool={"look_s": 3600}))
    await second.open()
    try:
        async with serving(scheduler):
            await second.runtime.context_server.start()
            await ask(scheduler, b'{"v": 1, "ask": "look"}')
            assert (scheduler.runtime.context_server.asked, second.runtime.context_server.asked) == (1, 0)
        await until(Path(socket_path(str(tmp_path))).exists)
        await ask(scheduler, b'{"v": 1, "ask": "look"}')
        assert second.runtime.context_server.asked == 1
    finally:
        await second.stop()


async def test_a_file_in_the_place_of_the_socket_is_replaced(
    scheduler: AsyncScheduler, tmp_path: Path
) -> None:
    (tmp_path / "worker.sock").write_text("left over")
    async with serving(scheduler):
        await until((tmp_path / "worker.sock").is_socket)
        assert stat.S_IMODE((tmp_path / "worker.sock").stat().st_mode) == 0o600
    assert not (tmp_path / "worker.sock").exists()


async def test_blocks_are_left_in_files_that_only_their_user_can_read(
    scheduler: AsyncScheduler, tmp_path: Path
) -> None:
    cube = await remember(scheduler, "I prefer tabs")
    await scheduler.capture.session(
        "summary", user_id="ann", session_id="t", mem_cube_id=cube, text="We use tabs."
    )
    await scheduler.runtime.drain()
    server = scheduler.runtime.context_server
    server.noted(SessionNote(user_id="ann", session_id="s", mem_cube_id=cube, at=1, context="given"))
    await server.write_blocks()
    files = {path.name: path for path in (tmp_path / "context").iterdir()}
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert stat.S_IMODE((tmp_path / "context").stat().st_mode) == 0o700
    (session,) = (path for name, path in files.items() if name.startswith("session-"))
    assert session.read_text() == "given"
    blocks = {path.read_text() for name, path in files.items() if not name.startswith("session-")}
    assert len(blocks) == 1
    assert "We use tabs." in blocks.pop()
