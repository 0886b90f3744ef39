"""Recounting how many messages of each label are in each status, and how many each lane has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.trigger_state import LEAST_KEPT_MS
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    import apsw

__all__ = ["SQL", "count_anew", "count_if_needed"]

SQL = load_queries(__package__ or "", "counts.sql")


def count_if_needed(connection: apsw.Connection) -> None:
    """Recount if a process of an earlier version, which does not count, has used the file."""
    if not connection.execute(SQL["is_counted"]).get:
        count_anew(connection)


def count_anew(connection: apsw.Connection) -> None:
    """Make the counts and the triggers agree with the messages.

    The totals of messages ever completed and ever failed never shrink.
    """
    for name in (
        "forget_counts",
        "count_all",
        "count_depth",
        "count_total_depth",
        "set_counted",
        "drop_orphans",
        "put_back_all",
    ):
        connection.execute(SQL[name])
    connection.execute(SQL["end_lost_runs"], {"least_kept_ms": LEAST_KEPT_MS})
    connection.execute(SQL["count_tasks"])
