"""The ledger on SQLite: what calls of the language model have cost."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from reverie.memory.sqlite.rows import to_json
from reverie.models.usage import Usage, read_place
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.models.usage import Spent, UsageQuery
    from reverie.storage.sqlite import Database

__all__ = ["SqliteLedger"]

SQL = load_queries(__package__ or "", "ledger.sql")
KEPT_DAYS = 2
"""Days for which the keys of calls are kept, so that a repeated call counts once. Sums are kept for ever."""
FIRST_DAY, LAST_DAY = "0000-00-00", "9999-99-99"


class SqliteLedger:
    """See `reverie.models.usage.Ledger`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write_spent(self, spent: Sequence[Spent]) -> None:
        """See `Ledger.write_spent`."""
        if spent:
            await self._database.write(lambda connection: _write(connection, spent), patient=True)

    async def spent_on(
        self, tenant: tuple[str, str], day: str, labels: Sequence[str] = ()
    ) -> tuple[int, int]:
        """See `Ledger.spent_on`."""
        bindings = {
            "user_id": tenant[0],
            "project_id": tenant[1],
            "day": day,
            "labels": to_json(labels) if labels else None,
        }
        ((tokens, micros),) = await self._rows("spent_on", bindings)
        return tokens, micros

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See `Ledger.usage`."""
        day, *rest = read_place(query.after) if query.after is not None else (LAST_DAY, "", "", "")
        bindings: dict[str, Any] = {
            "since": query.since or FIRST_DAY,
            "until": min(day, query.until or LAST_DAY),
            "day": day,
            **dict(zip(("after_user", "after_project", "after_label"), rest, strict=True)),
            "project_id": query.mem_cube_id,
            "limit": query.limit,
        }
        statement = "usage"
        if query.user_id is not None:
            statement, bindings["user_id"] = "usage_of_user", query.user_id
        return [
            Usage(
                day=day, user_id=user_id, mem_cube_id=cube, label=label,
                calls=calls, input_tokens=given, output_tokens=answered, micros=micros,
            )
            for day, user_id, cube, label, calls, given, answered, micros in await self._rows(
                statement, bindings
            )
        ]  # fmt: skip

    async def _rows(self, statement: str, bindings: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall()
        )


def _write(connection: apsw.Connection, spent: Sequence[Spent]) -> None:
    """Count the calls whose keys are new, and forget old keys."""
    by_key = {one.key: one for one in spent}
    rows: list[tuple[Any, ...]] = connection.execute(
        SQL["enter_calls"], {"spent": to_json(list(by_key.values()))}
    ).fetchall()
    if rows:
        new = [by_key[key] for (key,) in rows]
        connection.execute(SQL["add_usage"], {"spent": to_json(new)})
        today = max(one.day for one in new)
        before = (date.fromisoformat(today) - timedelta(days=KEPT_DAYS)).isoformat()
        connection.execute(SQL["forget_calls"], {"before": before})
