"""The status of tasks: of single items, and of business tasks that consist of several items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.moves import Status
from reverie.backends.views import StatusQuery
from reverie.base.clock import from_epoch_ms
from reverie.message import MessageLimits, check_ids

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from reverie.backends.interface import QueueViews
    from reverie.backends.views import ItemStatus, LabelState

__all__ = ["ALL_ITEMS", "StatusCounts", "TaskStatusTracker", "business_status", "count_statuses"]

ALL_ITEMS = 10_000_000
"""A limit larger than any queue, because a status that leaves items out would not be true."""


def business_status(statuses: Iterable[Status]) -> Status:
    """Join the statuses of items: failed if any failed, else in progress if any has not ended.

    If all were cancelled, the answer is cancelled, otherwise completed.
    """
    seen = set(statuses)
    if Status.FAILED in seen:
        return Status.FAILED
    if seen & {Status.WAITING, Status.IN_PROGRESS}:
        return Status.IN_PROGRESS
    return Status.CANCELLED if seen == {Status.CANCELLED} else Status.COMPLETED


class StatusCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages stand how. `pending` is another word for waiting, and is not in the total."""

    waiting: int = 0
    in_progress: int = 0
    pending: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0


def count_statuses(labels: Iterable[LabelState]) -> StatusCounts:
    """Sum the counts of labels."""
    states = list(labels)
    waiting = sum(state.waiting for state in states)
    others = {
        name: sum(getattr(state, name) for state in states)
        for name in ("in_progress", "completed", "failed", "cancelled")
    }
    return StatusCounts(waiting=waiting, pending=waiting, total=waiting + sum(others.values()), **others)


class TaskStatusTracker:
    """Reads the status of tasks. It never writes: each move of the queue writes the status itself.

    Each item is a dict: status, task_type, mem_cube_id, submitted_at, started_at, completed_at or failed_at,
    error, business_task_id; moments as ISO 8601 text. By default a status is forgotten 7 days after the end.
    """

    def __init__(
        self, views: QueueViews, open_: Callable[[], Awaitable[None]], limits: MessageLimits | None = None
    ) -> None:
        """`open_` opens the backend of `views`, if it is not open yet."""
        self._limits = limits or MessageLimits()
        self._views = views
        self._open = open_

    async def get_task_status(self, task_id: str, user_id: str) -> dict[str, Any] | None:
        """The status of one item; None if it is unknown."""
        rows = await self._read(StatusQuery(user_id=user_id, item_id=task_id))
        return _payload(rows[0]) if rows else None

    async def get_all_tasks_for_user(self, user_id: str) -> dict[str, dict[str, Any]]:
        """The status of all items of a user, by id, oldest first."""
        rows = await self._read(StatusQuery(user_id=user_id, limit=ALL_ITEMS))
        return {row.item_id: _payload(row) for row in rows}

    async def get_task_status_by_business_id(
        self, business_task_id: str, user_id: str
    ) -> dict[str, Any] | None:
        """The status of a business task, over all its items; None if it is unknown."""
        rows = await self._read(StatusQuery(user_id=user_id, task_id=business_task_id, limit=ALL_ITEMS))
        if not rows:
            return None
        return {
            "status": str(business_status(row.status for row in rows)),
            "business_task_id": business_task_id,
            "item_count": len(rows),
            "item_statuses": {row.item_id: str(row.status) for row in rows},
        }

    async def _read(self, query: StatusQuery) -> list[ItemStatus]:
        check_ids(self._limits, user_id=query.user_id, item_id=query.item_id, task_id=query.task_id)
        await self._open()
        return (await self._views.read(query)).rows


def _payload(row: ItemStatus) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "status": str(row.status),
        "task_type": row.task_type,
        "mem_cube_id": row.mem_cube_id,
        "submitted_at": _iso(row.submitted_at),
        "started_at": _iso(row.started_at),
    }
    if row.status.ended:
        payload["completed_at" if row.status is Status.COMPLETED else "failed_at"] = _iso(row.ended_at)
    if row.error is not None:
        payload["error"] = row.error
    if row.task_id is not None:
        payload["business_task_id"] = row.task_id
    return payload


def _iso(moment: int | None) -> str | None:
    return None if moment is None else from_epoch_ms(moment).isoformat()
