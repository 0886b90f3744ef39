"""The writer of an SQLite file: one transaction at a time, jobs committed in groups, whatever goes wrong.

A thread writes. A caller that would only wait for this thread, and finds it idle, may write by itself.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from enum import IntEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import apsw

from reverie.base.logs import get_logger
from reverie.errors import ClosedError, ReverieError
from reverie.storage.diagnosis import LOCKED, OF_THE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from reverie.storage.diagnosis import Diagnosis
    from reverie.storage.patience import Patience
    from reverie.storage.reserve import Reserve

__all__ = ["WriteOptions", "Writer"]

T = TypeVar("T")
Answer = tuple[Any, BaseException | None]
"""The result of a job, or the error with which it failed."""

log = get_logger(__name__)

GROUP_LIMIT = 256
"""The most jobs that share one commit."""
PATIENT_S = 0.02
"""How long patient jobs wait for others to share their commit."""


class WriteOptions(TypedDict, total=False):
    """How a job is written."""

    durable: bool
    """Whether it survives a power cut, which is the default. It always survives the death of the process."""
    urgent: bool
    """Whether it may use the reserve of a full disk."""
    intake: bool
    """Whether it takes messages in: then other processes get the lock for a shorter time after it."""
    patient: bool
    """Whether it waits a moment for others to share its commit: what the caller does takes much longer."""


class _Call(IntEnum):
    """What the thread is called for, by haste."""

    GATHER = 1
    """To write patient jobs, after others have come."""
    WRITE = 2
    INTAKE = 3
    """To take messages in."""
    END = 4


class _Job(NamedTuple):
    run: Callable[[apsw.Connection], Any]
    future: Future[Any]
    durable: bool
    urgent: bool
    intake: bool


class _JobFailedError(Exception):
    """A job of a group has failed: the others must be run again without it."""


class Writer:
    """Owns the writing connection; replaces it after a failure that a new connection may not have."""

    def __init__(
        self,
        connection: apsw.Connection,
        diagnosis: Diagnosis,
        reopen: Callable[[], apsw.Connection] | None,
        reserve: Reserve,
        *,
        patience: Patience,
        durability: str = "full",
    ) -> None:
        """Start the thread. `reopen` opens the file again; None if the database ends with its connection."""
        self._connection: apsw.Connection | None = connection
        self._diagnosis = diagnosis
        self._reopen = reopen
        self._reserve = reserve
        self._patience = patience
        self._broken = False
        self._durability = durability
        self._synchronous = True
        self._jobs: deque[_Job] = deque()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        """A call for each time that there are jobs to write, and `END` as the last."""
        self._turn = threading.Lock()
        """Held while the connection is used."""
        self._thread = threading.Thread(target=self._loop, name="reverie-sqlite-writer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[apsw.Connection], T], **options: Unpack[WriteOptions]) -> Future[T]:
        """Run `job` inside the next write transaction; the future is done when it is committed.

        A job must be safe to run again, because it does if another job of the same transaction fails.
        """
        future: Future[T] = Future()
        intake = options.get("intake", False)
        one = _Job(job, future, options.get("durable", True), options.get("urgent", False), intake)
        self._jobs.append(one)
        self._calls.put(_Call.INTAKE if intake else _Call.GATHER if options.get("patient") else _Call.WRITE)
        return future

    @property
    def idle(self) -> bool:
        """Whether no job is being written, and none waits."""
        return not self._jobs and not self._turn.locked()

    def run_here(self, job: Callable[[apsw.Connection], T]) -> T:
        """Take messages in on the calling thread, in a transaction of its own."""
        with self._turn:
            if self._connection is None:
                raise ClosedError
            time.sleep(self._patience.rest_s(intake=True))
            ((result, failure),) = self._run([job], durable=True, urgent=False, intake=True)
        if self._jobs:  # jobs that came meanwhile: the thread may have missed them
            self._calls.put(_Call.WRITE)
        if failure is not None:
            raise failure
        answer: T = result
        return answer

    def end(self) -> None:
        """End the thread after all jobs that were given before are committed."""
        self._calls.put(_Call.END)

    def join(self) -> None:
        """Wait until all jobs are committed and the connection is closed."""
        self._thread.join()

    def _loop(self) -> None:
        while (call := self._calls.get()) is not _Call.END and self._wait_turn(call):
            self._write_waiting()
        while self._jobs:
            self._write_waiting()
        with self._turn:
            self._let_go()

    def _wait_turn(self, call: _Call) -> bool:
        """Wait until jobs of this haste, or of more that come meanwhile, may begin; False at the end."""
        patient_until = time.monotonic() + PATIENT_S
        while True:
            left_s = self._patience.rest_s(intake=call is _Call.INTAKE)
            if call is _Call.GATHER:
                left_s = max(left_s, patient_until - time.monotonic())
            if left_s <= 0:
                return True
            try:
                heard = self._calls.get(timeout=left_s)
            except queue.Empty:
                return True
            if heard is _Call.END:
                return False
            call = max(call, heard)

    def _write_waiting(self) -> None:
        """Commit a group of waiting jobs, and complete their futures."""
        with self._turn:
            # Jobs whose future was cancelled are left out; the others can no longer be cancelled.
            waiting = [self._jobs.popleft() for _ in range(min(GROUP_LIMIT, len(self._jobs)))]
            running = [one for one in waiting if one.future.set_running_or_notify_cancel()]
            group = sorted(running, key=lambda one: one.urgent)  # urgent jobs have a transaction of their own
            answers: list[Answer] = []
            for urgent, jobs in groupby(group, key=lambda one: one.urgent):
                alike = list(jobs)
                durable = any(one.durable for one in alike)
                intake = any(one.intake for one in alike)
                answers += self._run(
                    [one.run for one in alike], durable=durable, urgent=urgent, intake=intake
                )
        for one, answer in zip(group, answers, strict=True):
            _answer(one.future, *answer)

    def _run(
        self, jobs: list[Callable[[apsw.Connection], Any]], *, durable: bool, urgent: bool, intake: bool
    ) -> list[Answer]:
        """Commit jobs in one transaction; if one fails, again with a savepoint for each. Never raises."""
        if urgent:
            for make_room in (self._reuse_log, self._reserve.give_up, self._reuse_log):
                answers = self._try(jobs, durable=durable, urgent=True, intake=intake)
                if not _is_full(answers):
                    return answers
                make_room()
        return self._try(jobs, durable=durable, urgent=urgent, intake=intake)

    def _reuse_log(self) -> None:
        """Copy the commits in the log to the file: the log is then written from its beginning again."""
        try:
            connection = self._checked_connection()
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (apsw.Error, ReverieError) as error:
            log.info("sqlite.log_not_reused", error=str(error))

    def _try(
        self, jobs: list[Callable[[apsw.Connection], Any]], *, durable: bool, urgent: bool, intake: bool
    ) -> list[Answer]:
        try:
            connection = self._checked_connection()
            if not urgent:
                self._reserve.hold()
            if durable is not self._synchronous and self._durability == "full":
                # A commit that does not wait for the disk is made durable by the next one that does.
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._synchronous = durable
            check = self._diagnosis.check_versions
            connection.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            try:
                answers = _transaction(connection, check, jobs, careful=False)
            except _JobFailedError:
                connection.execute("BEGIN IMMEDIATE")
                answers = _transaction(connection, check, jobs, careful=True)
        except BaseException as error:  # noqa: BLE001  every job of the group gets the error
            failure = self._diagnosis.name(error, whole=True)
            log.warning("sqlite.commit_failed", error=str(failure), jobs=len(jobs))
            self._recover(error)
            return [(None, failure)] * len(jobs)
        self._patience.note_end(time.monotonic() - began, intake=intake)
        return answers

    def _checked_connection(self) -> apsw.Connection:
        self._diagnosis.check()
        if self._broken and self._reopen is not None:
            # The new connection opens before the old one closes: as long as someone has the file open, SQLite
            # knows which commits have failed. Otherwise it would read the log anew, and could take in a
            # failed commit that was written there but not synced.
            fresh = self._reopen()
            self._let_go()
            self._connection, self._broken, self._synchronous = fresh, False, True
        assert self._connection is not None
        return self._connection

    def _recover(self, error: BaseException) -> None:
        """Roll back an open transaction; have a connection that may be broken replaced. Never raises."""
        # The connection to a file that was moved away is kept, because the file may come back.
        self._broken = self._broken or not (isinstance(error, LOCKED) or self._diagnosis.moved)
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except BaseException as second:  # noqa: BLE001  its lock would shut a new connection out
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
                # A damaged file gets no last writes. For a moved file, SQLite would delete the -wal of the
                # file that has its name now.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)  # noqa: FBT003  apsw takes it by position only
        except BaseException as error:  # noqa: BLE001  all commits are in the log file
            log.warning("sqlite.close_failed", error=str(error))


def _transaction(
    connection: apsw.Connection,
    check: Callable[[apsw.Connection], None],
    jobs: list[Callable[[apsw.Connection], Any]],
    *,
    careful: bool,
) -> list[Answer]:
    """Run `check` and jobs in the transaction that has begun, and commit it.

    `careful` gives each job a savepoint, which costs more than the job itself.
    """
    answers: list[Answer] = []
    check(connection)
    for job in jobs:
        if careful:
            connection.execute("SAVEPOINT job")
        try:
            answers.append((job(connection), None))
        except BaseException as error:
            # SQLite may have rolled everything back by itself: then the work of the other jobs is gone, too.
            if isinstance(error, OF_THE_FILE) or not connection.in_transaction:
                raise
            if not careful:
                connection.execute("ROLLBACK")
                if len(jobs) == 1:
                    return [(None, error)]
                raise _JobFailedError from error
            connection.execute("ROLLBACK TO job")
            answers.append((None, error))
        if careful:
            connection.execute("RELEASE job")
    connection.execute("COMMIT")
    return answers


def _is_full(answers: list[Answer]) -> bool:
    """Whether a transaction has failed because the disk is full."""
    return any(failure and isinstance(failure.__cause__, apsw.FullError) for _, failure in answers)


def _answer(future: Future[Any], result: Any, failure: BaseException | None) -> None:
    """Complete one future. A callback of it that fails must not end the thread that completes the others."""
    try:
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
    except BaseException:
        log.exception("sqlite.answer_failed")
