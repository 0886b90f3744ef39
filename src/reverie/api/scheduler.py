"""The scheduler's own routes, under `/product/scheduler`: submitting work, how it stands, waiting for it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.models import SubmitRequest
from reverie.api.streams import EventStream, unless_gone
from reverie.backends.lane_keys import lane_key
from reverie.observe.idle import LONGEST_WAIT_S
from reverie.observe.status import business_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reverie.backends.views import LaneState
    from reverie.face.scheduler import AsyncScheduler
    from reverie.observe.idle import Idleness

__all__ = ["scheduler_routes"]

UserName = Annotated[str, Query(min_length=1, description="the user_id to wait for")]
Timeout = Annotated[
    float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="seconds to wait at most")
]
Poll = Annotated[
    float, Query(ge=0.05, le=60, allow_inf_nan=False, description="seconds between two looks at the queue")
]


def scheduler_routes(scheduler: AsyncScheduler) -> APIRouter:
    """The routes, bound to one scheduler."""
    routes = APIRouter(prefix="/product/scheduler", default_response_class=JSONResponse)

    @routes.post("/submit")
    async def submit(request: SubmitRequest) -> JSONResponse:
        """Hand over messages for any label."""
        receipts = await scheduler.submit_messages([model.message() for model in request.messages])
        return answer([{"item_id": r.item_id, "status": r.status} for r in receipts])

    @routes.get("/status")
    async def status(user_id: str, task_id: str | None = None) -> JSONResponse:
        """How items stand: all of a user, one, or a business task as a whole."""
        rows = await scheduler.status(user_id, task_id)
        if task_id is not None:
            return answer([{"task_id": task_id, "status": business_status(row.status for row in rows)}])
        return answer([{"task_id": row.item_id, "status": row.status} for row in rows])

    @routes.get("/allstatus")
    async def allstatus() -> JSONResponse:
        """How many messages stand how: of labels that a live worker handles, and of all."""
        return answer(msgspec.to_builtins(await scheduler.observe.counts()))

    @routes.get("/task_queue_status")
    async def task_queue_status(user_id: str) -> JSONResponse:
        """The lanes of a user that have work: how much is claimed (pending), how much waits (remaining)."""
        prefix = scheduler.runtime.backend.capabilities.lane_prefix
        return answer(_backlog(user_id, await scheduler.observe.lanes(user_id), prefix))

    @routes.post("/wait")
    async def wait(
        request: Request, user_name: UserName, timeout_seconds: Timeout = 120, poll_interval: Poll = 0.5
    ) -> JSONResponse:
        """Answer when nothing of a user waits or runs, or the time is over."""
        waiting = scheduler.observe.wait_idle(user_name, timeout=timeout_seconds, poll=poll_interval)
        state = await unless_gone(request, waiting)
        data = {
            "running_tasks": state.active_tasks,
            "waited_seconds": state.elapsed_seconds,
            "timed_out": state.timed_out,
            "user_name": user_name,
        }
        return answer(data, state.status)

    @routes.get("/wait/stream", response_class=EventStream, status_code=200)
    async def wait_stream(
        request: Request, user_name: UserName, timeout_seconds: Timeout = 120, poll_interval: Poll = 0.5
    ) -> EventStream:
        """The same as events: one each poll, the last one `idle` or `timeout`."""
        states = scheduler.observe.idling(user_name, timeout=timeout_seconds, poll=poll_interval)
        first = await anext(states)  # so that what is refused is refused as an answer, not as a stream
        return EventStream(request, _progress(user_name, first, states))

    return routes


def _backlog(user_id: str, lanes: Sequence[LaneState], prefix: str) -> dict[str, Any]:
    keys = [lane_key(state.lane, prefix) for state in lanes]
    pending = [(key, state.in_progress) for key, state in zip(keys, lanes, strict=True)]
    remaining = [(key, state.waiting) for key, state in zip(keys, lanes, strict=True)]
    return {
        "user_id": user_id,
        "user_name": None,
        "mem_cube_id": None,
        "stream_keys": keys,
        "users_count": 1 if lanes else 0,
        "pending_tasks_count": sum(count for _, count in pending),
        "remaining_tasks_count": sum(count for _, count in remaining),
        "pending_tasks_detail": [f"{key}:{count}" for key, count in pending if count],
        "remaining_tasks_detail": [f"{key}:{count}" for key, count in remaining if count],
    }


async def _progress(
    user_name: str, first: Idleness, states: AsyncGenerator[Idleness]
) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(states):
        yield _event(user_name, first)
        async for state in states:
            yield _event(user_name, state)


def _event(user_name: str, state: Idleness) -> dict[str, Any]:
    return {
        "user_name": user_name,
        "active_tasks": state.active_tasks,
        "elapsed_seconds": state.elapsed_seconds,
        "status": state.status,
    }
