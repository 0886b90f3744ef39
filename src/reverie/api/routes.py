"""The table of all routes of the HTTP API, gathered from the files that have their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.api import (
    chat,
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
    suggestions,
    triggers,
    unsupported,
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
    *chat.ROUTES,
    *suggestions.ROUTES,
    *unsupported.ROUTES,
    *language.ROUTES,
    *openmem.ROUTES,
    *push.ROUTES,
    *scheduler.ROUTES,
    *triggers.ROUTES,
    *operation.ROUTES,
)
