"""Mending the memories of a salvaged file: their text index is rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.memory.words import index_words
from reverie.storage.queries import load_queries
from reverie.storage.salvage import Room

if TYPE_CHECKING:
    import apsw

__all__ = ["MEMORY_ROOM"]

SQL = load_queries(__package__ or "", "mend.sql")


def mend(connection: apsw.Connection) -> None:
    """Fill the text index from the items that are left."""
    texts: list[tuple[Any, ...]] = connection.execute(SQL["texts"]).fetchall()
    for seq, text in texts:
        connection.execute(SQL["index_text"], {"seq": seq, "words": index_words(text)})


MEMORY_ROOM = Room("memory", "reverie.memory.sqlite", "memory_items", mend)
