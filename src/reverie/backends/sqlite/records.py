"""Records and the audit log in an SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.records import MOST_AUDITED, MOST_RECORDS, AuditEntry, Record, TooManyRecordsError
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.backends.records import Dropped
    from reverie.storage.sqlite import Database

__all__ = ["SqliteRecords"]

SQL = load_queries(__package__ or "", "records.sql")
LAST = 2**63 - 1


class SqliteRecords:
    """See `reverie.backends.interface.Records`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, kind: str, record_id: str) -> Record | None:
        """See `Records.get`."""

        def job(connection: apsw.Connection) -> str | None:
            value: str | None = connection.execute(SQL["read_record"], {"kind": kind, "id": record_id}).get
            return value

        value = await self._database.read(job)
        return None if value is None else Record(kind=kind, id=record_id, value=msgspec.json.decode(value))

    async def page(self, kind: str, *, after: str = "", limit: int = 1000) -> list[Record]:
        """See `Records.page`."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(
                SQL["page_records"], {"kind": kind, "after": after, "limit": limit}
            ).fetchall()

        rows = await self._database.read(job)
        return [Record(kind=kind, id=name, value=msgspec.json.decode(value)) for name, value in rows]

    async def change(self, changes: Sequence[Record | Dropped], entries: Sequence[AuditEntry] = ()) -> None:
        """See `Records.change`."""

        def job(connection: apsw.Connection) -> None:
            for change in changes:
                which = {"kind": change.kind, "id": change.id}
                if isinstance(change, Record):
                    value = msgspec.json.encode(change.value).decode()
                    connection.execute(SQL["write_record"], {**which, "value": value})
                    if connection.execute(SQL["count_records"], which).get > MOST_RECORDS:
                        raise TooManyRecordsError(change.kind)
                else:
                    connection.execute(SQL["remove_record"], which)
            if entries:
                connection.executemany(SQL["add_entry"], [msgspec.structs.asdict(each) for each in entries])
                connection.execute(SQL["trim_log"], {"kept": MOST_AUDITED})

        await self._database.write(job, urgent=True)

    async def audited(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """See `Records.audited`."""
        statement = SQL["read_log"] if user_id is None else SQL["read_log_of_user"]
        bindings: dict[str, Any] = {"before": LAST if before is None else before, "limit": limit}
        if user_id is not None:
            bindings["user_id"] = user_id

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(statement, bindings).fetchall()

        return [
            AuditEntry(
                number=number, at=at, who=who, action=action, target=target, user_id=user, trace_id=trace_id
            )
            for number, at, who, action, target, user, trace_id in await self._database.read(job)
        ]
