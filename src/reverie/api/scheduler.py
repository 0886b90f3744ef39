"""The queue, under `/product/scheduler`: submit messages, read their status, wait for a user's work."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import Query, Request
from fastapi.responses import JSONResponse

from reverie.api.envelope import answer
from reverie.api.models import Cursor, SubmitRequest
from reverie.api.routing import Example, Route
from reverie.api.streams import EventStream, unless_gone
from reverie.api.task_answers import Backlog, ItemState, Progress, StatusPage, Waited
from reverie.backends.lane_keys import lane_key
from reverie.backends.moves import Submitted
from reverie.backends.views import LONGEST_PAGE
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    QueueFullError,
    UnknownItemError,
)
from reverie.face.observation import AllStatus
from reverie.face.scheduler import AsyncScheduler
from reverie.observe.idle import LONGEST_WAIT_S
from reverie.observe.status import business_status
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reverie.backends.views import LaneState
    from reverie.observe.idle import Idleness

__all__ = ["ROUTES"]

UserName = Annotated[str, Query(min_length=1, description="the user_id to wait for")]
Timeout = Annotated[
    float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="seconds to wait at most")
]
Poll = Annotated[
    float, Query(ge=0.05, le=60, allow_inf_nan=False, description="seconds between two looks at the queue")
]


PageLimit = Annotated[
    int | None, Query(ge=1, le=LONGEST_PAGE, description="items on one page; with a cursor 100 by default")
]


async def submit(scheduler: AsyncScheduler, request: SubmitRequest) -> JSONResponse:
    """Hand over messages of any label; all are kept, or none."""
    limits = scheduler.runtime.limits
    receipts = await scheduler.submit_messages([model.message(limits) for model in request.messages])
    return answer([{"item_id": r.item_id, "status": r.status} for r in receipts])


async def status(
    scheduler: AsyncScheduler,
    user_id: str,
    task_id: str | None = None,
    limit: PageLimit = None,
    cursor: Cursor = None,
) -> JSONResponse:
    """The status of all items of a user, of one page of them, of one item, or of a business task as a whole.

    With `limit` or `cursor` the answer is a page: `{items, next}`.
    """
    if limit is not None or cursor is not None:
        if task_id is not None:
            raise InvalidSelectionError("limit and cursor are for all items of a user: leave task_id out")
        cursors = scheduler.runtime.cursors
        page = await scheduler.status_page(user_id, limit=limit or 100, cursor=await cursors.open(cursor))
        items: list[ItemState] = [{"task_id": row.item_id, "status": row.status} for row in page.rows]
        part: StatusPage = {"items": items, "next": await cursors.seal(page.next)}
        return answer(part)
    rows = await scheduler.status(user_id, task_id)
    states: list[ItemState]
    if task_id is not None:
        states = [{"task_id": task_id, "status": business_status(row.status for row in rows)}]
    else:
        states = [{"task_id": row.item_id, "status": row.status} for row in rows]
    return answer(states)


async def allstatus(scheduler: AsyncScheduler) -> JSONResponse:
    """How many messages have each status: of the labels that a live worker handles, and of all labels."""
    return answer(msgspec.to_builtins(await scheduler.observe.counts()))


async def task_queue_status(scheduler: AsyncScheduler, user_id: str) -> JSONResponse:
    """The lanes of a user that have work: how much is claimed (pending), how much waits (remaining)."""
    prefix = scheduler.runtime.backend.capabilities.lane_prefix
    return answer(_backlog(user_id, await scheduler.observe.lanes(user_id), prefix))


async def wait(
    scheduler: AsyncScheduler,
    request: Request,
    user_name: UserName,
    timeout_seconds: Timeout = 120,
    poll_interval: Poll = 0.5,
) -> JSONResponse:
    """Answer when a user has no work that waits or runs, or when the time is over."""
    waiting = scheduler.observe.wait_idle(user_name, timeout=timeout_seconds, poll=poll_interval)
    state = await unless_gone(request, waiting)
    waited: Waited = {
        "running_tasks": state.active_tasks,
        "waited_seconds": state.elapsed_seconds,
        "timed_out": state.timed_out,
        "user_name": user_name,
    }
    return answer(waited, state.status)


async def wait_stream(
    scheduler: AsyncScheduler,
    request: Request,
    user_name: UserName,
    timeout_seconds: Timeout = 120,
    poll_interval: Poll = 0.5,
) -> EventStream:
    """Wait in the same way, with one event for each poll; the last event is `idle` or `timeout`."""
    states = scheduler.observe.idling(user_name, timeout=timeout_seconds, poll=poll_interval)
    first = await anext(states)  # an error is answered with its status, because no stream has begun yet
    return EventStream(request, _progress(user_name, scheduler.runtime.worker.name, first, states))


def _backlog(user_id: str, lanes: Sequence[LaneState], prefix: str) -> Backlog:
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
    user_name: str, instance_id: str, first: Idleness, states: AsyncGenerator[Idleness]
) -> AsyncGenerator[Progress]:
    async with aclosing(states):
        yield _event(user_name, instance_id, first)
        async for state in states:
            yield _event(user_name, instance_id, state)


def _event(user_name: str, instance_id: str, state: Idleness) -> Progress:
    return {
        "user_name": user_name,
        "active_tasks": state.active_tasks,
        "elapsed_seconds": state.elapsed_seconds,
        "status": state.status,
        "instance_id": instance_id,
    }


BAD_ID = (InvalidMessageError, BackendUnavailableError)

ROUTES = (
    Route(
        "POST",
        "/product/scheduler/submit",
        submit,
        role=Role.USER,
        answer=list[Submitted],
        errors=(InvalidMessageError, QueueFullError, BackendUnavailableError),
        example=Example(
            body={"messages": [{"user_id": "ann", "label": "import", "item_id": "page-1", "task_id": "book"}]}
        ),
    ),
    Route(
        "GET",
        "/product/scheduler/status",
        status,
        role=Role.READ_ONLY,
        answer=list[ItemState] | StatusPage,
        errors=(UnknownItemError, InvalidSelectionError, *BAD_ID),
        example=Example(query={"user_id": "ann", "task_id": "tea"}),
    ),
    Route(
        "GET", "/product/scheduler/allstatus", allstatus, role=Role.READ_ONLY, reach="all", answer=AllStatus
    ),
    Route(
        "GET",
        "/product/scheduler/task_queue_status",
        task_queue_status,
        role=Role.READ_ONLY,
        answer=Backlog,
        errors=BAD_ID,
        example=Example(query={"user_id": "ann"}),
    ),
    Route(
        "POST",
        "/product/scheduler/wait",
        wait,
        role=Role.READ_ONLY,
        answer=Waited,
        errors=BAD_ID,
        example=Example(query={"user_name": "ann", "timeout_seconds": 10}),
    ),
    Route(
        "GET",
        "/product/scheduler/wait/stream",
        wait_stream,
        role=Role.READ_ONLY,
        answer=Progress,
        errors=BAD_ID,
        plain=True,
        media_type="text/event-stream",
        example=Example(query={"user_name": "ann", "timeout_seconds": 10}),
    ),
)
