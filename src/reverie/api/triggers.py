"""Timed tasks, under `/product/scheduler/triggers`: their types, how they stand; run, cancel, switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.models import Whose

if TYPE_CHECKING:
    from reverie.face.scheduler import AsyncScheduler
    from reverie.triggers.service import Who

__all__ = ["trigger_routes"]

After = Annotated[str, Query(description="the `next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000, description="tasks of one page")]
ForWhom = Annotated[Whose | None, Body(description="whose task; none: the one of no user")]


def trigger_routes(scheduler: AsyncScheduler) -> APIRouter:
    """The routes, bound to one scheduler."""
    routes = APIRouter(prefix="/product/scheduler/triggers", default_response_class=JSONResponse)
    triggers = scheduler.triggers

    @routes.get("")
    async def types() -> JSONResponse:
        """The task types that are in force, with what has become of their runs."""
        return answer(msgspec.to_builtins(await triggers.overview()))

    @routes.get("/{task_type}")
    async def one_type(task_type: str, after: After = "", limit: Limit = 100) -> JSONResponse:
        """One type, and its tasks by user key, page by page."""
        (about,) = await triggers.overview(task_type)
        page = await triggers.page(task_type, after=after, limit=limit)
        return answer(
            msgspec.to_builtins(about) | {"tasks": msgspec.to_builtins(page.rows), "next": page.next}
        )

    @routes.post("/{task_type}/run")
    async def run(task_type: str, whose: ForWhom = None) -> JSONResponse:
        """Let a task run now, or once more after the run that is under way."""
        who = _who(whose)
        if await triggers.run(task_type, **who):
            return answer({"task_type": task_type, "run": True, **who})
        if not scheduler.runtime.triggers.enabled:
            return answer(None, "timed tasks are off: scheduler.enabled is false", 409)
        return answer(None, f"{task_type!r} is disabled: POST …/triggers/{task_type}/enable first", 409)

    @routes.post("/{task_type}/cancel")
    async def cancel(task_type: str, whose: ForWhom = None) -> JSONResponse:
        """Forget the next run of a user's task, and ask one that is under way to stop."""
        who = _who(whose)
        cancelled = await triggers.cancel(task_type, **who)
        return answer({"task_type": task_type, "cancelled": cancelled, **who})

    @routes.post("/{task_type}/enable")
    async def enable(task_type: str) -> JSONResponse:
        """Let a type run, everywhere, whatever its configuration says."""
        await triggers.enable(task_type)
        return answer({"task_type": task_type, "enabled": True})

    @routes.post("/{task_type}/disable")
    async def disable(task_type: str) -> JSONResponse:
        """Let a type run nowhere until it is enabled, or a configuration of a higher version comes."""
        await triggers.disable(task_type)
        return answer({"task_type": task_type, "enabled": False})

    return routes


def _who(whose: Whose | None) -> Who:
    """The ids that are given."""
    given = whose or Whose()
    who: Who = {"user_id": given.user_id, "device_id": given.device_id, "agent_id": given.agent_id}
    return who
