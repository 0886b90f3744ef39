"""Looking at the queue in memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reverie.backends.moves import Status
from reverie.backends.views import ItemStatus, LabelState, Page

if TYPE_CHECKING:
    from reverie.backends.memory.state import Item, State
    from reverie.backends.moves import Presence
    from reverie.backends.views import StatusQuery

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
            unsettled = [item for item in self._state.items.values() if not item.status.ended]
            counts = Counter((item.message.label, item.status) for item in unsettled)
            handled = {label for worker in self._alive() for label in worker.labels}
            paused = dict(self._state.paused)
        names = {label for label, _ in counts} | handled | set(paused)
        return [
            LabelState(
                label=label,
                waiting=counts[label, Status.WAITING],
                in_progress=counts[label, Status.IN_PROGRESS],
                handled=label in handled,
                paused=paused.get(label),
            )
            for label in sorted(names)
        ]

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
        message=message if with_message else None,
    )
