"""The table of all routes of the HTTP API, gathered from the files that have their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.api import (
    cubes,
    feedback,
    language,
    memories,
    memory_lists,
    openmem,
    operation,
    product,
    push,
    scheduler,
    triggers,
)

if TYPE_CHECKING:
    from reverie.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *product.ROUTES,
    *memories.ROUTES,
    *memory_lists.ROUTES,
    *feedback.ROUTES,
    *cubes.ROUTES,
    *language.ROUTES,
    *openmem.ROUTES,
    *push.ROUTES,
    *scheduler.ROUTES,
    *triggers.ROUTES,
    *operation.ROUTES,
)
