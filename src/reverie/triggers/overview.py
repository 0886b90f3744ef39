"""What people see of task types: how each is set, what has become of its runs, and its tasks page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.triggers import GLOBAL_KEY, TriggerState, TypeStatistics
from reverie.triggers.types import settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.triggers import KnownType

__all__ = ["TriggerPage", "TypeOverview", "overview", "page"]


class TypeOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A task type as it is in force."""

    task_type: str
    enabled: bool
    version: int
    """Of the configuration that it is from."""
    workers: int
    """Live workers that handle it."""
    next_due: int | None
    """Of a periodic or cron type: when its next run is."""
    settings: dict[str, Any]
    """As in `scheduler.tasks`, defaults too."""
    statistics: TypeStatistics


class TriggerPage(msgspec.Struct, frozen=True):
    """Some tasks of a type, by user key."""

    rows: list[TriggerState]
    next: str | None
    """What `after` must be for those that follow; None if there are none."""


async def overview(backend: Backend, known: Sequence[KnownType]) -> list[TypeOverview]:
    """All that is known of these types, in their order."""
    statistics = {one.task_type: one for one in await backend.triggers.statistics()}
    workers = await backend.views.workers()
    found = []
    for one in known:
        settings = settings_of(one)
        own = [] if settings.trigger_mode == "user_activity" else await _own_task(backend, one.name)
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
    """At most `limit` tasks (one more rather than ending at the one that belongs to no user)."""
    rows = await backend.triggers.states(task_type, after=after, limit=limit + 2)
    if len(rows) > limit and rows[limit - 1].user_key == GLOBAL_KEY:
        limit += 1
    more = len(rows) > limit
    rows = rows[:limit]
    return TriggerPage(rows, rows[-1].user_key if more else None)


async def _own_task(backend: Backend, task_type: str) -> list[TriggerState]:
    return await backend.triggers.states(task_type, GLOBAL_KEY)
