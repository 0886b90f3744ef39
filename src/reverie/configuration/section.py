"""A group of settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A group of settings: unknown names are refused, and numbers that are none."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
