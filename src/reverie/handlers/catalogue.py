"""The catalogue of built-in handlers: one entry for each label that every installation handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reverie.handlers.add import add
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CATALOGUE", "Builtin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """A built-in handler. Fields that are None follow the settings of the label, then those of the worker."""

    label: str
    function: Callable[..., Any]
    batch: bool = False
    level: int | None = None
    """The level; None means the level of the label in `LABEL_LEVELS`."""
    timeout_s: float | None = None
    max_attempts: int | None = None
    credential: str | None = None
    """The name of the credential that its messages use; None means the label."""
    role: Role = Role.WRITER
    """The role that a caller needs to submit messages of the label."""


CATALOGUE: tuple[Builtin, ...] = (Builtin(label="add", function=add),)
