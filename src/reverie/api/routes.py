"""The table of all routes of the HTTP API, gathered from the files that have their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.api import feedback, language, memories, openmem, operation, product, push, scheduler, triggers

if TYPE_CHECKING:
    from reverie.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *product.ROUTES,
    *memories.ROUTES,
    *feedback.ROUTES,
    *language.ROUTES,
    *openmem.ROUTES,
    *push.ROUTES,
    *scheduler.ROUTES,
    *triggers.ROUTES,
    *operation.ROUTES,
)
