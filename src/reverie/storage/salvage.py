"""Saves a damaged SQLite file: readable rows are copied to a new file, where each room mends its tables.

The damaged file is only read. Text indexes are created empty: the room that owns one fills it from its rows.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import apsw
import msgspec

from reverie.errors import CorruptDatabaseError, SalvageError
from reverie.storage.diagnosis import DAMAGED
from reverie.storage.queries import load_migrations, load_queries
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Room", "Salvaged", "salvage"]

SQL = load_queries(__package__ or "", "salvage.sql")

UNREADABLE = (*DAMAGED, UnicodeDecodeError)
FARTHEST = 100_000
"""How many row ids after the last readable one are tried if the end of a table is damaged."""
SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"


class Salvaged(msgspec.Struct, frozen=True):
    """How much of one table was saved."""

    table: str
    rows: int
    """Rows that were copied."""
    lost: int
    """Row ids that could not be read; for a table without row ids, 1 if anything could not be read."""


class Room(NamedTuple):
    """The tables of one room in a file, and how they are mended."""

    name: str
    package: str
    """The package that has the room's migrations."""
    table: str
    """A table that every file of this room has."""
    mend: Callable[[apsw.Connection], None]
    """Rebuilds what can be computed from the saved rows."""


def salvage(damaged: str, saved: str, rooms: Sequence[Room]) -> list[Salvaged]:
    """Write a new file with everything that is readable in a damaged one; return what was saved by table."""
    tables = copy_readable(damaged, saved)
    names = {table.table for table in tables}
    database = Database(saved)
    database.open()
    try:
        for room in rooms:
            if room.table in names:
                known = {"room": room.name, "version": len(load_migrations(room.package))}
                database.submit(lambda c, known=known: c.execute(SQL["assume_version"], known)).result()  # type: ignore[misc]
                database.migrate(room.name, room.package)
                database.submit(room.mend).result()
    finally:
        database.close()
    return tables


def copy_readable(damaged: str, saved: str) -> list[Salvaged]:
    """Copy all tables, indexes and views, row by row, leaving out what cannot be read."""
    target_path = Path(saved)
    if not Path(damaged).is_file():
        raise SalvageError(f"{damaged} is not a file")
    try:
        target_path.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise SalvageError(f"cannot create {saved}: {error.strerror}; name a new file") from error
    source = apsw.Connection(
        f"file:{quote(str(Path(damaged).resolve()))}?mode=ro",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
    )
    target = apsw.Connection(saved, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        source.execute("PRAGMA cell_size_check = ON")
        with target:
            copied = _copy(source, target)
    except DAMAGED as error:
        target_path.unlink()
        raise CorruptDatabaseError(damaged, f"not even its list of tables can be read: {error}") from error
    finally:
        source.close()
        target.close()
    return copied


def _copy(source: apsw.Connection, target: apsw.Connection) -> list[Salvaged]:
    schema: list[tuple[Any, ...]] = source.execute(SCHEMA).fetchall()
    tables = {name: sql for kind, name, sql in schema if kind == "table" and not name.startswith("sqlite_")}
    virtual = [name for name, sql in tables.items() if sql.upper().startswith("CREATE VIRTUAL")]
    hidden = {name for name in tables for index in virtual if name.startswith(f"{index}_")}
    done = []
    for name, sql in tables.items():
        if name not in hidden:  # hidden tables are created together with their index
            target.execute(sql)
            if name not in virtual:
                done.append(_copy_table(source, target, name))
    for kind, _, sql in schema:
        if kind != "table":
            target.execute(sql)
    return done


def _copy_table(source: apsw.Connection, target: apsw.Connection, table: str) -> Salvaged:
    described: list[tuple[Any, ...]] = target.execute(f'PRAGMA table_info("{table}")').fetchall()
    columns = [f'"{row[1]}"' for row in described]
    key = [f'"{row[1]}"' for row in sorted(described, key=itemgetter(5)) if row[5]]
    has_ids = not target.execute("SELECT wr FROM pragma_table_list WHERE name = ?", (table,)).get
    if has_ids:
        columns.insert(0, "rowid")
    reader = _Reader(source, table, columns)
    marks = ", ".join("?" * len(columns))
    insert = f'INSERT OR IGNORE INTO "{table}" ({", ".join(columns)}) VALUES ({marks})'  # noqa: S608  names of the schema
    rows = 0
    for row in reader.by_id() if has_ids else reader.from_both_ends(key):
        target.execute(insert, row)
        rows += target.changes()
    return Salvaged(table, rows, reader.lost)


class _Reader:
    """The readable rows of one table."""

    def __init__(self, source: apsw.Connection, table: str, columns: list[str]) -> None:
        self._source = source
        self._select = f'SELECT {", ".join(columns)} FROM "{table}"'  # noqa: S608  names of the schema
        self.lost = 0

    def by_id(self) -> Iterator[tuple[Any, ...]]:
        """Read rows in the order of their ids; after damage, try each following id until one is readable."""
        last = 0
        while True:
            try:
                for row in self._source.execute(f"{self._select} WHERE rowid > ? ORDER BY rowid", (last,)):
                    if row[0] > last:
                        last = row[0]
                        yield row
            except UNREADABLE:
                found = self._next_readable(last)
                if found is None:
                    return
                last = found[0]
                yield found
            else:
                return

    def from_both_ends(self, key: list[str]) -> Iterator[tuple[Any, ...]]:
        """Read rows forward up to the damage, then backward; a row may come twice."""
        backward = " ORDER BY " + ", ".join(f"{column} DESC" for column in key)
        for order in ("", backward):
            try:
                yield from self._source.execute(self._select + order)
            except UNREADABLE:
                self.lost = 1
            else:
                return

    def _next_readable(self, last: int) -> tuple[Any, ...] | None:
        try:
            ids: list[tuple[Any, ...]] = self._source.execute(
                f"{self._select} ORDER BY rowid DESC LIMIT 1"
            ).fetchall()
            highest = ids[0][0] if ids else last
        except UNREADABLE:
            highest = last + FARTHEST
        unreadable = 0
        for candidate in range(last + 1, highest + 1):
            try:
                rows = self._source.execute(f"{self._select} WHERE rowid = ?", (candidate,)).fetchall()
            except UNREADABLE:
                unreadable += 1
                continue
            if rows:
                self.lost += unreadable
                return rows[0]
        self.lost += unreadable
        return None
