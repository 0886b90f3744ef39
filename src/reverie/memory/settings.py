"""Where memories are kept."""

from __future__ import annotations

from pydantic import Field

from reverie.configuration.section import Section

__all__ = ["MemorySettings"]


class MemorySettings(Section):
    """The memory store."""

    url: str | None = Field(
        None,
        description="sqlite:///path or memory://; default: the queue's own file if it is SQLite, "
        "memory:// if the queue is memory://, else reverie.db in the data folder",
    )
