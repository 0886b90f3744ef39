"""`reverie usage`: what calls of the language model have cost, by tenant, label and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.app import opened_memory
from reverie.cli.options import AnyUser, Json, OfCube, Url
from reverie.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.models.budgets import SpentBudget
    from reverie.models.usage import Usage

__all__ = ["usage"]

MOST_NAMED = 5
"""The most tenants with a spent budget that are named one by one."""


def usage(  # noqa: PLR0917  options
    user: AnyUser = None,
    cube: OfCube = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How many days back, today included.")] = 7,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many rows.")] = 100,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the tokens and the money that the language model has cost, the newest day first.

    Days are those of UTC. Tenants whose budget is spent today are named on standard error.

    Example: reverie usage --days 1
    """
    with opened_memory(url) as scheduler:
        found = scheduler.observe.usage(user_id=user, mem_cube_id=cube, days=days, limit=limit)
        spent = scheduler.observe.budgets_spent(user_id=user, mem_cube_id=cube)
        if json:
            print_json({"usage": found, "budgets_spent": spent})
            return
        if found:
            _show(found)
        else:
            note(f"the language model was not called in the last {days} days")
        if len(found) == limit:
            note(f"there may be more than {limit} rows: --limit shows more")
        _tell_spent(spent)


def _show(found: Sequence[Usage]) -> None:
    """Print the rows and, if there are several, their sum; the column of money only if something has cost."""
    has_price = any(row.micros for row in found)
    columns = ["day", "user", "cube", "label", "calls", "tokens in", "tokens out"]
    rows: list[list[object]] = [
        [row.day, row.user_id, row.mem_cube_id, row.label, row.calls, row.input_tokens, row.output_tokens]
        for row in found
    ]
    if has_price:
        columns.append("money")
        for cells, row in zip(rows, found, strict=True):
            cells.append(f"{row.micros / 1e6:.4f}")
    if len(found) > 1:
        sums = [
            sum(getattr(row, name) for row in found) for name in ("calls", "input_tokens", "output_tokens")
        ]
        money = [f"{sum(row.micros for row in found) / 1e6:.4f}"] if has_price else []
        rows.append(["together", "", "", "", *sums, *money])
    print_table(columns, rows)


def _tell_spent(spent: Sequence[SpentBudget]) -> None:
    for budget in spent[:MOST_NAMED]:
        note(
            f"the {budget.what} budget of {budget.user_id}/{budget.mem_cube_id} is spent until tomorrow "
            f"(UTC): llm.{budget.what}_per_day"
        )
    if len(spent) > MOST_NAMED:
        note(f"{len(spent) - MOST_NAMED} other budgets are spent, too: --json lists all")
