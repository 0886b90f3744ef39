"""`reverie statistics`: how many memories there are, how fast they grow, what they have cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.app import opened_memory
from reverie.cli.options import AnyUser, Json, OfCube, Url
from reverie.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from reverie.face.statistics import TenantStatistics

__all__ = ["statistics"]


def statistics(
    user: AnyUser = None,
    cube: OfCube = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many tenants.")] = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show how many memories there are by kind and tier, their growth, and the tokens of the language model.

    The numbers are those of the last `statistics_update`, which workers run every hour.

    Example: reverie statistics --limit 5
    """
    with opened_memory(url) as scheduler:
        found = scheduler.observe.statistics(user_id=user, mem_cube_id=cube, limit=limit)
        if json:
            print_json(found)
            return
        if not found.total.items and not found.tenants:
            note(
                "nothing was counted yet: a worker counts every hour (reverie triggers run statistics_update)"
            )
            return
        columns = [
            "user",
            "cube",
            "items",
            "in a day",
            "in a week",
            "tokens today",
            "in a week",
            "tiers",
            "kinds",
        ]
        rows = [_cells(one, one.user_id or "", one.mem_cube_id or "") for one in found.tenants]
        if user is None:
            rows.append(_cells(found.total, "together", f"{found.tenants_with_memories} tenants"))
        print_table(columns, rows)


def _cells(one: TenantStatistics, user: str, cube: str) -> list[object]:
    tiers, kinds = (
        ", ".join(f"{name} {items}" for name, items in sorted(part.items()))
        for part in (one.tiers, one.kinds)
    )
    grown = f"{one.grown_day:+d}", f"{one.grown_week:+d}"
    return [user, cube, one.items, *grown, one.tokens_day, one.tokens_week, tiers, kinds]
