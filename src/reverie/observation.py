"""What is captured of an agent's work: observations, summaries, and the begin and end of sessions.

Each class here is the content of one label. It writes that content and reads it, in the names that clients
send: memorySessionId, projectId, filesRead and so on.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from reverie.failures import InvalidWorkError

__all__ = ["Observation", "SessionContent", "Summary", "ToolCall", "read_content", "write_content"]

Content = TypeVar("Content", bound="_Content")


class _Content(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What all of these contents have in common."""

    memory_session_id: str
    project_id: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One call of a tool, as the agent's hook has reported it, without private parts and secrets."""

    name: str
    input: Any = None
    response: Any = None
    error: str | None = None
    """Why the call failed; None: it did not."""
    tool_use_id: str | None = None
    agent_id: str | None = None
    """The subagent that made the call; None: the agent itself."""


class Observation(_Content, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something that an agent did or saw. Without a title, the worker makes one from the call of the tool."""

    type: str = "observation"
    """The tool, or a word of the client's own."""
    title: str = ""
    narrative: str = ""
    facts: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    files_read: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()
    tool: ToolCall | None = None
    cut: tuple[str, ...] = ()
    """The parts of the tool's call that were cut because the input of the hook was too long."""


class Summary(_Content, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A summary of a session. Fields that are empty are made from what the session holds."""

    type: Literal["stop", "compact", "given"] = "stop"
    request: str = ""
    investigated: str = ""
    learned: str = ""
    completed: str = ""
    next_steps: str = ""
    text: str = ""
    """A summary that the agent itself has written, word for word."""

    @property
    def is_given(self) -> bool:
        """Whether the client brings the summary itself."""
        return any(
            (self.request, self.investigated, self.learned, self.completed, self.next_steps, self.text)
        )


class SessionContent(_Content, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The begin or the end of a session."""

    at: int = 0
    """When the agent has reported it, in epoch milliseconds; 0: when the message was made."""
    agent: str | None = None
    status: Literal["completed", "failed"] = "completed"
    """How the session has ended; only a client of its own says failed."""
    reason: str | None = None


def write_content(content: _Content) -> str:
    """The content of a message as JSON."""
    return msgspec.json.encode(content).decode()


def read_content(text: str, kind: type[Content]) -> Content:
    """The content of a message; `InvalidWorkError` if it is not of this kind."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidWorkError(f"the content of the message is wrong: {error}") from error
