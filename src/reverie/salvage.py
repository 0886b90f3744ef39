"""Saving a damaged database: what can be read goes into a new file, and what follows from it is made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.backends.sqlite.counts import count_anew
from reverie.memory.words import index_words
from reverie.storage.queries import load_migrations, load_queries
from reverie.storage.salvage import copy_readable
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    import apsw

    from reverie.storage.salvage import Salvaged

__all__ = ["salvage"]

SQL = load_queries(__package__ or "", "salvage.sql")
ROOMS = {
    "queue": ("reverie.backends.sqlite", "pending_messages"),
    "memory": ("reverie.memory.sqlite", "memory_items"),
}
"""The package of each room, and the table by which one sees that it lives in a file."""


def salvage(damaged: str, saved: str) -> list[Salvaged]:
    """Write a new file with all that can be read of a damaged one; say what became of each table."""
    tables = copy_readable(damaged, saved)
    names = {table.table for table in tables}
    database = Database(saved)
    database.open()
    try:
        for room, (package, table) in ROOMS.items():
            if table in names:
                known = {"room": room, "version": len(load_migrations(package))}
                database.submit(lambda c, known=known: c.execute(SQL["assume_version"], known)).result()  # type: ignore[misc]
                database.migrate(room, package)
                database.submit(MENDERS[room]).result()
    finally:
        database.close()
    return tables


def _mend_queue(connection: apsw.Connection) -> None:
    """Give each message that is there a lane, and each lane the right numbers."""
    for name in MENDING:
        connection.execute(SQL[name])
    count_anew(connection)


def _mend_memory(connection: apsw.Connection) -> None:
    """Fill the text index."""
    texts: list[tuple[Any, ...]] = connection.execute(SQL["texts"]).fetchall()
    for seq, text in texts:
        connection.execute(SQL["index_text"], {"seq": seq, "words": index_words(text)})


MENDING = (
    "assume_counters",
    "mend_lanes",
    "mend_counters",
    "count_running",
    "count_depth",
    "count_total_depth",
    "count_parents",
    "wake_lanes",
)
MENDERS = {"queue": _mend_queue, "memory": _mend_memory}
