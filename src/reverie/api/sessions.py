"""Sessions of agents: list them, read and delete one, and walk along what was learned in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.memory_shape import memory_of
from reverie.api.models import Cursor, PageLimit
from reverie.api.routing import Example, Route
from reverie.api.session_answers import (
    AgentSession,
    DeletedSession,
    ListedSessions,
    Timeline,
    TimelineMemory,
)
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    NotSupportedError,
    UnknownMemoryError,
    UnknownSessionError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.memory.sessions import SessionStatus
from reverie.principal import Role

if TYPE_CHECKING:
    from reverie.memory.item import MemoryItem
    from reverie.memory.sessions import Session

__all__ = ["ROUTES"]

Around = Annotated[str | None, Query(description="the id of a memory: what was learned around it")]
OfFile = Annotated[str | None, Query(min_length=1, description="the path or the name of a file")]
Steps = Annotated[int, Query(ge=0, le=1000)]


async def list_sessions(
    scheduler: AsyncScheduler,
    user_id: str,
    *,
    mem_cube_id: str | None = None,
    status: SessionStatus | None = None,
    cursor: Cursor = None,
    limit: PageLimit = 50,
) -> JSONResponse:
    """List the sessions of a user, the one with the latest hook first."""
    cursors = scheduler.runtime.cursors
    page = await scheduler.sessions.list(
        user_id=user_id,
        mem_cube_id=mem_cube_id,
        status=status,
        after=await cursors.open(cursor),
        limit=limit,
    )
    sessions = [_session(one) for one in page.sessions]
    return answer(ListedSessions(sessions=sessions, next=await cursors.seal(page.next)))


async def get_session(scheduler: AsyncScheduler, session_id: str, user_id: str) -> JSONResponse:
    """Read one session."""
    found = await scheduler.sessions.get(session_id, user_id=user_id)
    if found is None:
        raise UnknownSessionError(session_id)
    return answer(_session(found))


async def delete_session(scheduler: AsyncScheduler, session_id: str, user_id: str) -> JSONResponse:
    """Delete a session and its memories. This cannot be undone.

    Messages of the session that are not settled yet become memories later: delete it after its end.
    """
    known = await scheduler.sessions.get(session_id, user_id=user_id)
    deleted = await scheduler.sessions.delete(session_id, user_id=user_id)
    if known is None and not deleted:
        raise UnknownSessionError(session_id)
    return answer(DeletedSession(session_id=session_id, memories=deleted))


async def timeline(
    scheduler: AsyncScheduler,
    user_id: str,
    *,
    mem_cube_id: str | None = None,
    session_id: str | None = None,
    around: Around = None,
    file: OfFile = None,
    before: Steps = 10,
    after: Steps = 10,
) -> JSONResponse:
    """Read memories in their order: of a session, around one memory, or about a file. Name one of these."""
    found = await scheduler.sessions.timeline(
        user_id=user_id,
        mem_cube_id=mem_cube_id,
        session_id=session_id,
        around=around,
        file=file,
        before=before,
        after=after,
    )
    return answer(Timeline(memories=[_entry(item) for item in found]))


def _session(session: Session) -> AgentSession:
    """A session as clients see it: without its context, which may tell of cubes that they cannot see."""
    return {
        "user_id": session.user_id,
        "session_id": session.session_id,
        "mem_cube_id": session.mem_cube_id,
        "status": session.status,
        "agent": session.agent,
        "title": session.title,
        "prompts": session.prompts,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "ended_at": session.ended_at,
        "completed_at": session.completed_at,
        "error": session.error,
    }


def _entry(item: MemoryItem) -> TimelineMemory:
    return {
        **memory_of(item),
        "type": item.type,
        "title": item.title,
        "narrative": item.narrative,
        "facts": list(item.facts),
        "concepts": list(item.concepts),
    }


REFUSED = (InvalidMessageError, InvalidSelectionError, BackendUnavailableError, NotSupportedError)
SESSION = {"session_id": "5b2e4c1a-7d3f-4e89-9a60-1c2d3e4f5a6b"}

ROUTES = (
    Route(
        "GET",
        "/product/sessions",
        list_sessions,
        role=Role.READ_ONLY,
        answer=ListedSessions,
        errors=REFUSED,
        example=Example(query={"user_id": "ann", "status": "active", "limit": 10}),
    ),
    Route(
        "GET",
        "/product/sessions/{session_id}",
        get_session,
        role=Role.READ_ONLY,
        answer=AgentSession,
        errors=(UnknownSessionError, *REFUSED),
        example=Example(path=SESSION, query={"user_id": "ann"}),
    ),
    Route(
        "DELETE",
        "/product/sessions/{session_id}",
        delete_session,
        role=Role.USER,
        answer=DeletedSession,
        errors=(UnknownSessionError, *REFUSED),
        example=Example(path=SESSION, query={"user_id": "ann"}),
    ),
    Route(
        "GET",
        "/product/timeline",
        timeline,
        role=Role.READ_ONLY,
        answer=Timeline,
        errors=(UnknownMemoryError, MemoryDeletedError, *REFUSED),
        example=Example(query={"user_id": "ann", "around": "tea.0", "before": 3, "after": 3}),
    ),
)
