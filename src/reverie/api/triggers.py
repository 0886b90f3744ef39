"""Timed tasks, under `/product/scheduler/triggers`: their types and tasks; run, cancel, enable, disable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import Body, Query
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.models import Cursor, Whose
from reverie.api.routing import Example, Route
from reverie.api.task_answers import Cancelled, Ran, Switched, TypeAndTasks
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    TaskTypeDisabledError,
    UnknownTaskTypeError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role
from reverie.triggers.overview import TypeOverview

if TYPE_CHECKING:
    from reverie.triggers.service import Who

__all__ = ["ROUTES"]

After = Annotated[str, Query(include_in_schema=False)]
"""The former name of `cursor`, which clients may still use."""
Limit = Annotated[int, Query(ge=1, le=1000, description="tasks of one page")]
ForWhom = Annotated[Whose | None, Body(description="whose task; none: the one of no user")]


async def types(scheduler: AsyncScheduler) -> JSONResponse:
    """The task types that are in force, with the statistics of their runs."""
    return answer(msgspec.to_builtins(await scheduler.triggers.overview()))


async def one_type(
    scheduler: AsyncScheduler,
    task_type: str,
    cursor: Cursor = None,
    limit: Limit = 100,
    after: After = "",
) -> JSONResponse:
    """One type, and its tasks by user key, page by page."""
    (about,) = await scheduler.triggers.overview(task_type)
    page = await scheduler.triggers.page(task_type, after=cursor or after, limit=limit)
    both = TypeAndTasks(**msgspec.structs.asdict(about), tasks=page.rows, next=page.next)
    return answer(msgspec.to_builtins(both))


async def run(scheduler: AsyncScheduler, task_type: str, whose: ForWhom = None) -> JSONResponse:
    """Let a task run now, or once more after the run that is under way."""
    who = _who(whose)
    if not await scheduler.triggers.run(task_type, **who):
        raise TaskTypeDisabledError(
            f"{task_type!r} is disabled: POST …/triggers/{task_type}/enable first"
            if scheduler.runtime.triggers.enabled
            else "timed tasks are off: scheduler.enabled is false"
        )
    ran: Ran = {"task_type": task_type, "run": True, **who}
    return answer(ran)


async def cancel(scheduler: AsyncScheduler, task_type: str, whose: ForWhom = None) -> JSONResponse:
    """Cancel the next run of a user's task, and ask a run that is under way to stop."""
    who = _who(whose)
    cancelled: Cancelled = {
        "task_type": task_type,
        "cancelled": await scheduler.triggers.cancel(task_type, **who),
        **who,
    }
    return answer(cancelled)


async def enable(scheduler: AsyncScheduler, task_type: str) -> JSONResponse:
    """Let a type run in every process, whatever its configuration says."""
    await scheduler.triggers.enable(task_type)
    switched: Switched = {"task_type": task_type, "enabled": True}
    return answer(switched)


async def disable(scheduler: AsyncScheduler, task_type: str) -> JSONResponse:
    """Let a type run nowhere until it is enabled, or a configuration of a higher version comes."""
    await scheduler.triggers.disable(task_type)
    switched: Switched = {"task_type": task_type, "enabled": False}
    return answer(switched)


def _who(whose: Whose | None) -> Who:
    """The ids in the body of a request; all None without a body."""
    given = whose or Whose()
    return {"user_id": given.user_id, "device_id": given.device_id, "agent_id": given.agent_id}


UNKNOWN = (UnknownTaskTypeError, BackendUnavailableError)
BAD_IDS = (InvalidMessageError, InvalidSelectionError)

ROUTES = (
    Route(
        "GET",
        "/product/scheduler/triggers",
        types,
        role=Role.READ_ONLY,
        reach="all",
        answer=list[TypeOverview],
    ),
    Route(
        "GET",
        "/product/scheduler/triggers/{task_type}",
        one_type,
        role=Role.READ_ONLY,
        reach="all",
        answer=TypeAndTasks,
        errors=UNKNOWN,
        example=Example(path={"task_type": "memory_compression"}, query={"limit": 10}),
    ),
    Route(
        "POST",
        "/product/scheduler/triggers/{task_type}/run",
        run,
        role=Role.USER,
        answer=Ran,
        errors=(*BAD_IDS, *UNKNOWN, TaskTypeDisabledError),
        example=Example(
            path={"task_type": "memory_compression"}, body={"user_id": "ann", "device_id": "phone"}
        ),
    ),
    Route(
        "POST",
        "/product/scheduler/triggers/{task_type}/cancel",
        cancel,
        role=Role.USER,
        answer=Cancelled,
        errors=(*BAD_IDS, *UNKNOWN),
        example=Example(
            path={"task_type": "memory_compression"}, body={"user_id": "ann", "device_id": "phone"}
        ),
    ),
    Route(
        "POST",
        "/product/scheduler/triggers/{task_type}/enable",
        enable,
        role=Role.ADMIN,
        reach="all",
        answer=Switched,
        errors=UNKNOWN,
        example=Example(path={"task_type": "statistics_update"}),
    ),
    Route(
        "POST",
        "/product/scheduler/triggers/{task_type}/disable",
        disable,
        role=Role.ADMIN,
        reach="all",
        answer=Switched,
        errors=UNKNOWN,
        example=Example(path={"task_type": "statistics_update"}),
    ),
)
