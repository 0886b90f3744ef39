"""Sessions: the conversations of agents, from their first hook to their end.

A session is `created` by its first hook, `active` from the first prompt on, and ends `completed` or `failed`.
Any later hook makes it active again. Every hook is noted, and the time of the last one tells whether the
session still lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.item import MemoryItem

__all__ = ["KeepsSessions", "Session", "SessionNote", "SessionPage", "SessionQuery", "SessionStatus"]

SessionStatus = Literal["created", "active", "completed", "failed"]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of an agent. Times are epoch milliseconds."""

    user_id: str
    session_id: str
    mem_cube_id: str
    status: SessionStatus
    agent: str | None = None
    title: str | None = None
    """The beginning of the first prompt."""
    prompts: int = 0
    created_at: int = 0
    updated_at: int = 0
    """When its last hook ran."""
    ended_at: int | None = None
    """When the agent has reported the end; None if a later hook has come, or no end."""
    completed_at: int | None = None
    """When its status became completed or failed."""
    error: str | None = None
    context: str | None = None
    """The context that the agent was given at the begin; a resumed session gets the same."""
    last_items: dict[str, str] = {}
    """Label → the last message of that label that belongs to the session."""


class SessionNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one hook, or one call of a client, tells about its session."""

    user_id: str
    session_id: str
    mem_cube_id: str
    at: int
    """When the hook ran, in epoch milliseconds."""
    agent: str | None = None
    prompt: str | None = None
    """What a person has said, shortened; None if it was no prompt of a person."""
    is_end: bool = False
    context: str | None = None
    items: dict[str, str] = {}
    """Label → message that the hook has brought."""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions of a user to list, the one with the latest hook first."""

    user_id: str
    mem_cube_id: str | None = None
    status: SessionStatus | None = None
    after: str | None = None
    """The `next` of the page before."""
    limit: int = 50


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of sessions."""

    sessions: list[Session]
    next: str | None
    """What `after` must be for the next page; None on the last one."""


@runtime_checkable
class KeepsSessions(Protocol):
    """A store that keeps sessions, and knows which keys mean the same project."""

    async def note_sessions(self, notes: Sequence[SessionNote]) -> None:
        """Keep what hooks tell, in one transaction. Noting the same hook twice changes nothing but counts."""
        ...

    async def session(self, user_id: str, session_id: str) -> Session | None:
        """One session; None if it is not known."""
        ...

    async def sessions(self, query: SessionQuery) -> SessionPage:
        """One page of sessions."""
        ...

    async def time_out_sessions(self, before: int, now: int, limit: int) -> list[Session]:
        """Let sessions fail whose last hook ran before a moment and that have not ended; answer these."""
        ...

    async def slow_ends(self, before: int, limit: int) -> list[Session]:
        """Sessions whose end was reported before a moment and is not reached yet."""
        ...

    async def forget_session(self, user_id: str, session_id: str) -> bool:
        """Remove a session, but not its memories; False if it is not known."""
        ...

    async def project_cube(self, user_id: str, keys: Sequence[str], name: str) -> str:
        """The cube of a project that these keys identify; a new project gets a new cube.

        Keys that were not known become keys of that project. If keys are known of several projects, the
        first one in the list decides. Of two repositories with different remotes, a folder that both have
        had makes no single project.
        """
        ...

    async def known_project(self, user_id: str, keys: Sequence[str]) -> str | None:
        """The cube of a project if one of the keys is known; nothing is written."""
        ...

    async def project_keys(self, user_id: str, cube: str) -> list[str]:
        """All keys that are known of the project of a cube."""
        ...

    async def session_items(self, user_id: str, session_id: str, limit: int) -> list[MemoryItem]:
        """The last items of a session in all cubes of the user, oldest first, without superseded ones."""
        ...

    async def set_aside(self, user_id: str, label: str, hour: str, tokens: int, limit: int) -> bool:
        """Set tokens aside in the budget that a label of a user has for an hour, such as 2026-05-07T13.

        False, and nothing is set aside, if the hour would have more than `limit`. A negative number gives
        tokens back.
        """
        ...
