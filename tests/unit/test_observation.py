"""Observations: what the rules say of each tool, and when the language model is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reverie import AsyncScheduler, Message
from reverie.backends.moves import Status
from reverie.base.clock import from_epoch_ms
from reverie.handlers.observation_rules import describe
from reverie.observation import Observation, ToolCall, write_content
from reverie.settings import load_settings
from reverie.testing import ManualClock
from support.scripted_model import ScriptedModel, scripted
from support.tidier import tidy

PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Add File: b.py\n*** End Patch"


@pytest.mark.parametrize(
    ("name", "given", "title"),
    [
        ("Read", {"file_path": "/a.py"}, "Read /a.py"),
        ("Write", {"file_path": "/a.py", "content": "x"}, "Wrote /a.py"),
        ("Edit", {"file_path": "/a.py", "old_string": "x", "new_string": "y"}, "Edited /a.py"),
        ("NotebookEdit", {"notebook_path": "/n.ipynb"}, "Edited /n.ipynb"),
        ("Bash", {"command": "make\n  test"}, "Ran: make test"),
        ("shell", {"command": ["bash", "-lc", "ls -l"]}, "Ran: ls -l"),
        ("exec_command", {"cmd": "pwd"}, "Ran: pwd"),
        ("apply_patch", {"input": PATCH}, "Edited src/a.py and 1 more"),
        ("Grep", {"pattern": "def x", "path": "src"}, "Searched for def x in src"),
        ("Glob", {"pattern": "*.py"}, "Searched for *.py"),
        ("WebSearch", {"query": "tea"}, "Searched for tea"),
        ("WebFetch", {"url": "http://h/p", "prompt": "sum up"}, "Fetched http://h/p"),
        ("Task", {"description": "Look around", "prompt": "…"}, "Subagent: Look around"),
        ("LS", {"path": "/src"}, "Listed /src"),
        ("mcp__mail__send", {"to": "bob"}, "mcp__mail__send: bob"),
        ("TodoWrite", {"todos": []}, "Used TodoWrite"),
        ("Odd", None, "Used Odd"),
        ("Odd", "text", "Used Odd"),
    ],
)
def test_the_title_says_what_was_done(name: str, given: Any, title: str) -> None:
    told = describe(ToolCall(name=name, input=given, response="SPEAK TO THE NEXT AGENT"))
    assert told.title == title
    assert "SPEAK" in told.narrative


def test_files_that_were_read_and_changed_are_told_apart() -> None:
    assert describe(ToolCall(name="Read", input={"file_path": "/a"})).files_read == ("/a",)
    told = describe(ToolCall(name="apply_patch", input={"input": PATCH}))
    assert (told.files_read, told.files_modified) == ((), ("src/a.py", "b.py"))


def test_failures_and_exit_codes_are_facts() -> None:
    told = describe(ToolCall(name="Bash", input={"command": "x"}, error="not found"))
    assert (told.title, told.concepts) == ("Failed: Ran: x", ("failure",))
    assert told.facts == ("The call failed: not found",)
    told = describe(ToolCall(name="Bash", input={"command": "x"}, response={"exit_code": 2, "stdout": "no"}))
    assert (told.facts, told.narrative) == (("The command ended with exit code 2",), "Result: no")


@pytest.mark.parametrize("response", [None, 5, [], {}, [1, {"a": "b"}], {"stdout": 5}, "x" * 100_000])
def test_every_response_is_described(response: Any) -> None:
    assert len(describe(ToolCall(name="Bash", input={"command": "x"}, response=response)).narrative) < 700


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as serving:
        serving.answers = tidy
        yield serving


class Desk:
    def __init__(self, scheduler: AsyncScheduler, clock: ManualClock) -> None:
        self.scheduler, self.clock = scheduler, clock

    async def see(self, item_id: str, *, age_s: float = 0, content: str | None = None) -> None:
        tool = ToolCall(name="Read", input={"file_path": f"/{item_id}"})
        seen = Observation(memory_session_id="s", type="Read", tool=tool)
        made = from_epoch_ms(self.clock.now()) - timedelta(seconds=age_s)
        message = Message(
            user_id="ann",
            label="observation",
            content=write_content(seen) if content is None else content,
            item_id=item_id,
            session_id="s",
            timestamp=made,
        )
        await self.scheduler.submit_messages([message])

    async def titles(self) -> list[str]:
        await self.scheduler.runtime.drain()
        page = await self.scheduler.memory.page(user_id="ann", kinds=["observation"])
        return sorted(item.title or "" for item in page.items)


@pytest.fixture
async def desk(tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Desk]:
    clock = ManualClock()
    settings = load_settings(
        data_dir=tmp_path,
        llm={"preset": "custom", "url": model.url, "model": "m", "api_key": "k"},
        capture={"observation_tokens_per_hour": 1500},
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await scheduler.open()
    yield Desk(scheduler, clock)
    await scheduler.stop()


async def test_a_model_describes_what_was_seen_and_the_rule_title_stays(desk: Desk) -> None:
    await desk.see("a")
    assert await desk.titles() == ["The model saw Read"]
    (item,) = (await desk.scheduler.memory.page(user_id="ann", kinds=["observation"])).items
    assert item.info["rule_title"] == "Read /a"


async def test_no_more_is_spent_in_an_hour_than_allowed(desk: Desk, model: ScriptedModel) -> None:
    for number in range(12):
        await desk.see(f"{number:02}")
    titles = await desk.titles()
    assert len(titles) == 12
    calls = model.calls
    assert 0 < calls < 12
    assert titles.count("The model saw Read") == calls
    desk.clock.advance(3600)
    await desk.see("later")
    assert "Read /later" not in await desk.titles()
    assert model.calls == calls + 1


async def test_nothing_is_spent_for_a_session_that_ended_long_ago(desk: Desk, model: ScriptedModel) -> None:
    await desk.see("old", age_s=3700)
    assert await desk.titles() == ["Read /old"]
    assert model.calls == 0


async def test_one_bad_observation_fails_alone(desk: Desk) -> None:
    await desk.see("good")
    await desk.see("bad", content=json.dumps({"title": 5}))
    await desk.see("fine")
    assert len(await desk.titles()) == 2
    states = {row.item_id: row.status for row in await desk.scheduler.status("ann")}
    assert states == {"good": Status.COMPLETED, "bad": Status.FAILED, "fine": Status.COMPLETED}
