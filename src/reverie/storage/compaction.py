"""What takes room in an SQLite file, and giving empty pages back while other processes use the file.

SQLite uses empty pages again, but a file does not become smaller by itself. `VACUUM` writes the file anew. It
holds the write lock for as long as that takes, which depends on what the file contains, not on how large it
has become. Readers go on meanwhile; writers of other processes wait. Claims stay valid, because the rows keep
their numbers: SQLite renumbers only the rows of tables without an index.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from reverie.errors import BackendUnavailableError
from reverie.storage.diagnosis import Diagnosis
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Compaction", "FileUsage", "Part", "compact", "expected_wait_s", "look_into"]

SQL = load_queries(__package__ or "", "compaction.sql")
BYTES_PER_SECOND = 50_000_000
"""How fast a file is written anew, at least; 130 MB a second were measured."""
COPIES = 2
"""How often the contents of a file must fit on the disk during a compaction: as a copy, and in the log."""
TICK = 20_000
"""Steps of SQLite between two signs of progress."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A table or an index of a file."""

    name: str
    kind: str
    """table or index."""
    rows: int | None
    """None for an index."""
    bytes: int


class FileUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What takes room in one file."""

    path: str
    file_bytes: int
    log_bytes: int
    """The `-wal` file beside it."""
    free_bytes: int
    """Empty pages of the file. They are used again, or given back by a compaction."""
    parts: list[Part]
    """The largest first."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction has done to one file."""

    path: str
    bytes_before: int
    """The file and its log."""
    bytes_after: int
    writers_waited_s: float
    """How long the file was locked for writers, at most."""


def look_into(path: str, busy_timeout_s: float = 10) -> FileUsage:
    """Measure a file. This reads all its pages, and holds up nobody."""
    with _connected(path, busy_timeout_s) as connection, connection:  # one transaction: the numbers fit
        sizes: list[tuple[Any, ...]] = connection.execute(SQL["sizes"]).fetchall()
        parts = [
            Part(
                name=name,
                kind=kind,
                rows=_count(connection, name) if kind == "table" else None,
                bytes=size,
            )
            for kind, name, size in sizes
        ]
        page_size, pages, free = _pages(connection)
    log_bytes = _size(f"{path}-wal")
    return FileUsage(
        path=path,
        file_bytes=page_size * pages,
        log_bytes=log_bytes,
        free_bytes=page_size * free,
        parts=sorted(parts, key=lambda part: (-part.bytes, -(part.rows or 0), part.name)),
    )


def expected_wait_s(path: str, busy_timeout_s: float = 10) -> float:
    """About how long writers would wait for a compaction, at most, in seconds."""
    with _connected(path, busy_timeout_s) as connection:
        page_size, pages, free = _pages(connection)
    return page_size * (pages - free) / BYTES_PER_SECOND


def compact(
    path: str, busy_timeout_s: float = 10, on_tick: Callable[[float], None] = lambda _: None
) -> Compaction:
    """Write a file anew without its empty pages, and empty its log. Other processes may use the file.

    `on_tick` is called now and then with the seconds that have passed; if it raises, all stays as it was.
    `BackendUnavailableError` if the disk has too little room, or another process holds the file for too long.
    """
    with _connected(path, busy_timeout_s) as connection:
        page_size, pages, free = _pages(connection)
        needed, left = COPIES * page_size * (pages - free), shutil.disk_usage(Path(path).parent).free
        if left < needed:
            reason = f"a compaction needs {needed} bytes, and the disk has {left} left: free space on it"
            raise BackendUnavailableError(f"{path}: {reason}")
        before, began = _size(path) + _size(f"{path}-wal"), time.monotonic()

        def tick() -> bool:
            on_tick(time.monotonic() - began)
            return False

        connection.set_progress_handler(tick, TICK)
        connection.execute("VACUUM")
        connection.set_progress_handler(None)
        took = time.monotonic() - began
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        after = _size(path) + _size(f"{path}-wal")
    return Compaction(path=path, bytes_before=before, bytes_after=after, writers_waited_s=round(took, 3))


@contextmanager
def _connected(path: str, busy_timeout_s: float) -> Iterator[apsw.Connection]:
    """A connection to a file that exists; errors of the file are named."""
    diagnosis = Diagnosis(path, busy_timeout_s)
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(round(busy_timeout_s * 1000))
            yield connection
        finally:
            connection.close(True)  # noqa: FBT003  apsw takes it by position only
    except apsw.Error as error:
        raise diagnosis.name(error, whole=True) from error


def _pages(connection: apsw.Connection) -> tuple[int, int, int]:
    """The size of a page, the number of pages, and how many of these are empty."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["pages"]).fetchall()
    ((page_size, pages, free),) = rows
    return page_size, pages, free


def _count(connection: apsw.Connection, table: str) -> int:
    quoted = table.replace('"', '""')
    rows: int = connection.execute(f'SELECT count(*) FROM "{quoted}"').get  # noqa: S608  a name cannot be bound
    return rows


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
