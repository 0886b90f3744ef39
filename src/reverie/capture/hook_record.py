"""The record that a hook leaves in the spool, and the messages that it becomes.

A hook writes what its agent has told, without private parts and secrets, and ends. What that means is decided
here, in the worker: `EVENTS` is the one table of event → messages.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.memory.sessions import SessionNote
from reverie.message import Message, derived_id
from reverie.observation import Observation, SessionContent, Summary, ToolCall, write_content
from reverie.turn import DEFAULT_SESSION, Turn, write_turns

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EVENTS", "Captured", "HookRecord", "Project", "captured"]

SUMMARY_AFTER_S = 2.0
"""Seconds after a stop until its summary is made. Of a burst of stops, only the first finds anything new."""
LONGEST_TITLE = 120
"""How many characters of the first prompt the title of a session has."""
ABOUT_PERSON = re.compile(
    r"\bI (?:always |never |usually |really |would )?(?:prefer|like|love|hate|dislike|want you)\b"
    r"|\bI (?:do not|don't) (?:like|want)\b|\bplease (?:always|never)\b|\b(?:always|never) use\b"
    r"|\bmy name is\b|\bcall me\b|我(?:更)?(?:喜欢|偏好|讨厌|不喜欢)|请(?:总是|不要|别)",
    re.IGNORECASE,
)
"""Words by which a prompt tells something of the person: it goes to the person's own cube, too."""
PERSON = frozenset({"user", "sdk"})
"""The sources of prompts that a person wrote. A prompt that names no source is a person's, too."""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """The project of a hook's folder: its name, and the keys that identify it, the strongest first."""

    name: str
    keys: tuple[str, ...]


class HookRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one hook has written. `hook` is the version of this form."""

    hook: int
    item_id: str
    agent: str
    event: str
    at: int
    """When the hook began, in nanoseconds since the epoch."""
    user_id: str
    project: Project
    cwd: str = ""
    context: str | None = None
    """The context that the hook has given to the agent."""
    cut: tuple[str, ...] = ()
    """The fields of `input` that were too long."""
    input: dict[str, Any]

    @property
    def session_id(self) -> str:
        """The conversation; agents always name it."""
        return _text(self.input.get("session_id")) or DEFAULT_SESSION

    @property
    def at_ms(self) -> int:
        """When the hook began, in epoch milliseconds."""
        return self.at // 1_000_000

    @property
    def moment(self) -> datetime:
        """When the hook began."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Captured(NamedTuple):
    """What a record becomes: messages in order, and the note about its session, if it leaves one."""

    messages: tuple[Message, ...]
    note: SessionNote | None


class _Maker:
    """Makes the messages of one record, in the cube of its project."""

    def __init__(self, record: HookRecord, cube: str) -> None:
        self.record = record
        self.input = record.input
        self.cube = cube
        self.turn = _text(self.input.get("prompt_id")) or _text(self.input.get("turn_id"))

    def message(self, label: str, content: str, *identity: str | None, **fields: Any) -> Message:
        """A message whose id derives from what it is about; without an identity, from the record itself.

        Of two hooks that tell the same, such as a retried one, the first wins.
        """
        record = self.record
        parts = identity if identity and None not in identity else (record.item_id,)
        return Message(
            user_id=record.user_id,
            mem_cube_id=record.user_id if label == "pref_add" else self.cube,
            label=label,
            content=content,
            item_id=derived_id("hook", record.user_id, record.session_id, label, *parts),
            session_id=record.session_id,
            info=self._info(),
            timestamp=record.moment,
            **fields,
        )

    def add(self, text: str, role: str, *identity: str | None, name: str | None = None) -> Message:
        """The message that remembers what was said."""
        turn = Turn(
            content=text,
            role=role,
            name=name,
            chat_time=self.record.moment.isoformat(timespec="milliseconds"),
            message_id=self.turn,
            type="system" if role == "system" else "chat",
        )
        return self.message("add", write_turns([turn]), *identity)

    def observation(self, call: dict[str, Any], number: int = 0) -> Message:
        """The message about one call of a tool, which is the call of this number in its record."""
        use_id = _text(call.get("tool_use_id"))
        error = _text(call.get("error"))
        if error is None and call.get("is_interrupt"):
            error = "interrupted"
        tool = ToolCall(
            name=_text(call.get("tool_name")) or "tool",
            input=call.get("tool_input"),
            response=call.get("tool_response"),
            error=error,
            tool_use_id=use_id,
            agent_id=_text(self.input.get("agent_id")),
        )
        content = Observation(
            memory_session_id=self.record.session_id,
            project_id=self.cube,
            type=tool.name,
            tool=tool,
            cut=self.record.cut,
        )
        identity = ("tool", use_id) if use_id else (self.record.item_id, str(number))
        return self.message("observation", write_content(content), *identity)

    def summary(self) -> Message:
        """The message that asks for a summary of the session."""
        content = Summary(memory_session_id=self.record.session_id, project_id=self.cube)
        due = self.record.moment + timedelta(seconds=SUMMARY_AFTER_S)
        return self.message("summary", write_content(content), due=due)

    def session(self, label: str, **fields: Any) -> Message:
        """The message about the begin or the end of the session."""
        content = SessionContent(
            memory_session_id=self.record.session_id,
            project_id=self.cube,
            at=self.record.at_ms,
            agent=self.record.agent,
            **fields,
        )
        return self.message(label, write_content(content))

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"agent_id": self.record.agent}
        for name in ("agent_type", "source"):
            if value := _text(self.input.get(name)):
                info[{"agent_type": "subagent"}.get(name, name)] = value
        if subagent := _text(self.input.get("agent_id")):
            info["subagent_id"] = subagent
        return info


def _session_start(make: _Maker) -> list[Message]:
    return [make.session("session_init", reason=_text(make.input.get("source")))]


def _prompt(make: _Maker) -> list[Message]:
    text = _text(make.input.get("prompt"))
    if text is None:
        return []
    identity = ("prompt", make.turn, derived_id(text))  # a turn of Codex may have several prompts
    if not _is_of_person(make.record):
        return [make.add(text, "system", *identity)]
    asked = msgspec.json.encode({"query": text, "session_id": make.record.session_id}).decode()
    messages = [make.add(text, "user", *identity), make.message("query", asked, *identity)]
    if ABOUT_PERSON.search(text):
        messages.append(make.message("pref_add", messages[0].content, *identity))
    return messages


def _tool(make: _Maker) -> list[Message]:
    return [make.observation(make.input)]


def _tools(make: _Maker) -> list[Message]:
    calls = make.input.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [make.observation(call, number) for number, call in enumerate(calls) if isinstance(call, dict)]


def _stop(make: _Maker) -> list[Message]:
    text = _text(make.input.get("last_assistant_message"))
    if text is None:
        return [make.summary()]
    identity = ("answer", make.turn, derived_id(text))
    answered = msgspec.json.encode({"answer": text}).decode()
    said = make.add(text, "assistant", *identity)
    return [said, make.message("answer", answered, *identity), make.summary()]


def _subagent_stop(make: _Maker) -> list[Message]:
    text = _text(make.input.get("last_assistant_message"))
    if text is None:
        return []
    identity = ("subagent", _text(make.input.get("agent_id")), derived_id(text))
    return [make.add(text, "assistant", *identity, name=_text(make.input.get("agent_type")))]


def _pre_compact(make: _Maker) -> list[Message]:
    return [make.summary()]


def _post_compact(make: _Maker) -> list[Message]:
    text = _text(make.input.get("compact_summary"))
    if text is None:
        return []
    content = Summary(
        memory_session_id=make.record.session_id, project_id=make.cube, type="compact", text=text
    )
    return [make.message("summary", write_content(content), "compact", derived_id(text))]


def _session_end(make: _Maker) -> list[Message]:
    reason = _text(make.input.get("reason"))
    return [make.summary(), make.session("session_complete", reason=reason)]


def _nothing(_: _Maker) -> list[Message]:
    return []


EVENTS: dict[str, Callable[[_Maker], list[Message]]] = {
    "SessionStart": _session_start,
    "UserPromptSubmit": _prompt,
    "PostToolUse": _tool,
    "PostToolUseFailure": _tool,
    "PostToolBatch": _tools,
    "SubagentStart": _nothing,
    "SubagentStop": _subagent_stop,
    "Stop": _stop,
    "StopFailure": _nothing,  # its last_assistant_message is the text of an error, and no answer
    "PreCompact": _pre_compact,
    "PostCompact": _post_compact,
    "SessionEnd": _session_end,
    "CwdChanged": _nothing,
}
"""Event → the function that makes its messages. Every event touches its session, whatever it becomes."""


def captured(record: HookRecord, cube: str) -> Captured:
    """What a record becomes in the cube of its project."""
    make = _Maker(record, cube)
    messages = tuple(EVENTS.get(record.event, _nothing)(make))
    prompt = _text(record.input.get("prompt")) if record.event == "UserPromptSubmit" else None
    if prompt is not None and not _is_of_person(record):
        prompt = None
    return Captured(
        messages,
        SessionNote(
            user_id=record.user_id,
            session_id=record.session_id,
            mem_cube_id=cube,
            at=record.at_ms,
            agent=record.agent,
            prompt=None if prompt is None else " ".join(prompt.split())[:LONGEST_TITLE],
            is_end=record.event == "SessionEnd",
            context=record.context if record.event == "SessionStart" else None,
            items={f"{message.mem_cube_id}/{message.label}": message.item_id for message in messages},
        ),
    )


def _is_of_person(record: HookRecord) -> bool:
    return (_text(record.input.get("source")) or "user") in PERSON


def _text(value: Any) -> str | None:
    """A text that says something; anything else is None."""
    return value if isinstance(value, str) and value.strip() else None
