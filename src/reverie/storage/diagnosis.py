"""Translates SQLite's errors to ours: what each means for the caller, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from reverie.errors import BackendUnavailableError, CorruptDatabaseError, SchemaMigratedError

__all__ = ["DAMAGED", "LOCKED", "OF_THE_FILE", "Diagnosis", "may_write"]

DAMAGED = (apsw.CorruptError, apsw.NotADBError)
LOCKED = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
NOT_WRITABLE = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)
OF_THE_FILE = (*DAMAGED, *LOCKED, *NOT_WRITABLE, apsw.FullError, apsw.IOError, apsw.NoMemError)
"""Errors that do not depend on what was written: the caller may try the same again later."""

SUM_OF_VERSIONS = "SELECT total(version) FROM schema_versions"
"""Every migration raises this number."""


class Diagnosis:
    """What is known about the health of one file."""

    def __init__(self, path: str, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._file: tuple[int, int] | None = None
        self.damage: str | None = None
        """SQLite's words, if the file was found damaged since it was opened; else None."""
        self._rooms: dict[str, int] = {}
        """Room → version of its tables, as this process knows them."""
        self._versions = 0.0
        """The sum of all versions in the file when they were last compared."""
        self._migrated: tuple[str, int] | None = None
        """The room that a newer Reverie has migrated, and to which version."""

    def begin(self) -> None:
        """Forget what was known: the file was just opened."""
        self.damage, self._migrated, self._versions = None, None, 0.0
        self._rooms.clear()
        self._file = self._identity()

    def check(self) -> None:
        """Refuse to write to a file that is damaged, migrated, or no longer the one that was opened."""
        if self.damage is not None:
            raise CorruptDatabaseError(self._path, self.damage)
        if self._migrated is not None:
            room, found = self._migrated
            raise SchemaMigratedError(self._path, room, found, self._rooms[room])
        if self._identity() != self._file:
            raise BackendUnavailableError(
                f"{self._path} was deleted, moved or replaced while it is in use: nothing more is written. "
                "Put the file back (its -wal too), or start this process again to use the new one"
            )

    def use(self, room: str, version: int) -> None:
        """Note that this process writes to the tables of a room as they are in this version."""
        self._rooms[room] = version

    def check_versions(self, connection: apsw.Connection) -> None:
        """Refuse to write to tables that a newer Reverie has migrated; called in each write transaction."""
        versions = connection.execute(SUM_OF_VERSIONS).get
        if versions == self._versions:
            return
        for room, found in connection.execute("SELECT room, version FROM schema_versions"):
            if found > self._rooms.get(room, found):
                self._migrated = room, found
                self.check()
        self._versions = versions

    @property
    def moved(self) -> bool:
        """Whether the path now leads to another file than the one that was opened, or to none."""
        return self._identity() != self._file

    def name(self, error: BaseException, *, whole: bool = False) -> BaseException:
        """Return the error to raise in place of SQLite's; the same error if it is not about the file.

        whole: the error stopped a whole transaction, so it does not belong to a single job.
        """
        if not isinstance(error, Exception):
            return error  # an interrupt says nothing about the file
        if isinstance(error, DAMAGED):
            self.damage = str(error)
            named: BackendUnavailableError = CorruptDatabaseError(self._path, self.damage)
        elif isinstance(error, BackendUnavailableError) or not (whole or isinstance(error, OF_THE_FILE)):
            return error
        else:
            named = BackendUnavailableError(f"{self._path}: {self._advice(error)}")
        named.__cause__ = error
        return named

    def _advice(self, error: BaseException) -> str:
        if isinstance(error, apsw.FullError):
            return f"the disk is full ({error}): free space on it, then try again"
        if isinstance(error, LOCKED):
            return (
                "locked by another process for longer than "
                f"queue.busy_timeout_s = {self._busy_timeout_s:g} s ({error}): "
                "let that process end, or wait longer; then try again"
            )
        if isinstance(error, NOT_WRITABLE):
            return f"{self.obstacle()} ({error})"
        if isinstance(error, apsw.IOError):
            return f"the disk cannot be read or written ({error}): look after the disk, then try again"
        return str(error) or repr(error)

    def obstacle(self) -> str:
        """Why the file cannot be opened and written, as far as its permissions tell."""
        path = Path(self._path)
        folder = path.parent
        user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
        if path.is_dir():
            return "is a folder: name a file in it"
        if folder.exists() and not folder.is_dir():
            return f"{folder} is a file, not a folder: use another path"
        if not folder.is_dir():
            return f"the folder {folder} does not exist: create it, or use another"
        if path.exists() and not may_write(path):
            return f"the file is read-only for {user}: let it write there (chmod, chown), or use another file"
        if not may_write(folder):
            return (
                f"the folder {folder} is read-only for {user}, and SQLite keeps files beside the database: "
                "let it write there (chmod, chown, mount), or use another folder"
            )
        return (
            f"cannot be opened for writing: look at it, and at {path.name}-wal and {path.name}-shm beside it"
        )

    def _identity(self) -> tuple[int, int] | None:
        if self._path == ":memory:":
            return None
        try:
            found = os.stat(self._path)  # noqa: PTH116  before each commit: a Path would cost more than the call
        except OSError:
            return None
        return found.st_dev, found.st_ino


def may_write(path: Path) -> bool:
    """Whether this process may write to a path; False also if nothing is there."""
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.W_OK, effective_ids=effective)
