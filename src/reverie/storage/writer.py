"""The one thread that writes to an SQLite file: it commits jobs in groups, and outlives what goes wrong."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from reverie.logs import get_logger
from reverie.storage.diagnosis import LOCKED, OF_THE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.storage.diagnosis import Diagnosis

__all__ = ["Writer"]

T = TypeVar("T")
Job = tuple["Callable[[apsw.Connection], Any]", "Future[Any]"]
Answer = tuple["Future[Any]", Any, BaseException | None]

log = get_logger(__name__)

GROUP_LIMIT = 256
"""At most this many jobs share one commit."""


class Writer:
    """Owns the writing connection; after a failure that a new connection may not have, it opens a new one."""

    def __init__(
        self,
        connection: apsw.Connection,
        diagnosis: Diagnosis,
        reopen: Callable[[], apsw.Connection] | None,
    ) -> None:
        """Begin to write. `reopen` opens the same file again; None if only this connection has it."""
        self._connection: apsw.Connection | None = connection
        self._diagnosis = diagnosis
        self._reopen = reopen
        self._broken = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="reverie-sqlite-writer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[apsw.Connection], T]) -> Future[T]:
        """Run `job` inside the next write transaction; the future is done when it is committed."""
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def end(self) -> None:
        """Take nothing more; what was given before this is still committed."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait until all is committed and the connection is closed."""
        self._thread.join()

    def _loop(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._run(group)
        self._let_go()

    def _next_group(self) -> tuple[list[Job], bool]:
        """Wait for a job, and take all that wait with it; True if they are the last."""
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
        return group, job is None

    def _run(self, group: list[Job]) -> None:
        """Commit a group and answer everyone in it. Never raises."""
        # Whoever was cancelled has gone; the others can no longer be.
        group = [(job, future) for job, future in group if future.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            answers = self._transaction(group)
        except BaseException as error:  # noqa: BLE001  everyone in the group hears of it
            failure = self._diagnosis.name(error, whole=True)
            log.warning("sqlite.commit_failed", error=str(failure), jobs=len(group))
            self._recover(error)
            answers = [(future, None, failure) for _, future in group]
        for future, result, failure_of_one in answers:
            _answer(future, result, failure_of_one)

    def _transaction(self, group: list[Job]) -> list[Answer]:
        """Run the jobs in one transaction, each in a savepoint, so that one failure spoils no neighbour."""
        self._diagnosis.check()
        if self._broken and self._reopen is not None:
            # The new one first: as long as someone has the file open, SQLite knows which commits have failed.
            # Whoever opens it after that reads the log, and may find one there that was only not synced.
            fresh = self._reopen()
            self._let_go()
            self._connection, self._broken = fresh, False
        connection = self._connection
        assert connection is not None
        answers: list[Answer] = []
        connection.execute("BEGIN IMMEDIATE")
        for job, future in group:
            connection.execute("SAVEPOINT job")
            try:
                answers.append((future, job(connection), None))
            except BaseException as error:
                # SQLite may have rolled everything back by itself: then the neighbours' work is gone as well.
                if isinstance(error, OF_THE_FILE) or not connection.in_transaction:
                    raise
                connection.execute("ROLLBACK TO job")
                answers.append((future, None, error))
            connection.execute("RELEASE job")
        connection.execute("COMMIT")
        return answers

    def _recover(self, error: BaseException) -> None:
        """Leave no transaction open; have a connection replaced that may be broken. Never raises."""
        # A file that was moved away may come back, so its connection is kept.
        self._broken = self._broken or not (isinstance(error, LOCKED) or self._diagnosis.moved)
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except BaseException as second:  # noqa: BLE001  it would lock a new one out
            log.warning("sqlite.rollback_failed", error=str(second))
            if self._reopen is not None:
                self._broken = True
                self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if self._diagnosis.damage is not None or self._diagnosis.moved:
                # No last writes to a damaged file; and of a moved one, SQLite would delete the -wal of
                # whatever has its name now.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)  # noqa: FBT003  apsw takes it by position only
        except BaseException as error:  # noqa: BLE001  what was committed is in the log file
            log.warning("sqlite.close_failed", error=str(error))


def _answer(future: Future[Any], result: Any, failure: BaseException | None) -> None:
    """Tell one caller; what listens to its future must not end the thread that tells the others."""
    try:
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
    except BaseException:
        log.exception("sqlite.answer_failed")
