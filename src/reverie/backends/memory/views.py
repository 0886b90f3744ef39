"""Views of the queue in memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reverie.backends.moves import Status
from reverie.backends.views import ItemStatus, LabelState, LaneState, Page, QueueHealth

if TYPE_CHECKING:
    from reverie.backends.memory.state import Item, State
    from reverie.backends.moves import Presence
    from reverie.backends.views import Attempt, StatusQuery
    from reverie.message import Key, Lane

__all__ = ["MemoryViews"]


class MemoryViews:
    """See `reverie.backends.interface.QueueViews`."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        after = int(query.after or 0)
        with self._state.lock:
            found = [
                item
                for key, item in self._state.items.items()
                if query.user_id in {None, key.user_id}
                and query.item_id in {None, key.item_id}
                and query.task_id in {None, item.message.task_id}
                and query.label in {None, item.message.label}
                and (item.status is Status.FAILED or not query.dead)
                and item.seq > after
            ]
            page = found[: query.limit]
            rows = [_status(item, with_message=query.with_message) for item in page]
        return Page(rows=rows, next=str(page[-1].seq) if page and len(found) > query.limit else None)

    async def labels(self) -> list[LabelState]:
        """See `QueueViews.labels`."""
        with self._state.lock:
            counts = Counter((item.message.label, item.status) for item in self._state.items.values())
            ever = self._state.ever.copy()
            handled = {label for worker in self._alive() for label in worker.labels}
            paused = dict(self._state.paused)
        lasting = {label for label, status in ever if status is not Status.CANCELLED}
        return [
            LabelState(
                label=label,
                **{status: counts[label, status] for status in Status},
                completed_ever=ever[label, Status.COMPLETED],
                failed_ever=ever[label, Status.FAILED],
                handled=label in handled,
                paused=paused.get(label),
            )
            for label in sorted({label for label, _ in counts} | lasting | handled | set(paused))
        ]

    async def lanes(self, user_id: str) -> list[LaneState]:
        """See `QueueViews.lanes`."""
        with self._state.lock:
            items = [item for item in self._state.items.values() if item.message.user_id == user_id]
            counts = Counter((item.message.lane, item.status) for item in items if not item.status.ended)
        return [
            LaneState(
                lane=lane,
                waiting=counts[lane, Status.WAITING],
                in_progress=counts[lane, Status.IN_PROGRESS],
            )
            for lane in sorted({lane for lane, _ in counts})
        ]

    async def due_later(self, lane: Lane, unique_key: str) -> int | None:
        """See `QueueViews.due_later`."""
        with self._state.lock:
            now = self._state.clock.now()
            holders = self._state.uniques.get((lane, unique_key), [])
            due = [item.due for item in holders if item.status is Status.WAITING and item.due is not None]
            return min((moment for moment in due if moment > now), default=None)

    async def health(self) -> QueueHealth:
        """See `QueueViews.health`."""
        now = self._state.clock.now()
        with self._state.lock:
            lanes = [lane for lane in self._state.lanes.values() if (lane.rest_until or 0) <= now]
            waiting = [item for lane in lanes for item in lane.waiting]
            running = [i.claimed_at for i in self._state.items.values() if i.status is Status.IN_PROGRESS]
            return QueueHealth(
                oldest_waiting_at=min((item.waiting_since for item in waiting), default=None),
                oldest_created_at=min((item.submitted_at for item in waiting), default=None),
                oldest_in_progress_at=min((at for at in running if at is not None), default=None),
                last_completed_at=self._state.last_completed_at,
            )

    async def history(self, key: Key) -> list[Attempt]:
        """See `QueueViews.history`."""
        with self._state.lock:
            item = self._state.items.get(key)
            return [] if item is None else list(item.attempts)

    async def workers(self) -> list[Presence]:
        """See `QueueViews.workers`."""
        with self._state.lock:
            return sorted(self._alive(), key=lambda worker: worker.worker)

    def _alive(self) -> list[Presence]:
        now = self._state.clock.now()
        return [worker for worker, until in self._state.workers.values() if until > now]


def _status(item: Item, *, with_message: bool) -> ItemStatus:
    message = item.message
    return ItemStatus(
        item_id=message.item_id,
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        task_type=message.label,
        status=item.status,
        submitted_at=item.submitted_at,
        task_id=message.task_id,
        started_at=item.started_at,
        ended_at=item.ended_at,
        error=item.error,
        attempts=message.attempts,
        losses=message.losses,
        conflicts=message.conflicts,
        message=message if with_message else None,
    )
