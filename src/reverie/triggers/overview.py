"""Describe trigger types to people: settings, statistics, and their triggers page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.triggers import GLOBAL_KEY, TriggerState, TypeStatistics
from reverie.principal import current_principal
from reverie.triggers.types import settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.triggers import KnownType

__all__ = ["TriggerPage", "TypeOverview", "overview", "page"]


class TypeOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger type as it is in force."""

    task_type: str
    enabled: bool
    version: int
    """The version of its configuration."""
    workers: int
    """How many live workers handle it."""
    next_due: int | None
    """The next due time of a periodic or cron type."""
    settings: dict[str, Any]
    """The settings as in `scheduler.tasks`, defaults included."""
    statistics: TypeStatistics


class TriggerPage(msgspec.Struct, frozen=True):
    """Some triggers of a type, by user key."""

    rows: list[TriggerState]
    next: str | None
    """The value of `after` for the next page; None if this is the last."""


async def overview(backend: Backend, known: Sequence[KnownType]) -> list[TypeOverview]:
    """Describe these types, in their order."""
    shown = current_principal.get().error_shown
    statistics = {
        one.task_type: msgspec.structs.replace(one, last_error=shown(one.last_error))
        for one in await backend.triggers.statistics()
    }
    workers = await backend.views.workers()
    found = []
    for one in known:
        settings = settings_of(one)
        own = []
        if settings.trigger_mode != "user_activity":
            own = await backend.triggers.states(one.name, GLOBAL_KEY)
        found.append(
            TypeOverview(
                task_type=one.name,
                enabled=one.enabled,
                version=one.version,
                workers=sum(one.name in worker.labels for worker in workers),
                next_due=own[0].scheduled_at if own else None,
                settings=settings.model_dump(mode="json", exclude={"enabled"})
                | {"interval": settings.interval_s},
                statistics=statistics.get(one.name) or TypeStatistics(task_type=one.name),
            )
        )
    return found


async def page(backend: Backend, task_type: str, after: str, limit: int) -> TriggerPage:
    """At most `limit` triggers of a type, by user key.

    A page that would end at the trigger of no user has one more, because the key of that trigger is "", which
    as `after` means the start.
    """
    rows = await backend.triggers.states(task_type, after=after, limit=limit + 2)
    if len(rows) > limit and rows[limit - 1].user_key == GLOBAL_KEY:
        limit += 1
    more = len(rows) > limit
    rows = rows[:limit]
    return TriggerPage(rows, rows[-1].user_key if more else None)
