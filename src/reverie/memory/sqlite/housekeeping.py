"""Items whose time is over, and how many items there are, on SQLite."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.memory.housekeeping import Counted, TenantCounts
from reverie.memory.sqlite.rows import to_json
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reverie.effect import KeepStatistics
    from reverie.memory.housekeeping import Which
    from reverie.memory.interface import Tenant
    from reverie.memory.sqlite.effects import EffectStep
    from reverie.storage.sqlite import Database

__all__ = ["Housekeeping", "keep_statistics"]

SQL = load_queries(__package__ or "", "housekeeping.sql")
DAYS_KEPT = 400
"""For how many days it is known how many items there were."""


def keep_statistics(step: EffectStep, effect: KeepStatistics) -> None:
    """Write how many items the tenant has on a day, and add the difference to the sums of all tenants."""
    before = step.run(SQL["last_counts"], day=effect.day)
    known = {(kind, tier): items for kind, tier, items in _decode_counts(before[0][0])} if before else {}
    counts = {(kind, tier): items for kind, tier, items in effect.counts}
    total = sum(counts.values())
    step.run(SQL["keep_counts"], day=effect.day, items=total, counts=to_json(effect.counts))
    step.run(SQL["note_counted"], changes=effect.changes)
    oldest = (date.fromisoformat(effect.day) - timedelta(days=DAYS_KEPT)).isoformat()
    step.run(SQL["forget_counts"], oldest=oldest)
    for kind, tier in sorted(counts.keys() | known.keys()):
        difference = counts.get((kind, tier), 0) - known.get((kind, tier), 0)
        if difference:
            step.run(SQL["add_total"], kind=kind, tier=tier, day=effect.day, difference=difference)
            step.run(SQL["forget_totals"], kind=kind, tier=tier, oldest=oldest)


class Housekeeping:
    """Reads what `KeepsHouse` asks for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def expired(
        self, tenant: Tenant, now: int, rules: Mapping[str, int], limit: int
    ) -> list[tuple[str, int]]:
        """See `KeepsHouse.expired`."""
        bindings = {
            "user_id": tenant[0], "project_id": tenant[1], "now": now, "limit": limit,
            "rules": to_json(dict(rules)), "has_rules": bool(rules),
        }  # fmt: skip
        return [(memory_id, version) for memory_id, version in await self._rows("expired", bindings)]

    async def some_tenants(self, which: Which, after: Tenant | None, now: int, limit: int) -> list[Tenant]:
        """See `KeepsHouse.some_tenants`."""
        user_id, cube = after or ("", "")
        bindings = {"user_id": user_id, "project_id": cube, "now": now, "limit": limit}
        return [(user, name) for user, name in await self._rows(f"tenants_{which}", bindings)]

    async def cubes(self, user_id: str) -> list[str]:
        """See `KeepsHouse.cubes`."""
        return [cube for (cube,) in await self._rows("cubes", (user_id,))]

    async def counts(self, tenant: Tenant) -> list[Counted]:
        """See `KeepsHouse.counts`."""
        return [(kind, tier, items) for kind, tier, items in await self._rows("counts", tenant)]

    async def counted(
        self, day: str, *, user_id: str | None, mem_cube_id: str | None, limit: int
    ) -> list[TenantCounts]:
        """See `KeepsHouse.counted`."""
        day_before, week_before = _before(day)
        bindings = {
            "day": day, "day_before": day_before, "week_before": week_before, "user_id": user_id,
            "project_id": mem_cube_id, "limit": limit,
        }  # fmt: skip
        return [
            TenantCounts(
                user_id=user,
                mem_cube_id=cube,
                counts=_decode_counts(counts),
                day_before=day_items,
                week_before=week_items,
            )
            for user, cube, counts, day_items, week_items in await self._rows("counted", bindings)
        ]

    async def counted_together(self, day: str) -> tuple[TenantCounts, int]:
        """See `KeepsHouse.counted_together`."""
        counts, *before = [await self._rows("totals", {"day": moment}) for moment in (day, *_before(day))]
        day_before, week_before = [sum(row[2] for row in rows) for rows in before]
        ((tenants,),) = await self._rows("count_tenants", ())
        told = tuple((kind, tier, items) for kind, tier, items in counts)
        return TenantCounts(counts=told, day_before=day_before, week_before=week_before), tenants

    async def _rows(self, statement: str, bindings: Any) -> list[tuple[Any, ...]]:
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall()
        )


def _before(day: str) -> list[str]:
    """The days one and seven days before a day."""
    moment = date.fromisoformat(day)
    return [(moment - timedelta(days=days)).isoformat() for days in (1, 7)]


_decode_counts = msgspec.json.Decoder(tuple[tuple[str, str, int], ...]).decode
