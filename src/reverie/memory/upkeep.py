"""Upkeep: what a store tells of its memories so that they can be kept in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
from pydantic import Field

from reverie.configuration.section import Section
from reverie.memory.item import MemoryItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.interface import Tenant

__all__ = ["PASSES_KEPT", "ChangedItem", "KeepsUpkeep", "Pass", "Similar", "UpkeepSettings"]

PASSES_KEPT = 10
"""How many passes of a tenant can be undone, the last first; older ones are forgotten."""


class UpkeepSettings(Section):
    """Upkeep: when memories are kept in order, and how."""

    enabled: bool = Field(
        default=True,
        description="whether workers begin upkeep by themselves; else only messages, triggers and `reverie "
        "upkeep run` do",
    )
    organize_after: int = Field(
        100, ge=1, description="items that a tenant gets before mem_organize runs for the tenant"
    )
    compress_after: int = Field(
        1000, ge=1, description="items that a tenant gets before memory_compression runs for the tenant"
    )
    near_limit: float = Field(
        0.9,
        gt=0,
        le=1,
        description="share of memory.long_term_limit from which on a tenant is served after a tenth as many "
        "new items",
    )
    rest_s: float = Field(
        3600, ge=0, description="seconds between two passes of a label that workers begin for a tenant"
    )
    look_s: float = Field(60, gt=0, description="seconds between two looks for tenants that have grown")
    archive_after_days: float = Field(
        180, gt=0, description="days after which items that nobody asked for move to the archive"
    )
    similarity: float = Field(
        0.8,
        gt=0,
        le=1,
        description="cosine of two vectors from which on items count as similar; embedders whose cosines are "
        "all high, such as e5, need more",
    )
    batch: int = Field(200, ge=10, le=1000, description="items that one message looks at")
    group_size: int = Field(
        12, ge=2, le=50, description="items that the language model is shown at once, at most"
    )


class ChangedItem(msgspec.Struct, frozen=True):
    """An item that was written or changed, and its number: the cursor of the next page."""

    seq: int
    item: MemoryItem


class Similar(msgspec.Struct, frozen=True, kw_only=True):
    """Two living items of a tenant that resemble each other."""

    id: str
    other: str
    cosine: float | None = None
    """By their vectors; None if one has none, or if they were found by their words alone."""
    overlap: float = 0.0
    """The share of the words of the shorter item that the other one has."""


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of upkeep that has changed something."""

    id: str
    """The item_id of its first message."""
    label: str
    began_at: int
    undone_at: int | None = None
    changes: int = 0


@runtime_checkable
class KeepsUpkeep(Protocol):
    """A store whose memories can be kept in order.

    The effects `InPass`, `PassDone`, `Judged` and `UndoPass` write what these calls read.
    """

    async def changed(self, tenant: Tenant, since: int, after: int, limit: int) -> list[ChangedItem]:
        """Living items of working and long-term memory that were written or changed since a moment.

        A turn also counts as changed when it is read for facts. The items come in the order of their
        numbers, beginning after the number `after`.
        """
        ...

    async def similar(
        self, tenant: Tenant, memory_ids: Sequence[str], *, least_cosine: float, least_overlap: float
    ) -> list[Similar]:
        """The living items that resemble each of some items, by their vectors or by their words."""
        ...

    async def coldest(self, tenant: Tenant, tier: str, before: int, limit: int) -> list[MemoryItem]:
        """The items of a tier that nobody has used since a moment, those of least worth first."""
        ...

    async def tier_counts(self, tenant: Tenant) -> dict[str, int]:
        """How many living items each tier of a tenant has; tiers without items are left out."""
        ...

    async def judged(self, tenant: Tenant, keys: Sequence[str]) -> list[str]:
        """Those of some groups that were decided upon, in any order."""
        ...

    async def upkeep_until(self, tenant: Tenant, label: str) -> int | None:
        """Until when upkeep of a label has looked at all changes; None if it has never come to its end."""
        ...

    async def passes(self, tenant: Tenant, limit: int) -> list[Pass]:
        """The last passes of a tenant, the newest first."""
        ...

    async def count_fresh(self, labels: Sequence[str]) -> None:
        """Count the items that were written since the last call, by tenant, for upkeep of each label.

        Items that replace others do not count.
        """
        ...

    async def grown(self, label: str, *, least: int, few: int, near: int, limit: int) -> list[Tenant]:
        """Tenants that have got at least `least` new items since the last pass of a label, most first.

        For tenants with `near` items or more in long-term memory, `few` new items are enough.
        """
        ...
