"""How many messages of each label stand how: collected while a step moves them, written once at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.moves import Status
from reverie.backends.trigger_state import LEAST_KEPT_MS
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    import apsw

__all__ = ["Counts", "count_anew", "count_if_needed"]

SQL = load_queries(__package__ or "", "counts.sql")
WRITE = SQL["write_counts"]
COLUMNS = {
    Status.WAITING: 0,
    Status.IN_PROGRESS: 1,
    Status.COMPLETED: 2,
    Status.FAILED: 3,
    Status.CANCELLED: 4,
}
EVER = {Status.COMPLETED: 5, Status.FAILED: 6}
COMPLETED = EVER[Status.COMPLETED]
"""The column of what was ever completed."""


class Counts(dict[str, list[int]]):
    """The changes of one step: for each label, one number for each column."""

    def move(self, label: str, before: Status | None, after: Status | None, count: int = 1) -> None:
        """Messages go from one status to another; None: they are new, or gone."""
        change = self.get(label)
        if change is None:
            change = self[label] = [0] * (len(COLUMNS) + len(EVER))
        if before is not None:
            change[COLUMNS[before]] -= count
        if after is not None:
            change[COLUMNS[after]] += count
            if after in EVER:
                change[EVER[after]] += count


def count_if_needed(connection: apsw.Connection) -> None:
    """Count anew if a process has used the file that does not count: one of an earlier version."""
    if not connection.execute(SQL["is_counted"]).get:
        count_anew(connection)


def count_anew(connection: apsw.Connection) -> None:
    """Make counts, and triggers, what the messages say.

    What was ever completed stays, as far as it was counted.
    """
    for name in ("forget_counts", "count_all", "set_counted", "drop_orphans"):
        connection.execute(SQL[name])
    connection.execute(SQL["end_lost_runs"], {"least_kept_ms": LEAST_KEPT_MS})
    connection.execute(SQL["count_tasks"])
