"""The table of all routes of the HTTP API, gathered from the files that have their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.api import (
    admin,
    capture,
    chat,
    control,
    cubes,
    events,
    feedback,
    language,
    memories,
    memory_lists,
    memory_pages,
    openmem,
    operation,
    product,
    push,
    scheduler,
    sessions,
    suggestions,
    triggers,
    unsupported,
    webhooks,
)

if TYPE_CHECKING:
    from reverie.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *product.ROUTES,
    *memories.ROUTES,
    *memory_lists.ROUTES,
    *memory_pages.ROUTES,
    *feedback.ROUTES,
    *cubes.ROUTES,
    *chat.ROUTES,
    *suggestions.ROUTES,
    *unsupported.ROUTES,
    *language.ROUTES,
    *capture.ROUTES,
    *sessions.ROUTES,
    *push.ROUTES,
    *scheduler.ROUTES,
    *control.ROUTES,
    *events.ROUTES,
    *triggers.ROUTES,
    *webhooks.ROUTES,
    *operation.ROUTES,
    *admin.ROUTES,
    *openmem.ROUTES,
)
