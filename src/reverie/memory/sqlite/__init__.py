"""Memory in an SQLite file, its own or the queue's."""

from reverie.memory.sqlite.store import SqliteMemoryStore

__all__ = ["SqliteMemoryStore"]
