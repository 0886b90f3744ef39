"""What the events of agents become: messages, and notes about their sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reverie.capture.hook_record import EVENTS, Captured, HookRecord, Project, captured
from reverie.observation import Observation, SessionContent, Summary, read_content
from reverie.turn import read_turns

AT = 1_800_000_000_123_456_789


def record(event: str, item_id: str = "a" * 32, **given: Any) -> HookRecord:
    fields = {name: given.pop(name) for name in ("cut", "context", "at") if name in given}
    return HookRecord(
        hook=1,
        item_id=item_id,
        agent="claude-code",
        event=event,
        at=fields.pop("at", AT),
        user_id="ann",
        project=Project(name="app", keys=("folder:/app",)),
        input={"session_id": "s", "hook_event_name": event, **given},
        **fields,
    )


def told(event: str, **given: Any) -> Captured:
    return captured(record(event, **given), "app-1")


def labels(one: Captured) -> list[str]:
    return [message.label for message in one.messages]


def test_a_prompt_of_a_person_is_added_and_asked() -> None:
    one = told("UserPromptSubmit", prompt="Fix  the\nbuild", prompt_id="p1")
    assert labels(one) == ["add", "query"]
    (turn,) = read_turns(one.messages[0].content)
    assert (turn.role, turn.content, turn.message_id) == ("user", "Fix  the\nbuild", "p1")
    assert json.loads(one.messages[1].content) == {"query": "Fix  the\nbuild", "session_id": "s"}
    assert (one.note.prompt, one.note.at) == ("Fix the build", AT // 1_000_000)
    assert {message.mem_cube_id for message in one.messages} == {"app-1"}
    assert {message.timestamp.microsecond for message in one.messages} == {123_000}


@pytest.mark.parametrize("source", ["system", "loop_wakeup", "schedule_wakeup", "poll_event"])
def test_a_prompt_that_no_person_wrote_is_marked(source: str) -> None:
    one = told("UserPromptSubmit", prompt="wake up", source=source)
    assert labels(one) == ["add"]
    (turn,) = read_turns(one.messages[0].content)
    assert (turn.role, turn.type) == ("system", "system")
    assert one.messages[0].info["source"] == source
    assert one.note.prompt is None


@pytest.mark.parametrize("source", ["user", "sdk"])
def test_words_of_a_person_come_from_user_and_sdk(source: str) -> None:
    assert labels(told("UserPromptSubmit", prompt="go", source=source)) == ["add", "query"]


@pytest.mark.parametrize("prompt", ["I prefer tabs", "please never push", "我喜欢简洁的代码"])
def test_what_is_about_the_person_goes_to_their_own_cube_too(prompt: str) -> None:
    one = told("UserPromptSubmit", prompt=prompt)
    assert labels(one) == ["add", "query", "pref_add"]
    assert one.messages[2].mem_cube_id == "ann"


def test_an_answer_is_added_kept_with_its_query_and_summed_up() -> None:
    one = told("Stop", last_assistant_message="Done.", prompt_id="p1")
    assert labels(one) == ["add", "answer", "summary"]
    assert read_turns(one.messages[0].content)[0].role == "assistant"
    assert json.loads(one.messages[1].content) == {"answer": "Done."}
    assert (one.messages[2].due - one.messages[2].timestamp).total_seconds() == 2
    assert labels(told("Stop")) == ["summary"]


def test_an_error_of_the_provider_is_never_an_answer() -> None:
    one = told("StopFailure", error="overloaded", last_assistant_message="API Error: 529")
    assert labels(one) == []
    assert one.note.session_id == "s"


def test_a_call_of_a_tool_is_an_observation() -> None:
    one = told(
        "PostToolUse",
        tool_name="Edit",
        tool_input={"file_path": "/app/a.py"},
        tool_response={"ok": True},
        tool_use_id="t1",
        agent_id="sub-1",
        agent_type="Explore",
        cut=("tool_response",),
    )
    seen = read_content(one.messages[0].content, Observation)
    assert (seen.memory_session_id, seen.project_id, seen.type) == ("s", "app-1", "Edit")
    assert seen.tool.input == {"file_path": "/app/a.py"}
    assert (seen.tool.tool_use_id, seen.tool.agent_id, seen.cut) == ("t1", "sub-1", ("tool_response",))
    assert one.messages[0].info == {"agent_id": "claude-code", "subagent": "Explore", "subagent_id": "sub-1"}
    raw = json.loads(one.messages[0].content)
    assert (raw["memorySessionId"], raw["projectId"]) == ("s", "app-1")


def test_of_a_batch_and_its_single_calls_the_first_wins() -> None:
    call = {"tool_name": "Read", "tool_input": {"file_path": "/a"}, "tool_use_id": "t1"}
    single = told("PostToolUse", **call, tool_response="x")
    batch = told(
        "PostToolBatch", tool_calls=[call, {**call, "tool_use_id": "t2"}, "no call"], item_id="b" * 32
    )
    assert labels(batch) == ["observation", "observation"]
    assert batch.messages[0].item_id == single.messages[0].item_id
    assert batch.messages[1].item_id != single.messages[0].item_id


def test_calls_of_a_batch_that_have_no_ids_are_all_kept() -> None:
    calls = [{"tool_name": "Read", "tool_input": {"file_path": path}} for path in ("/a", "/b")]
    batch = told("PostToolBatch", tool_calls=calls)
    assert len({message.item_id for message in batch.messages}) == 2


def test_a_failed_call_says_why() -> None:
    one = told("PostToolUseFailure", tool_name="Bash", tool_input={"command": "x"}, error="no such file")
    assert read_content(one.messages[0].content, Observation).tool.error == "no such file"


def test_a_retried_hook_is_the_same_message_and_another_is_not() -> None:
    again = [told("UserPromptSubmit", prompt="yes", prompt_id="p1", item_id=c * 32) for c in "ab"]
    assert again[0].messages[0].item_id == again[1].messages[0].item_id
    other = [told("UserPromptSubmit", prompt="yes", item_id=c * 32) for c in "ab"]
    assert other[0].messages[0].item_id != other[1].messages[0].item_id
    steered = [told("UserPromptSubmit", prompt=text, turn_id="t1") for text in ("go", "stop")]
    assert steered[0].messages[0].item_id != steered[1].messages[0].item_id
    ended = {"agent_id": "a1", "last_assistant_message": "Found it."}
    found = [told("SubagentStop", **ended, item_id=c * 32) for c in "ab"]
    assert found[0].messages[0].item_id == found[1].messages[0].item_id
    answers = [told("Stop", last_assistant_message=text, prompt_id="p1") for text in ("one", "two")]
    assert answers[0].messages[0].item_id != answers[1].messages[0].item_id


def test_a_session_begins_and_ends() -> None:
    begin = told("SessionStart", source="startup", context="facts")
    assert labels(begin) == ["session_init"]
    assert read_content(begin.messages[0].content, SessionContent).agent == "claude-code"
    assert (begin.note.context, begin.note.is_end) == ("facts", False)
    for reason in ("clear", "resume", "logout", "prompt_input_exit", "other"):
        end = told("SessionEnd", reason=reason)
        assert labels(end) == ["summary", "session_complete"]
        assert read_content(end.messages[1].content, SessionContent).status == "completed"
        assert end.note.is_end


def test_the_summary_of_a_compaction_is_kept_word_for_word() -> None:
    one = told("PostCompact", compact_summary="We fixed the build.", trigger="auto")
    assert labels(one) == ["summary"]
    assert read_content(one.messages[0].content, Summary).text == "We fixed the build."
    assert labels(told("PreCompact", trigger="auto")) == ["summary"]


def test_a_subagents_answer_belongs_to_its_session() -> None:
    one = told("SubagentStop", last_assistant_message="Found it.", agent_id="sub", agent_type="Explore")
    assert labels(one) == ["add"]
    assert read_turns(one.messages[0].content)[0].name == "Explore"
    assert one.messages[0].session_id == "s"


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_touches_its_session_whatever_its_input_is(event: str) -> None:
    for value in (None, 5, [], {"a": 1}, "", "text"):
        names = (
            "prompt",
            "tool_calls",
            "tool_name",
            "tool_input",
            "last_assistant_message",
            "source",
            "reason",
        )
        one = captured(record(event, **dict.fromkeys(names, value)), "app-1")
        assert one.note.session_id == "s"
    assert told(event).note.mem_cube_id == "app-1"


def test_an_agent_that_names_no_session_has_the_default_one() -> None:
    one = captured(record("Stop", session_id=None), "app-1")
    assert one.note.session_id == "default_session"
