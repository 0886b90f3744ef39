"""Counting anew how many messages of each label stand how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.trigger_state import LEAST_KEPT_MS
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    import apsw

__all__ = ["SQL", "count_anew", "count_if_needed"]

SQL = load_queries(__package__ or "", "counts.sql")


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
