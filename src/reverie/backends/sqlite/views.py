"""Looking at the queue on SQLite, beside the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.backends.moves import ItemStatus, Page, Status
from reverie.backends.sqlite.step import SQL, message_from_row

if TYPE_CHECKING:
    import apsw

    from reverie.backends.moves import StatusQuery
    from reverie.storage.sqlite import Database

__all__ = ["SqliteViews", "status_of"]

STATUS = {
    "pending": Status.WAITING,
    "processing": Status.IN_PROGRESS,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
}


def status_of(stored: str, error: str | None) -> Status:
    """Map a row of `pending_messages` to the engine's own word for it."""
    return Status.CANCELLED if stored == "failed" and error == "cancelled" else STATUS[stored]


class SqliteViews:
    """See `reverie.backends.interface.QueueViews`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        bindings = {
            "user_id": query.user_id,
            "item_id": query.item_id,
            "task_id": query.task_id,
            "limit": query.limit + 1,
        }

        statement = SQL[
            "read_item"
            if query.item_id is not None
            else "read_task"
            if query.task_id is not None
            else "read_user"
        ]

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(statement, bindings).fetchall()

        rows = await self._database.read(job)
        items = [_item(row, with_message=query.with_message) for row in rows[: query.limit]]
        return Page(rows=items, truncated=len(rows) > query.limit)


def _item(row: tuple[Any, ...], *, with_message: bool) -> ItemStatus:
    item_id, user_id, cube, label, status, submitted, task_id, started, ended, error, attempts, losses = row[
        1:13
    ]
    return ItemStatus(
        item_id=item_id,
        user_id=user_id,
        mem_cube_id=cube,
        task_type=label,
        status=status_of(status, error),
        submitted_at=submitted,
        task_id=task_id,
        started_at=started,
        ended_at=ended,
        error=error,
        attempts=attempts,
        losses=losses,
        message=message_from_row(row[13:]) if with_message else None,
    )
