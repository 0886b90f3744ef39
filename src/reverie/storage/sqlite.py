"""One SQLite file: a single writer that commits in groups, and a bounded pool of readers.

All rooms that live in one file share one `Database`, so that a change of the queue and a change of memory
can be one transaction.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import apsw

from reverie.errors import BackendUnavailableError, ClosedError, SchemaTooNewError
from reverie.logs import get_logger
from reverie.storage.queries import load_migrations
from reverie.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Database", "Durability"]

T = TypeVar("T")
Durability = Literal["full", "normal"]
Job = tuple["Callable[[apsw.Connection], Any]", "Future[Any]"]

log = get_logger(__name__)

VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (room TEXT PRIMARY KEY, version INTEGER)"
OF_THE_FILE = (
    apsw.FullError,
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ReadOnlyError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.CantOpenError,
)
"""What no other content would have avoided: the caller may try the same again later."""
READERS = 5
"""At most this many read at once; more wait."""
GROUP_LIMIT = 256
"""At most this many jobs share one commit."""
BUSY_TIMEOUT_MS = 10_000
"""How long a writer of another process is waited for."""


class Database:
    """An SQLite file in WAL mode, or (`:memory:`) one that lives as long as this object."""

    def __init__(self, path: str, durability: Durability = "full") -> None:
        """Name the file; nothing is opened yet.

        durability: `full` survives a power cut, `normal` the death of the process. Default full.
        """
        self.path = path if path == ":memory:" else str(Path(path).expanduser().resolve())
        self.durability = durability
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._readers = ThreadPool(READERS, "reverie-sqlite-reader")
        self._local = threading.local()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create the file and its folder if they are missing, and start the writer. Idempotent."""
        with self._lock:
            if self._writer is not None:
                return
            connection = self._connect()
            try:
                connection.execute(VERSIONS)
            except apsw.Error as error:
                connection.close()
                raise BackendUnavailableError(f"cannot write the database {self.path}: {error}") from error
            self._writer = threading.Thread(
                target=self._write_loop, args=(connection,), name="reverie-sqlite-writer", daemon=True
            )
            self._writer.start()

    def close(self) -> None:
        """Commit what was given so far and let go of the file. Idempotent."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                self._jobs.put(None)
        if writer is not None:
            writer.join()
            self._readers.close()

    def submit(self, job: Callable[[apsw.Connection], T]) -> Future[T]:
        """Run `job` inside the next write transaction; the future is done when it is committed."""
        future: Future[T] = Future()
        with self._lock:  # so that nothing is given to a writer that is told to end
            if self._writer is None:
                raise ClosedError(f"the database {self.path} is not open")
            self._jobs.put((job, future))
        return future

    async def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run `job` inside the next write transaction and wait until it is committed."""
        return await asyncio.wrap_future(self.submit(job))

    async def read(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run `job` on a reader's connection, beside the writer."""
        if self._writer is None:
            raise ClosedError(f"the database {self.path} is not open")
        if self.path == ":memory:":  # it has only the one connection
            return await self.write(job)
        return await asyncio.wrap_future(self._readers.submit(lambda: self._read(job)))

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
            connection.execute("INSERT OR REPLACE INTO schema_versions VALUES (?, ?)", (room, len(scripts)))

        self.submit(job).result()

    def _connect(self) -> apsw.Connection:
        folder = Path(self.path).parent
        try:
            if self.path != ":memory:":
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                Path(self.path).touch(mode=0o600)  # memories are private
        except OSError as error:
            raise BackendUnavailableError(f"cannot write in the folder {folder}: {error.strerror}") from error
        try:
            connection = apsw.Connection(self.path)
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.durability}")
            connection.execute("PRAGMA foreign_keys = ON")
        except apsw.Error as error:
            raise BackendUnavailableError(f"cannot open the database {self.path}: {error}") from error
        return connection

    def _read(self, job: Callable[[apsw.Connection], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        return job(connection)

    def _write_loop(self, connection: apsw.Connection) -> None:
        last = False
        while not last:
            group: list[Job] = []
            job = self._jobs.get()
            while job is not None:
                group.append(job)
                if len(group) == GROUP_LIMIT:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            last = job is None
            if group:
                self._commit_group(connection, group)
        connection.close()

    def _named(self, error: Exception, *, whole: bool = False) -> Exception:
        """An error of the file itself, rather than of what was to be written, means that it is away."""
        if not whole and not isinstance(error, OF_THE_FILE):
            return error
        named = BackendUnavailableError(f"{self.path}: {error}")
        named.__cause__ = error
        return named

    def _commit_group(self, connection: apsw.Connection, group: list[Job]) -> None:
        """Run the jobs in one transaction, each in a savepoint, so that one failure spoils no neighbour."""
        answers: list[tuple[Future[Any], Any, BaseException | None]] = []
        # Whoever was cancelled has gone; the others can no longer be.
        group = [(job, future) for job, future in group if future.set_running_or_notify_cancel()]
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job, future in group:
                connection.execute("SAVEPOINT job")
                try:
                    answers.append((future, job(connection), None))
                except Exception as error:  # noqa: BLE001  it goes to whoever gave the job
                    connection.execute("ROLLBACK TO job")
                    answers.append((future, None, self._named(error)))
                connection.execute("RELEASE job")
            connection.execute("COMMIT")
        except apsw.Error as error:
            log.warning("sqlite.commit_failed", path=self.path, error=str(error), jobs=len(group))
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            failure = self._named(error, whole=True)
            answers = [(future, None, failure) for _, future in group]
        for future, result, failure_of_one in answers:
            if failure_of_one is None:
                future.set_result(result)
            else:
                future.set_exception(failure_of_one)
