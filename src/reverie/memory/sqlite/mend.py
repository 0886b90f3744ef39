"""Mending the memories of a salvaged file: their index is made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.memory.sqlite.effects import adopt
from reverie.memory.sqlite.index import Index, Makers
from reverie.storage.queries import load_queries
from reverie.storage.salvage import Room

if TYPE_CHECKING:
    import apsw

__all__ = ["MEMORY_ROOM"]

SQL = load_queries(__package__ or "", "mend.sql")
INDEX_TABLES = (
    "memory_cards",
    "memory_postings",
    "memory_bits",
    "memory_shelves",
    "memory_tiers",
    "memory_sessions",
    "memory_names",
    "memory_unindexed",
    "memory_searches",
    "memory_tenants",
    "memory_models",
    "memory_state",
)
"""Everything that can be made anew from the items."""


def mend(connection: apsw.Connection) -> None:
    """Index the items that are left by their words; the indexer makes their vectors when the file is used."""
    connection.execute(SQL["old_index"])
    for table in INDEX_TABLES:
        connection.execute(f"DELETE FROM {table}")  # noqa: S608  a name of the list above
    connection.execute(SQL["forget_index"])
    index = Index(connection, Makers.known(connection, None))
    rows: list[tuple[Any, ...]] = connection.execute(SQL["items"]).fetchall()
    for row in rows:
        adopt(connection, index, row, None)


MEMORY_ROOM = Room("memory", "reverie.memory.sqlite", "memory_items", mend)
