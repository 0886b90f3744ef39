"""Mending the queue of a salvaged file: lanes and counts are rebuilt from the messages that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.sqlite.counts import count_anew
from reverie.storage.queries import load_queries
from reverie.storage.salvage import Room

if TYPE_CHECKING:
    import apsw

__all__ = ["QUEUE_ROOM"]

SQL = load_queries(__package__ or "", "mend.sql")
STEPS = (
    "assume_counters",
    "mend_lanes",
    "mend_counters",
    "count_running",
    "count_parents",
    "wake_lanes",
)


def mend(connection: apsw.Connection) -> None:
    """Give each message that is left a lane, and each lane the right counts."""
    for name in STEPS:
        connection.execute(SQL[name])
    count_anew(connection)


QUEUE_ROOM = Room("queue", "reverie.backends.sqlite", "pending_messages", mend)
