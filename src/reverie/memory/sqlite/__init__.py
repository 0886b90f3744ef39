"""The memory store in an SQLite file, which may be the file of the queue."""

from reverie.memory.sqlite.store import SqliteMemoryStore

__all__ = ["SqliteMemoryStore"]
