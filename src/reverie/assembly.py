"""Building the parts of a process from its settings."""

from __future__ import annotations

from reverie.backends.sqlite.mend import QUEUE_ROOM
from reverie.memory.sqlite.mend import MEMORY_ROOM

__all__ = ["ROOMS"]

ROOMS = (QUEUE_ROOM, MEMORY_ROOM)
"""The rooms that may live in an SQLite file."""
