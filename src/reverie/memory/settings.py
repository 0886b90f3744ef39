"""Where memories are kept."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MemorySettings"]


class MemorySettings(BaseModel):
    """The memory store."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(
        None,
        description="sqlite:///path or memory://; default: the queue's own file if it is SQLite, "
        "memory:// if the queue is memory://, else reverie.db in the data folder",
    )
