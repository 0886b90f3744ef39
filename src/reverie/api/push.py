"""Capturing a chat: its turns are submitted for memory, and the activity of its user is noted."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from reverie.api.models import DEFAULT_USER, PushRequest
from reverie.api.routing import Example, Route
from reverie.api.task_answers import Pushed
from reverie.capture.intake import add_message
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ItemTakenError,
    NotSupportedError,
    QueueFullError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.message import check_name, new_item_id
from reverie.principal import Role

__all__ = ["ROUTES"]


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
    pushed = await runtime.intake.push(message, spools=runtime.settings.spool.submits)
    if pushed.receipt.status == "conflict":
        raise ItemTakenError(request.item_id)
    return JSONResponse(
        {
            "status": "success",
            "item_id": message.item_id,
            "message_status": pushed.receipt.status,
            "scheduled": pushed.scheduled,
            **({"not_noted": pushed.not_noted} if pushed.not_noted else {}),
        }
    )


ROUTES = (
    Route(
        "POST",
        "/api/push/chat/message",
        push_chat_message,
        role=Role.USER,
        answer=Pushed,
        plain=True,
        errors=(
            InvalidMessageError,
            ItemTakenError,
            QueueFullError,
            NotSupportedError,
            BackendUnavailableError,
        ),
        example=Example(
            body={
                "user_id": "ann",
                "device_id": "phone",
                "session_id": "may",
                "messages": [{"role": "user", "content": "I play chess"}],
            }
        ),
    ),
)
