"""The writing thread answers everyone and goes on, whatever happens inside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import apsw
import msgspec
import pytest

from reverie.backends.breaker_state import Signal, SignalKind
from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.base.threads import ThreadPool
from reverie.errors import BackendUnavailableError
from reverie.message import Message
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock

from .disk import Disk

if TYPE_CHECKING:
    from pathlib import Path


def insert(n: int):
    return lambda connection: connection.execute("INSERT INTO t VALUES (?, '')", (n,)) and n


def numbers(connection: apsw.Connection) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def in_one_group(database: Database, *jobs) -> list:
    hold = threading.Event()
    futures = [database.submit(lambda _: hold.wait(10))]
    futures += [database.submit(job) for job in jobs]
    hold.set()
    return [future.exception() or future.result() for future in futures[1:]]


@pytest.mark.parametrize("exception", [SystemExit, KeyboardInterrupt, MemoryError, RecursionError])
def test_a_job_that_wants_to_end_the_thread_does_not(database: Database, exception) -> None:
    def job(connection: apsw.Connection) -> None:
        insert(1)(connection)
        raise exception

    answers = in_one_group(database, insert(2), job, insert(3))
    assert isinstance(answers[1], exception)
    assert answers[::2] == [2, 3]
    assert database.submit(numbers).result() == [2, 3]


def test_a_job_that_ends_the_transaction_fails_alone_with_its_group(database: Database) -> None:
    def job(connection: apsw.Connection) -> None:
        connection.execute("ROLLBACK")
        raise ValueError("after a rollback")

    answers = in_one_group(database, insert(1), job, insert(2))
    assert all(isinstance(answer, BackendUnavailableError) for answer in answers)
    assert database.submit(insert(3)).result() == 3
    assert database.submit(numbers).result() == [3]


def test_a_rollback_that_fails_costs_only_the_connection(database: Database) -> None:
    def job(connection: apsw.Connection) -> None:
        insert(1)(connection)

        def veto(_, statement: str, __) -> bool:
            if statement in {"COMMIT", "ROLLBACK"}:
                raise apsw.IOError(statement)
            return True

        connection.exec_trace = veto

    assert isinstance(in_one_group(database, job)[0], BackendUnavailableError)
    assert database.submit(insert(2)).result() == 2
    assert database.submit(numbers).result() == [2]


def test_a_callback_that_raises_harms_nobody(database: Database) -> None:
    hold = threading.Event()
    first = database.submit(lambda _: hold.wait(10))

    def callback(_) -> None:
        raise SystemExit

    first.add_done_callback(callback)
    second = database.submit(insert(1))
    hold.set()
    assert second.result(10) == 1
    assert database.submit(insert(2)).result(10) == 2


@pytest.mark.parametrize("fault", ["full", "write", "sync"])
def test_a_failed_group_is_answered_to_all_and_leaves_nothing(database: Database, disk: Disk, fault) -> None:
    disk.breaks(fault)
    answers = in_one_group(database, *[insert(n) for n in range(300)])
    assert {type(answer) for answer in answers} == {BackendUnavailableError}
    disk.works()
    assert database.submit(insert(7)).result() == 7
    assert database.submit(numbers).result() == [7]


def test_a_disk_that_fills_inside_a_job_fails_its_group(database: Database, disk: Disk) -> None:
    """More than the cache holds is written before the commit."""

    def job(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA cache_size = 10")
        for n in range(1000):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 1000))

    disk.breaks("full")
    answers = in_one_group(database, insert(5000), job, insert(5001))
    assert [type(answer) for answer in answers] == [BackendUnavailableError] * 3
    assert "free space" in str(answers[0])
    disk.works()
    database.submit(job).result()
    assert len(database.submit(numbers).result()) == 1000


def test_close_during_a_fault_ends(database: Database, disk: Disk) -> None:
    database.submit(insert(1)).result()
    disk.breaks("full")
    refused = database.submit(insert(2))
    database.close()
    assert isinstance(refused.exception(), BackendUnavailableError)
    disk.works()
    database.open()
    assert database.submit(numbers).result() == [1]


async def test_a_reader_whose_connection_broke_gets_another(database: Database) -> None:
    database._readers = ThreadPool(1, "reader")
    await database.write(insert(1))
    first = await database.read(lambda connection: connection)
    assert await database.read(lambda connection: connection) is first

    def broken(_: apsw.Connection) -> None:
        raise apsw.IOError("disk I/O error")

    with pytest.raises(BackendUnavailableError, match="look after the disk"):
        await database.read(broken)
    assert await database.read(lambda connection: connection) is not first
    assert await database.read(numbers) == [1]


@pytest.mark.parametrize("deed", ["delete", "replace"])
def test_a_file_that_is_taken_away_is_not_written_to(database: Database, tmp_path: Path, deed) -> None:
    database.submit(insert(1)).result()
    path, away = tmp_path / "r.db", tmp_path / "away.db"
    path.rename(away)
    if deed == "replace":
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match="deleted, moved or replaced while it is in use"):
            database.submit(insert(2)).result()
    away.rename(path)
    assert database.submit(insert(3)).result() == 3
    assert database.submit(numbers).result() == [1, 3]


@pytest.mark.parametrize("fault", ["full", "write", "sync"])
def test_after_an_error_of_the_disk_the_file_is_opened_anew(database: Database, disk: Disk, fault) -> None:
    first = database.submit(lambda connection: connection).result()
    assert database.submit(lambda connection: connection).result() is first
    disk.breaks(fault)
    assert isinstance(database.submit(insert(1)).exception(), BackendUnavailableError)
    disk.works()
    assert database.submit(lambda connection: connection).result() is not first
    with pytest.raises(apsw.ConnectionClosedError):
        first.execute("SELECT 1")


async def test_only_what_must_survive_a_power_cut_waits_for_the_disk(database: Database, disk: Disk) -> None:
    backend = SqliteBackend(database, ManualClock())
    await backend.open()
    note = Message(user_id="ann", label="note", item_id="1")
    await backend.queue.submit([note])
    disk.breaks("sync")
    request = ClaimRequest(worker="w", wants={"note": Want(slots=1)})
    (claim,) = await backend.queue.claim(request)
    assert (await backend.queue.renew([claim], 30_000)).lost == []
    assert (await backend.queue.advance(10)).next_due is not None
    grant = await backend.shared.acquire("model")
    await backend.shared.report("model", grant.permit, Signal(SignalKind.QUOTA))
    assert list(await backend.shared.open_breakers()) == ["model"]
    assert [
        one.state for one in await backend.queue.settle([Settlement(claim=claim, move=Move.COMPLETE)])
    ] == ["applied"]
    with pytest.raises(BackendUnavailableError):
        await backend.queue.submit([msgspec.structs.replace(note, item_id="2")])


def test_a_job_that_closes_the_connection_costs_only_its_group(database: Database) -> None:
    answers = in_one_group(database, insert(1), lambda connection: connection.close(True))
    assert [type(answer) for answer in answers] == [BackendUnavailableError] * 2
    assert database.submit(insert(2)).result() == 2
    assert database.submit(numbers).result() == [2]
