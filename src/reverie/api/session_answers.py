"""What a client gets that asks about sessions of agents, or captures what an agent does."""

from __future__ import annotations

from typing import Literal, TypedDict

from reverie.api.answers import FoundMemory
from reverie.memory.sessions import SessionStatus

__all__ = [
    "AgentSession",
    "CapturedMessage",
    "DeletedSession",
    "ListedSessions",
    "Timeline",
    "TimelineMemory",
]


class AgentSession(TypedDict):
    """One conversation of an agent. Times are milliseconds since 1970."""

    user_id: str
    session_id: str
    mem_cube_id: str
    status: SessionStatus
    agent: str | None
    title: str | None
    """The beginning of the first prompt."""
    prompts: int
    created_at: int
    updated_at: int
    """When its last hook ran."""
    ended_at: int | None
    """When the agent has reported the end; null if it has not, or if a later hook has come."""
    completed_at: int | None
    """When its status became completed or failed."""
    error: str | None
    """Why it has failed; `timeout` if it was not heard of for too long."""


class ListedSessions(TypedDict):
    """Sessions of a user, the one with the latest hook first."""

    sessions: list[AgentSession]
    next: str | None


class DeletedSession(TypedDict):
    """A session that was deleted."""

    session_id: str
    memories: int
    """How many memories of the session were deleted with it."""


class TimelineMemory(FoundMemory):
    """A memory in a timeline. An observation also has a title, a narrative, facts and concepts."""

    type: str | None
    """A finer kind, such as the tool that an observation is about."""
    title: str | None
    narrative: str | None
    facts: list[str]
    concepts: list[str]


class Timeline(TypedDict):
    """Memories in the order in which they were learned, oldest first."""

    memories: list[TimelineMemory]


class CapturedMessage(TypedDict):
    """The first message that was made of what was captured."""

    item_id: str
    status: Literal["accepted", "duplicate", "spooled"]
