"""Where messages wait, and for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["QueueSettings"]


class QueueSettings(BaseModel):
    """The queue."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(
        None,
        description="sqlite:///path, redis://host:port/db, memory://; default: reverie.db in the data folder",
    )
    durability: Literal["full", "normal"] = Field(
        "full", description="SQLite: full survives a power cut, normal the death of the process"
    )
    max_losses: int = Field(
        5, ge=1, description="claims that may end without an outcome before a message is buried"
    )
    retention_s: float = Field(
        7 * 24 * 3600, ge=0, description="seconds that the status of completed and cancelled work is kept"
    )
    allow_volatile: bool = Field(
        default=False, description="Redis: accept a server that may forget (no persistence, or evicting)"
    )
    durability_assumed: bool = Field(
        default=False, description="Redis: trust a server whose CONFIG may not be read to be persistent"
    )
