"""Control of the queue, under `/product/scheduler`: cancel work, decide about dead letters, pause labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import Body
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.envelope import answer
from reverie.api.models import Cursor, PageLimit, Text
from reverie.api.routing import Example, Route, Touched
from reverie.api.task_answers import ChangedItems, DeadLetter, DeadLetters, LabelPage, PausedLabel
from reverie.backends.views import check_cursor
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    UnknownItemError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from reverie.backends.control import ControlResult

__all__ = ["ROUTES"]


class ItemsRequest(BaseModel):
    """Which items are meant: those that fit all that is given. At least one field must be given."""

    user_id: Text | None = Field(None, description="whose items; needed with item_ids")
    item_ids: list[Text] | None = Field(None, min_length=1, max_length=1000)
    task_id: Text | None = Field(None, description="the business task")
    mem_cube_id: Text | None = None
    label: Text | None = None
    limit: int = Field(
        1000, ge=1, le=10_000, description="items at most; `more` says whether there are others"
    )

    def touched(self) -> list[Touched]:
        """The user, and the cube if one is named."""
        cubes = () if self.mem_cube_id is None else (self.mem_cube_id,)
        return [Touched(self.user_id, cubes, whole=self.mem_cube_id is None)]

    def selection(self) -> dict[str, Any]:
        """The arguments of the commands of `AsyncControl`."""
        return self.model_dump()


class PauseRequest(BaseModel):
    """Why a label is paused."""

    reason: Text = Field("paused", min_length=1, max_length=500)


async def dead_letters(
    scheduler: AsyncScheduler,
    user_id: str | None = None,
    label: str | None = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> JSONResponse:
    """List messages that have failed for good, oldest first."""
    cursors = scheduler.runtime.cursors
    after = await cursors.open(cursor)
    check_cursor("cursor", after)
    page = await scheduler.control.dead_letters(user_id=user_id, label=label, limit=limit, after=after)
    return answer(DeadLetters(items=msgspec.to_builtins(page.rows), next=await cursors.seal(page.next)))


async def dead_letter(scheduler: AsyncScheduler, item_id: str, user_id: str) -> JSONResponse:
    """Read one dead letter: its message, its error, its runs.

    Admins see whole errors, others the last line of each.
    """
    letter = await scheduler.control.dead_letter(item_id, user_id=user_id)
    if letter is None:
        raise UnknownItemError(user_id, item_id)
    shown = current_principal.get().error_shown
    history = [
        msgspec.structs.replace(run, error=shown(run.error))
        for run in await scheduler.observe.history(item_id, user_id=user_id)
    ]
    return answer(msgspec.to_builtins(DeadLetter(**msgspec.structs.asdict(letter), history=history)))


async def requeue(scheduler: AsyncScheduler, request: ItemsRequest) -> JSONResponse:
    """Let messages that failed or were cancelled wait again, as if they were new."""
    return _changed(await scheduler.control.requeue(**request.selection()))


async def delete(scheduler: AsyncScheduler, request: ItemsRequest) -> JSONResponse:
    """Delete messages that have failed for good. This cannot be taken back."""
    return _changed(await scheduler.control.delete(**request.selection()))


async def cancel(scheduler: AsyncScheduler, request: ItemsRequest) -> JSONResponse:
    """Cancel messages that wait, and ask those that run to stop."""
    return _changed(await scheduler.control.cancel(**request.selection()))


async def labels(scheduler: AsyncScheduler, cursor: Cursor = None, limit: PageLimit = 100) -> JSONResponse:
    """List labels by name: how much work each has, whether a worker handles it, why it is paused."""
    known = sorted(await scheduler.control.labels(), key=lambda state: state.label)
    rest = [state for state in known if state.label > (cursor or "")]
    page = rest[:limit]
    return answer(LabelPage(labels=page, next=page[-1].label if len(rest) > limit else None))


async def pause(
    scheduler: AsyncScheduler, label: str, request: Annotated[PauseRequest | None, Body()] = None
) -> JSONResponse:
    """Claim no more messages of a label, in any worker. New messages are kept, running ones go on."""
    reason = (request or PauseRequest()).reason
    await scheduler.control.pause(label, reason)
    return answer(PausedLabel(label=label, paused=reason))


async def resume(scheduler: AsyncScheduler, label: str) -> JSONResponse:
    """Claim messages of a paused label again."""
    await scheduler.control.resume(label)
    return answer(PausedLabel(label=label, paused=None))


def _changed(result: ControlResult) -> JSONResponse:
    changed = ChangedItems(
        changed=[{"user_id": key.user_id, "item_id": key.item_id} for key in result.changed],
        requested=[{"user_id": key.user_id, "item_id": key.item_id} for key in result.requested],
        more=result.more,
    )
    return answer(changed)


REFUSED = (InvalidMessageError, InvalidSelectionError, BackendUnavailableError)
ITEMS = Example(body={"user_id": "ann", "label": "export"})

ROUTES = (
    Route(
        "GET",
        "/product/scheduler/dead_letters",
        dead_letters,
        role=Role.READ_ONLY,
        answer=DeadLetters,
        errors=REFUSED,
        example=Example(query={"user_id": "ann", "limit": 10}),
    ),
    Route(
        "POST",
        "/product/scheduler/dead_letters/requeue",
        requeue,
        role=Role.USER,
        answer=ChangedItems,
        errors=REFUSED,
        example=ITEMS,
    ),
    Route(
        "POST",
        "/product/scheduler/dead_letters/delete",
        delete,
        role=Role.USER,
        answer=ChangedItems,
        errors=REFUSED,
        example=ITEMS,
    ),
    Route(
        "GET",
        "/product/scheduler/dead_letters/{item_id}",
        dead_letter,
        role=Role.READ_ONLY,
        answer=DeadLetter,
        errors=(UnknownItemError, InvalidMessageError, BackendUnavailableError),
        example=Example(path={"item_id": "report"}, query={"user_id": "ann"}),
    ),
    Route(
        "POST",
        "/product/scheduler/cancel",
        cancel,
        role=Role.USER,
        answer=ChangedItems,
        errors=REFUSED,
        example=ITEMS,
    ),
    Route(
        "GET",
        "/product/scheduler/labels",
        labels,
        role=Role.READ_ONLY,
        reach="all",
        answer=LabelPage,
        example=Example(query={"limit": 10}),
    ),
    Route(
        "POST",
        "/product/scheduler/labels/{label}/pause",
        pause,
        role=Role.ADMIN,
        reach="all",
        answer=PausedLabel,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(path={"label": "export"}, body={"reason": "the disk is full"}),
    ),
    Route(
        "POST",
        "/product/scheduler/labels/{label}/resume",
        resume,
        role=Role.ADMIN,
        reach="all",
        answer=PausedLabel,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(path={"label": "export"}),
    ),
)
