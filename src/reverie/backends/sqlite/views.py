"""Views of the queue on SQLite. Reads do not wait for the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.moves import Presence
from reverie.backends.sqlite.attempts import history
from reverie.backends.sqlite.rows import load_statements, message_from_row, status_of
from reverie.backends.views import ItemStatus, LabelState, LaneState, Page, QueueHealth
from reverie.message import Lane

if TYPE_CHECKING:
    import apsw

    from reverie.backends.views import Attempt, StatusQuery
    from reverie.base.clock import Clock
    from reverie.message import Key
    from reverie.storage.sqlite import Database

__all__ = ["SqliteViews"]

SQL = load_statements("views.sql")
READS = {name: SQL[name].replace(":filter", SQL["filter"]) for name in ("item", "task", "user", "dead")}

COUNTS = ("waiting", "in_progress", "completed", "failed", "cancelled", "completed_ever", "failed_ever")
LOOK_AT, COMPARE = 1000, 100
"""To find the oldest message: how many rows are read, and how many eligible ones are compared."""


class SqliteViews:
    """See `reverie.backends.interface.QueueViews`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        bindings = {
            "user_id": query.user_id,
            "item_id": query.item_id,
            "task_id": query.task_id,
            "label": query.label,
            "dead": query.dead,
            "after": int(query.after or 0),
            "limit": query.limit + 1,
        }
        if query.user_id is None:
            name = "dead"
        elif query.item_id is not None:
            name = "item"
        else:
            name = "user" if query.task_id is None else "task"

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(READS[name], bindings).fetchall()

        rows = await self._database.read(job)
        page = rows[: query.limit]
        return Page(
            rows=[_item(row, with_message=query.with_message) for row in page],
            next=str(page[-1][0]) if page and len(rows) > query.limit else None,
        )

    async def labels(self) -> list[LabelState]:
        """See `QueueViews.labels`."""
        now = self._clock.now()

        def job(connection: apsw.Connection) -> tuple[list[tuple[Any, ...]], dict[str, str], list[Presence]]:
            counts = connection.execute(SQL["labels"]).fetchall()
            return counts, dict(connection.execute(SQL["paused"])), self._workers(connection, now)

        rows, paused, workers = await self._database.read(job)
        counts = {label: dict(zip(COUNTS, numbers, strict=True)) for label, *numbers in rows}
        handled = {label for worker in workers for label in worker.labels}
        return [
            LabelState(
                label=label,
                **counts.get(label, {}),
                handled=label in handled,
                paused=paused.get(label),
            )
            for label in sorted(counts.keys() | handled | paused.keys())
        ]

    async def workers(self) -> list[Presence]:
        """See `QueueViews.workers`."""
        now = self._clock.now()
        return await self._database.read(lambda connection: self._workers(connection, now))

    def _workers(self, connection: apsw.Connection, now: int) -> list[Presence]:
        """The workers that are alive. On a full disk they cannot say so, and the last known ones count."""
        since = 0 if self._database.disk_is_full else now
        rows: list[tuple[Any, ...]] = connection.execute(SQL["workers"], {"now": since}).fetchall()
        return [
            Presence(worker=worker, labels=tuple(msgspec.json.decode(labels)), lives_ms=lives_ms)
            for worker, labels, lives_ms in rows
        ]

    async def lanes(self, user_id: str) -> list[LaneState]:
        """See `QueueViews.lanes`."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL["lanes"], {"user_id": user_id}).fetchall()

        return [
            LaneState(lane=Lane(*name), waiting=waiting, in_progress=running)
            for *name, waiting, running in await self._database.read(job)
        ]

    async def due_later(self, lane: Lane, unique_key: str) -> int | None:
        """See `QueueViews.due_later`."""
        bindings = {
            "user_id": lane.user_id,
            "project_id": lane.mem_cube_id,
            "message_type": lane.label,
            "unique_key": unique_key,
            "now": self._clock.now(),
        }

        def job(connection: apsw.Connection) -> int | None:
            due: int | None = connection.execute(SQL["due_later"], bindings).get
            return due

        return await self._database.read(job)

    async def health(self) -> QueueHealth:
        """See `QueueViews.health`."""
        bindings = {"now": self._clock.now(), "look_at": LOOK_AT, "compare": COMPARE}

        def job(connection: apsw.Connection) -> QueueHealth:
            oldest: tuple[Any, ...] = connection.execute(SQL["oldest_waiting"], bindings).fetchall()[0]
            if oldest[0] is None:
                oldest = connection.execute(SQL["first_in_turn"]).fetchall()[0]
            return QueueHealth(
                oldest_waiting_at=oldest[0],
                oldest_created_at=oldest[1],
                oldest_in_progress_at=connection.execute(SQL["oldest_in_progress"], bindings).get,
                last_completed_at=connection.execute(SQL["last_completed"]).get,
            )

        return await self._database.read(job)

    async def history(self, key: Key) -> list[Attempt]:
        """See `QueueViews.history`."""
        return await self._database.read(lambda connection: history(connection, key))


def _item(row: tuple[Any, ...], *, with_message: bool) -> ItemStatus:
    _, stored, submitted_at, started_at, ended_at, error, *columns = row
    message = message_from_row(columns)
    if stored == "completed":  # its last run is not in `retry_count`, because it has not failed
        msgspec.structs.force_setattr(message, "attempts", message.attempts + 1)
    return ItemStatus(
        item_id=message.item_id,
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        task_type=message.label,
        status=status_of(stored, error),
        submitted_at=submitted_at,
        task_id=message.task_id,
        started_at=started_at,
        ended_at=ended_at,
        error=error,
        attempts=message.attempts,
        losses=message.losses,
        conflicts=message.conflicts,
        message=message if with_message else None,
    )
