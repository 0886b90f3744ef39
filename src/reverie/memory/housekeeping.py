"""Housekeeping: what a store tells of items whose time is over, and how many items there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from reverie.errors import ReverieError
from reverie.memory.upkeep import KeepsUpkeep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.memory.interface import MemoryStore, Tenant

__all__ = [
    "ANY",
    "Counted",
    "KeepsHouse",
    "TenantCounts",
    "Which",
    "changed_cubes",
    "retention_rules",
]

ANY = "*"
Which = Literal["expired", "uncounted"]
"""Which tenants: those with items past their `expires_at`, or those that have changed since their items were
last counted."""
Counted = tuple[str, str, int]
"""A kind, a tier, and how many living items are of both."""


class TenantCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many living items a tenant, or all tenants together, had on three days."""

    user_id: str = ""
    mem_cube_id: str = ""
    counts: tuple[Counted, ...] = ()
    """When they were last counted."""
    day_before: int = 0
    """How many items there were a day before."""
    week_before: int = 0


def retention_rules(retention_s: Mapping[str, float]) -> dict[str, int]:
    """The setting `memory.retention_s` with whole keys: `kind/tier`, `kind/*`, `*/tier` → milliseconds."""
    return {
        key if "/" in key else f"{key}/{ANY}": round(seconds * 1000) for key, seconds in retention_s.items()
    }


async def changed_cubes(store: MemoryStore, user_id: str, label: str) -> list[str]:
    """The cubes of a user that have changed since upkeep of a label has looked at them, in order."""
    if not isinstance(store, KeepsHouse) or not isinstance(store, KeepsUpkeep):
        raise ReverieError(f"the memory store {type(store).__name__} cannot list changed cubes")
    found = []
    for cube in await store.cubes(user_id):
        last = await store.upkeep_until((user_id, cube), label)
        if await store.changed((user_id, cube), last or 0, 0, 1):
            found.append(cube)
    return found


@runtime_checkable
class KeepsHouse(Protocol):
    """A store whose items can be cleaned up and counted. `KeepStatistics` writes what is counted."""

    async def expired(
        self, tenant: Tenant, now: int, rules: Mapping[str, int], limit: int
    ) -> list[tuple[str, int]]:
        """The ids and versions of items whose time is over, the newest first.

        `rules` are those of `retention_rules`. The rule for a kind in a tier counts more than the one for a
        kind, and that more than the one for a tier.
        """
        ...

    async def some_tenants(self, which: Which, after: Tenant | None, now: int, limit: int) -> list[Tenant]:
        """The first `limit` of these tenants after `after`, in order."""
        ...

    async def cubes(self, user_id: str) -> list[str]:
        """The cubes of a user that have memories, in order."""
        ...

    async def counts(self, tenant: Tenant) -> list[Counted]:
        """How many living items of each kind and tier a tenant has now."""
        ...

    async def counted(
        self, day: str, *, user_id: str | None, mem_cube_id: str | None, limit: int
    ) -> Sequence[TenantCounts]:
        """What was counted of tenants until a day (UTC): those with the most items first."""
        ...

    async def counted_together(self, day: str) -> tuple[TenantCounts, int]:
        """What was counted of all tenants together until a day, and how many tenants have memories."""
        ...
