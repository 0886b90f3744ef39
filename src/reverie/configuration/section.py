"""A group of settings."""

from __future__ import annotations

from typing import Any

from annotated_types import Le
from pydantic import BaseModel, ConfigDict

__all__ = ["TEN_YEARS_S", "Section"]

NUMBERS = (int, float, int | None, float | None)
TEN_YEARS_S = 10 * 365 * 24 * 3600
LARGEST = {"_s": TEN_YEARS_S, "_ms": TEN_YEARS_S * 1000}
"""Ending of a name → largest value; every part of Reverie can still represent a moment that far ahead."""
LARGEST_NUMBER = 2**53
"""The largest value of all other numbers: up to here, whole numbers are exact in Lua and JSON too."""


class Section(BaseModel):
    """A group of settings: unknown names are refused, and numbers that are not finite or too large."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give every number without an upper bound the largest value for its name."""
        for name, info in cls.model_fields.items():
            bounded = any(
                getattr(rule, "le", getattr(rule, "lt", None)) is not None for rule in info.metadata
            )
            if info.annotation in NUMBERS and not bounded:
                largest = (most for ending, most in LARGEST.items() if name.endswith(ending))
                info.metadata.append(Le(next(largest, LARGEST_NUMBER)))
        cls.model_rebuild(force=True)
