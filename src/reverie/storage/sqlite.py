"""One SQLite file: a single writer that commits in groups, and bounded pools of readers.

All rooms in one file share one `Database`, so that a change of the queue and a change of memory can be one
transaction. `writer.py` has the writing thread, `diagnosis.py` explains errors.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakSet

import apsw

from reverie.base.threads import ThreadPool
from reverie.errors import (
    BackendUnavailableError,
    ClosedError,
    CorruptDatabaseError,
    ReadTimeoutError,
    SchemaTooNewError,
)
from reverie.storage.diagnosis import DAMAGED, Diagnosis, may_write
from reverie.storage.file_system import refuse_network_file_system
from reverie.storage.patience import Patience
from reverie.storage.queries import load_migrations
from reverie.storage.reserve import Reserve
from reverie.storage.right_of_way import RightOfWay
from reverie.storage.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Unpack

    from reverie.storage.writer import WriteOptions

__all__ = ["Database", "Durability", "ReadLimit"]

T = TypeVar("T")
Durability = Literal["full", "normal"]

VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (room TEXT PRIMARY KEY, version INTEGER)"
CLOSE_S = 5.0
"""How many seconds a close waits for reads that go on. The last connection to end writes the log back."""
READERS = 5
"""The most reads at once; further ones wait."""
SEARCHERS = 2
"""The most searches at once. They have threads of their own, so that other reads never wait for them.

More would take turns in running Python code, and each turn has its price.
"""
UPKEEP_READERS = 1
"""The most reads of upkeep at once. They take long, and no other read waits for them."""
READ_TIMEOUT_S = 30.0
"""How long a read may take."""
STEPS_BETWEEN_LOOKS = 10_000
"""After how many steps of SQLite a read looks whether it should end: a few milliseconds."""
BUSY_TIMEOUT_S = 10.0
"""How long to wait for a writer of another process."""

CACHE_MIB = {"write": 32, "search": 16, "look": 4, "upkeep": 4}
"""How much of the file the connection of a thread keeps in memory at most, in MiB, by its purpose.

The caches of all threads together are most of the memory of a worker whose file is large. A page that is not
in a cache is most likely in that of the system.
"""

CHECKPOINT_PAGES = 4000
"""After how many pages (16 MB) the log is copied to the file: a page that changes often is copied once."""

LONGEST_LOG = 64 * 1024 * 1024
"""A log with more bytes than this is emptied before the next read of upkeep."""
EMPTYING_S = 0.5
"""How long writes may be held up for that."""

LEAST_FREE_BYTES = 16 * 1024 * 1024
"""A disk with less free space than this counts as full."""


class ReadLimit:
    """The time that one read may take, its wait for a reader included, and whether it is still wanted."""

    def __init__(self, allowed_s: float, setting: str, *, waits: bool = False) -> None:
        """Count from now; with `waits`, from when a reader has time. An error names the limit `setting`."""
        self._allowed_s = allowed_s
        self._setting = setting
        self._waits = waits
        self._end = time.monotonic() + allowed_s
        self._unwanted = False

    def give_up(self) -> None:
        """End the read soon, because nobody waits for its answer any more."""
        self._unwanted = True

    def over(self) -> bool:
        """Whether the read should end."""
        return self._unwanted or time.monotonic() > self._end

    def run(self, job: Callable[[apsw.Connection], T], connection: apsw.Connection) -> T:
        """Run `job`; `ReadTimeoutError` if it was ended, or if its time was over before it began."""
        if self._waits:
            self._end = time.monotonic() + self._allowed_s
        if self.over():
            raise ReadTimeoutError(self._setting, self._allowed_s)
        connection.set_progress_handler(self.over, STEPS_BETWEEN_LOOKS)
        try:
            return job(connection)
        except apsw.InterruptError as error:
            raise ReadTimeoutError(self._setting, self._allowed_s) from error
        finally:
            connection.set_progress_handler(None)


class Database:
    """An SQLite file in WAL mode, or (`:memory:`) a database that lives as long as this object."""

    def __init__(
        self,
        path: str,
        durability: Durability = "full",
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        allow_network_fs: bool = False,
        reserve_bytes: int = 0,
        vfs: str | None = None,
    ) -> None:
        """Set the path of the file; nothing is opened yet.

        durability: `full` survives a power cut, `normal` the death of the process. Default full.
        busy_timeout_s: how long to wait for a writer of another process. Default 10 seconds.
        read_timeout_s: how long one read may take. Default 30 seconds.
        allow_network_fs: open the file even if it is on a network file system. Default false.
        reserve_bytes: room on the disk that is kept for commands such as cancel. Default none.
        vfs: the name of SQLite's virtual file system; tests use one that fails. Default the system's own.
        """
        self.path = path if path == ":memory:" else str(Path(path).expanduser().resolve())
        self.durability = durability
        self._busy_timeout_s = busy_timeout_s
        self._read_timeout_s = read_timeout_s
        self._allow_network_fs = allow_network_fs
        self._vfs = vfs
        self._diagnosis = Diagnosis(self.path, busy_timeout_s)
        self._patience = Patience(busy_timeout_s, None if path == ":memory:" else f"{self.path}-intake")
        self._reserve = Reserve(self.path, 0 if path == ":memory:" else reserve_bytes)
        self._writer: Writer | None = None
        self._readers = ThreadPool(READERS, "reverie-sqlite-reader")
        self._searchers = ThreadPool(SEARCHERS, "reverie-sqlite-searcher")
        self._upkeepers = ThreadPool(UPKEEP_READERS, "reverie-sqlite-upkeep")
        self.right_of_way = RightOfWay()
        """What searches have, and what long reads of upkeep give them between their steps."""
        self._reading: WeakSet[apsw.Connection] = WeakSet()
        self._local = threading.local()
        self._process: int | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create the file and its folder if they are missing, and start the writer. Idempotent."""
        with self._lock:
            if self._writer is not None:
                return
            in_memory = self.path == ":memory:"
            if not in_memory:
                self._create()
            connection = self._connect_writer()
            try:
                connection.execute(VERSIONS)
            except apsw.Error as error:
                connection.close()
                raise self._diagnosis.name(error, whole=True) from error
            self._diagnosis.begin()
            self._process = os.getpid()
            self._writer = Writer(
                connection,
                self._diagnosis,
                None if in_memory else self._connect_writer,
                self._reserve,
                patience=self._patience,
                durability=self.durability,
            )

    def close(self) -> None:
        """Commit all jobs submitted so far and close the file. Idempotent."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.end()
        if writer is not None:
            writer.join()
            if self._diagnosis.damage is not None:
                self._keep_readers_from_writing()
            self._readers.close(CLOSE_S)
            self._searchers.close(CLOSE_S)
            self._upkeepers.close(CLOSE_S)
            self._reserve.close()
            self._patience.close()

    def submit(self, job: Callable[[apsw.Connection], T], **options: Unpack[WriteOptions]) -> Future[T]:
        """Run `job` inside the next write transaction; the future is done when it is committed."""
        with self._lock:  # no job may reach a writer that was told to end
            writer = self._opened()
            if self._diagnosis.damage is not None:
                raise CorruptDatabaseError(self.path, self._diagnosis.damage)
            return writer.put(job, **options)

    @property
    def idle(self) -> bool:
        """Whether `run_here` would run a job at once."""
        writer = self._writer
        return writer is not None and self._diagnosis.damage is None and writer.idle

    @property
    def intake_waits(self) -> bool:
        """Whether another process has told lately that it waits for the lock to take messages in."""
        return self._patience.intake_waits

    def run_here(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run `job` in a write transaction of its own, on the calling thread, and commit it."""
        return self._opened().run_here(job)

    def _opened(self) -> Writer:
        """The writer; `ClosedError` if this process has none: a fork, for example, copies no threads."""
        if self._process not in {None, os.getpid()}:
            raise ClosedError(
                f"{self.path} was opened before this process was forked: make a scheduler in each process"
            )
        writer = self._writer
        if writer is None:
            raise ClosedError(f"the database {self.path} is not open")
        return writer

    async def write(self, job: Callable[[apsw.Connection], T], **options: Unpack[WriteOptions]) -> T:
        """Run `job` inside the next write transaction and wait until it is committed; see `submit`."""
        return await asyncio.wrap_future(self.submit(job, **options))

    async def read(
        self,
        job: Callable[[apsw.Connection], T],
        limit: ReadLimit | None = None,
        *,
        purpose: Literal["look", "search", "upkeep"] = "look",
    ) -> T:
        """Run `job` on a reader's connection, beside the writer.

        `ReadTimeoutError` if the read takes longer than its limit. A read whose caller is cancelled ends
        soon. Searches and upkeep have readers of their own; the wait for one of upkeep's does not count.
        """
        waits = purpose == "upkeep"
        limit = limit or ReadLimit(self._read_timeout_s, "queue.read_timeout_s", waits=waits)
        limited = partial(limit.run, job)
        try:
            if self.path == ":memory:":  # such a database has only one connection
                return await self.write(limited)
            self._opened()
            pool = {"look": self._readers, "search": self._searchers, "upkeep": self._upkeepers}[purpose]
            with self.right_of_way if purpose == "search" else nullcontext():
                return await asyncio.wrap_future(pool.submit(partial(self._read, limited, purpose)))
        except asyncio.CancelledError:
            limit.give_up()
            raise

    async def check_disk(self) -> None:
        """Raise `BackendUnavailableError`, with a reason and a remedy, if the file cannot be written now."""
        await self.write(lambda _: None)  # fails if the writer is dead, or the file damaged or locked
        path = Path(self.path)
        if not (may_write(path) and may_write(path.parent)):
            raise BackendUnavailableError(f"{self.path}: {self._diagnosis.obstacle()}")
        if self.disk_is_full:
            free = shutil.disk_usage(path.parent).free
            raise BackendUnavailableError(f"{self.path}: the disk has {free} bytes left: free space on it")

    @property
    def disk_is_full(self) -> bool:
        """Whether the disk has so little room that writes may fail."""
        if self.path == ":memory:":
            return False
        return shutil.disk_usage(Path(self.path).parent).free < LEAST_FREE_BYTES

    def migrate(self, room: str, package: str) -> None:
        """Bring the tables of one room up to date, each script in the transaction that records it."""
        scripts = load_migrations(package)

        def job(connection: apsw.Connection) -> None:
            row = connection.execute("SELECT version FROM schema_versions WHERE room = ?", (room,)).get
            found = row or 0
            if found > len(scripts):
                raise SchemaTooNewError(self.path, room, found, len(scripts))
            for script in scripts[found:]:
                connection.execute(script)
            if found < len(scripts):  # a full disk can be opened and looked at, because nothing is written
                record = "INSERT OR REPLACE INTO schema_versions VALUES (?, ?)"
                connection.execute(record, (room, len(scripts)))

        self.submit(job, urgent=True).result()
        self._diagnosis.use(room, len(scripts))

    def _create(self) -> None:
        """Create the file if it is missing, private to its user; refuse a place where SQLite's locks fail."""
        path = Path(self.path)
        if not self._allow_network_fs:
            refuse_network_file_system(self.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                path.touch(mode=0o600)  # memories are private
        except OSError as error:
            reason = f"{self.path}: {self._diagnosis.obstacle()} ({error.strerror})"
            raise BackendUnavailableError(reason) from error

    def _connect_writer(self) -> apsw.Connection:
        # SQLite would open a read-only file, refuse each write, and leave read-only files beside it.
        if self.path != ":memory:" and not may_write(Path(self.path)):
            raise BackendUnavailableError(f"{self.path}: {self._diagnosis.obstacle()}")
        connection = self._connect()
        connection.set_busy_handler(self._patience.wait)
        return connection

    def _connect(self, purpose: str = "write") -> apsw.Connection:
        try:
            # No flag to create the file: one that was deleted meanwhile must not come back empty.
            connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
            try:
                connection.set_busy_timeout(round(self._busy_timeout_s * 1000))
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {self.durability}")
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA cell_size_check = ON")  # finds damage early, for nothing
                connection.execute("PRAGMA secure_delete = ON")  # deleted memories leave the file
                connection.execute(f"PRAGMA cache_size = -{CACHE_MIB[purpose] * 1024}")
                connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            except BaseException:
                connection.close(True)  # noqa: FBT003  apsw takes it by position only
                raise
        except apsw.Error as error:
            raise self._diagnosis.name(error, whole=True) from error
        return connection

    def _keep_readers_from_writing(self) -> None:
        """Prevent the checkpoint by which the last connection to close would write to a damaged file."""
        for connection in list(self._reading):
            with suppress(apsw.Error):  # the connection is in use, and its read will fail
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _read(self, job: Callable[[apsw.Connection], T], purpose: str) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._connect(purpose)
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
            self._reading.add(connection)
        try:
            if purpose == "upkeep":
                self._keep_log_short(connection)
            return job(connection)
        except apsw.Error as error:
            if getattr(error, "extendedresult", None) == apsw.SQLITE_READONLY:
                raise  # a read job that writes has a bug
            named = self._diagnosis.name(error)
            if named is error:
                raise
            self._local.connection = None  # it may be broken: the next read on this thread opens another
            if isinstance(error, DAMAGED):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)  # noqa: FBT003  apsw takes it by position only
            raise named from error

    def _keep_log_short(self, connection: apsw.Connection) -> None:
        """Empty a long log, between two long reads.

        SQLite writes the log from its beginning again at a moment in which nobody reads it. Long reads, one
        right after the other, leave none.
        """
        with suppress(OSError, apsw.Error):  # it stays long until the next read
            if Path(connection.filename_wal).stat().st_size <= LONGEST_LOG:
                return
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # most of it, beside all others
            connection.set_busy_timeout(round(EMPTYING_S * 1000))
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                connection.set_busy_timeout(round(self._busy_timeout_s * 1000))
