"""Capturing what an agent does: observations, and what happens in its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, Field

from reverie.api.envelope import answer
from reverie.api.models import Text
from reverie.api.routing import Example, Route, Touched
from reverie.api.session_answers import CapturedMessage
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ItemTakenError,
    NotSupportedError,
    QueueFullError,
    UnknownSessionError,
)
from reverie.face.capture import SessionEvent
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

if TYPE_CHECKING:
    from reverie.backends.moves import Submitted

__all__ = ["ROUTES"]

MOST_TEXTS = 1000
"""The most facts, concepts or files of one observation."""
LONGEST_AGENT = 100

Texts = Annotated[list[Text], Field(max_length=MOST_TEXTS)]


class _OfSession(BaseModel):
    """What all that is captured has in common. Fields may also be named as in the other routes."""

    user_id: Text
    session_id: Text = Field(
        min_length=1,
        validation_alias=AliasChoices("memorySessionId", "session_id"),
        description="the conversation of the agent; or: session_id",
    )
    mem_cube_id: Text = Field(
        "",
        validation_alias=AliasChoices("projectId", "mem_cube_id"),
        description="the cube of the project; or: mem_cube_id; default: the user's own",
    )

    def touched(self) -> list[Touched]:
        """The user and the cube that are written."""
        return [Touched(self.user_id, (self.mem_cube_id,))]


class ObservationRequest(_OfSession):
    """Something that an agent did or saw."""

    type: Text = Field("observation", description="the tool, or a word of your own")
    title: Text
    narrative: Text = ""
    facts: Texts = []
    concepts: Texts = []
    files_read: Texts = Field([], validation_alias=AliasChoices("filesRead", "files_read"))
    files_modified: Texts = Field([], validation_alias=AliasChoices("filesModified", "files_modified"))
    item_id: Text | None = Field(None, description="repeat a request with the same id and it is kept once")
    info: dict[str, Any] | None = Field(None, description="kept with the memory")


class SessionRequest(_OfSession):
    """What happens in a session of an agent."""

    event: SessionEvent
    text: Text = Field("", description="what was said; prompt and answer need it, a summary may have it")
    reason: Text | None = Field(None, description="why the session has ended or failed")
    agent: Text | None = Field(None, max_length=LONGEST_AGENT, description="such as claude-code or codex")


async def capture_observation(scheduler: AsyncScheduler, request: ObservationRequest) -> JSONResponse:
    """Take in something that an agent did or saw. It is kept when this answers."""
    return _captured(await scheduler.capture.observation(**request.model_dump()))


async def capture_session(scheduler: AsyncScheduler, request: SessionRequest) -> JSONResponse:
    """Take in what happens in a session: it starts, a person speaks, the agent answers, it ends or fails.

    It is kept when this answers. Any later event makes a session that has ended active again.
    """
    return _captured(await scheduler.capture.session(**request.model_dump()))


def _captured(receipt: Submitted) -> JSONResponse:
    if receipt.status == "conflict":
        raise ItemTakenError(receipt.item_id)
    return answer(CapturedMessage(item_id=receipt.item_id, status=receipt.status))


ERRORS = (
    InvalidMessageError,
    UnknownSessionError,
    ItemTakenError,
    QueueFullError,
    NotSupportedError,
    BackendUnavailableError,
)
SESSION = {"user_id": "ann", "memorySessionId": "5b2e4c1a-7d3f-4e89-9a60-1c2d3e4f5a6b", "projectId": "app"}

ROUTES = (
    Route(
        "POST",
        "/product/capture/observation",
        capture_observation,
        role=Role.USER,
        answer=CapturedMessage,
        errors=ERRORS,
        example=Example(
            body=SESSION
            | {
                "type": "Edit",
                "title": "Edited app.py",
                "narrative": "The port is read from the settings",
                "facts": ["The port is a setting"],
                "filesModified": ["app.py"],
            }
        ),
    ),
    Route(
        "POST",
        "/product/capture/session",
        capture_session,
        role=Role.USER,
        answer=CapturedMessage,
        errors=ERRORS,
        example=Example(
            body=SESSION | {"event": "prompt", "text": "Read the port from the settings", "agent": "codex"}
        ),
    ),
)
