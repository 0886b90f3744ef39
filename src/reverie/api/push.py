"""Capturing a chat: what was said is kept for memory, and the user's activity is noted."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from reverie.api.answers import Pushed
from reverie.api.models import PushRequest
from reverie.api.routing import Route
from reverie.base.logs import get_logger
from reverie.capture.intake import add_message
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ItemTakenError,
    QueueFullError,
    ReverieError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.message import check_name, new_item_id
from reverie.principal import Role

__all__ = ["ROUTES"]

log = get_logger(__name__)

DEFAULT_USER = "default"
"""Whose a message is that names no user."""
COMPRESSION = "memory_compression"
"""The timed task that follows a user's activity."""


async def push_chat_message(scheduler: AsyncScheduler, request: PushRequest) -> JSONResponse:
    """Take in what was said in a chat. It is kept when this answers."""
    runtime = scheduler.runtime
    defaults = runtime.settings.scheduler.user_key_config
    user_id = request.user_id or DEFAULT_USER
    info = {
        "device_id": request.device_id or defaults.default_device_id,
        "agent_id": request.agent_id or defaults.default_agent_id,
    }
    for name, value in info.items():
        check_name(name, value, runtime.limits)
    message = add_message(
        request.turns,
        user_id=user_id,
        mem_cube_id=request.mem_cube_id or "",
        item_id=request.item_id or new_item_id(),
        session_id=request.session_id,
        info=info,
    )
    (receipt,) = await scheduler.submit_messages([message])
    if receipt.status == "conflict":
        raise ItemTakenError(request.item_id)
    scheduled, why = await _note_activity(scheduler, user_id, **info)
    return JSONResponse(
        {
            "status": "success",
            "item_id": message.item_id,
            "message_status": receipt.status,
            "scheduled": scheduled,
            **({"not_noted": why} if why else {}),
        }
    )


async def _note_activity(
    scheduler: AsyncScheduler, user_id: str, device_id: str, agent_id: str
) -> tuple[bool, str | None]:
    """Whether a run was scheduled; and why the activity could not be noted, if that is so.

    The message is kept already: to refuse the request now would make its sender send it again.
    """
    if not scheduler.runtime.triggers.enabled:
        return False, None
    try:
        return await scheduler.schedule_user_task(COMPRESSION, user_id, device_id, agent_id), None
    except ReverieError as error:
        log.warning("push.activity_not_noted", task_type=COMPRESSION, error=str(error))
        return False, str(error)


ROUTES = (
    Route(
        "POST",
        "/api/push/chat/message",
        push_chat_message,
        role=Role.WRITER,
        answer=Pushed,
        plain=True,
        errors=(InvalidMessageError, ItemTakenError, QueueFullError, BackendUnavailableError),
    ),
)
