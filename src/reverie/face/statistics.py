"""Statistics for dashboards: how many memories there are, how fast they grow, what they have cost."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import TYPE_CHECKING

import msgspec

from reverie.errors import ReverieError
from reverie.memory.housekeeping import KeepsHouse
from reverie.models.usage import UsageQuery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.memory.housekeeping import TenantCounts
    from reverie.memory.interface import MemoryStore
    from reverie.models.usage import Ledger, Usage

__all__ = ["Statistics", "TenantStatistics", "read_statistics"]

MOST_SUMS = 100_000
"""How many sums of the ledger are looked at for the tokens."""


class TenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The memories of one tenant, or of all together, when they were last counted (`statistics_update`)."""

    user_id: str | None = None
    """None: of all tenants together."""
    mem_cube_id: str | None = None
    items: int = 0
    """Living items: superseded ones are not counted."""
    kinds: dict[str, int] = {}
    tiers: dict[str, int] = {}
    kinds_by_tier: dict[str, dict[str, int]] = {}
    grown_day: int = 0
    """How many items more there are than a day before."""
    grown_week: int = 0
    tokens_day: int = 0
    """Tokens of the language model today (UTC)."""
    tokens_week: int = 0
    """Tokens of the last seven days, today included."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What dashboards show of memories."""

    day: str
    """Today in UTC."""
    tenants_with_memories: int
    total: TenantStatistics
    tenants: list[TenantStatistics]
    """Those with the most items first."""


async def read_statistics(
    store: MemoryStore,
    ledger: Ledger,
    today: date,
    *,
    user_id: str | None,
    mem_cube_id: str | None,
    limit: int,
) -> Statistics:
    """What was counted until today, of all tenants together and of the largest ones."""
    if not isinstance(store, KeepsHouse):
        raise ReverieError(f"the memory store {type(store).__name__} keeps no statistics (KeepsHouse)")
    day = today.isoformat()
    tenants = await store.counted(day, user_id=user_id, mem_cube_id=mem_cube_id, limit=limit)
    together, number = await store.counted_together(day)
    since = (today - timedelta(days=6)).isoformat()
    spent = await ledger.usage(UsageQuery(since=since, limit=MOST_SUMS))
    by_tenant: dict[tuple[str, str], list[Usage]] = {}
    for one in spent:
        by_tenant.setdefault((one.user_id, one.mem_cube_id), []).append(one)
    return Statistics(
        day=day,
        tenants_with_memories=number,
        total=_told(together, spent, day),
        tenants=[_told(one, by_tenant.get((one.user_id, one.mem_cube_id), ()), day) for one in tenants],
    )


def _told(counted: TenantCounts, spent: Iterable[Usage], day: str) -> TenantStatistics:
    kinds: Counter[str] = Counter()
    tiers: Counter[str] = Counter()
    both: dict[str, dict[str, int]] = {}
    for kind, tier, items in counted.counts:
        kinds[kind] += items
        tiers[tier] += items
        both.setdefault(kind, {})[tier] = items
    total = kinds.total()
    spent = list(spent)
    return TenantStatistics(
        user_id=counted.user_id or None,
        mem_cube_id=counted.mem_cube_id or None,
        items=total,
        kinds=dict(kinds),
        tiers=dict(tiers),
        kinds_by_tier=both,
        grown_day=total - counted.day_before,
        grown_week=total - counted.week_before,
        tokens_day=sum(one.tokens for one in spent if one.day == day),
        tokens_week=sum(one.tokens for one in spent),
    )
