"""The table of all routes of the HTTP API, gathered from the files that have their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.api import (
    admin,
    control,
    events,
    language,
    memories,
    memory_pages,
    operation,
    product,
    push,
    scheduler,
    triggers,
    webhooks,
)

if TYPE_CHECKING:
    from reverie.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *product.ROUTES,
    *memories.ROUTES,
    *memory_pages.ROUTES,
    *language.ROUTES,
    *push.ROUTES,
    *scheduler.ROUTES,
    *control.ROUTES,
    *events.ROUTES,
    *triggers.ROUTES,
    *webhooks.ROUTES,
    *operation.ROUTES,
    *admin.ROUTES,
)
