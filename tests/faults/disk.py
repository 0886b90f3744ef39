"""A disk that refuses to write while a test says so: an SQLite VFS around the system's own."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Literal

import apsw

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

Fault = Literal["full", "write", "sync"]
CODES = {
    "full": apsw.SQLITE_FULL,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
}
LOG = {apsw.SQLITE_OPEN_WAL}
EVERYWHERE = {*LOG, apsw.SQLITE_OPEN_MAIN_DB, apsw.SQLITE_OPEN_MAIN_JOURNAL, apsw.SQLITE_OPEN_TEMP_JOURNAL}

numbers = itertools.count(1)


class Disk(apsw.VFS):
    """Give its `name` to a `Database`; `breaks` and `works` flip the switch, for all that is open."""

    def __init__(self) -> None:
        self.name = f"faulty-{next(numbers)}"
        self.fault: Fault | None = None
        self.where: Collection[int] = EVERYWHERE
        self.room: Path | None = None
        """A file whose removal gives a full disk some room."""
        self._refusals = threading.Semaphore(0)
        super().__init__(self.name, "", exclude=set())

    def breaks(self, fault: Fault, where: Collection[int] = EVERYWHERE) -> None:
        self.fault, self.where = fault, where

    def wait_until_refused(self, times: int) -> None:
        """Until it has refused so often, since the last such wait."""
        for _ in range(times):
            assert self._refusals.acquire(timeout=30), "nobody writes"

    def works(self) -> None:
        self.fault = None

    def refuse(self, fault: Fault | Literal["size"], kinds: Collection[int]) -> None:
        """Raise, if that is what the disk does to files of these kinds now."""
        same = fault == self.fault or (fault in {"write", "size"} and self.fault in {"full", "write"})
        if self.room is not None and not self.room.exists():
            return
        if self.fault is not None and same and not set(kinds).isdisjoint(self.where):
            self._refusals.release()
            error = apsw.exception_for(CODES[self.fault])
            error.args = ("disk I/O error" if self.fault != "full" else "database or disk is full",)
            raise error

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  SQLite's name
        return File(self, name, flags)

    def excepthook(self, *_: object) -> bool:
        return True  # refusing is what it is for


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._kinds = [kind for kind in EVERYWHERE if flags[0] & kind]

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.refuse("write", self._kinds)
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.refuse("size", self._kinds)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.refuse("sync", self._kinds)
        super().xSync(flags)

    def excepthook(self, *_: object) -> bool:
        return True
