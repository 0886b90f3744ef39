"""The one writer of an SQLite file."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import apsw
import pytest

from reverie.errors import BackendUnavailableError, ClosedError, ReadTimeoutError, SchemaTooNewError
from reverie.storage import sqlite
from reverie.storage.sqlite import READERS, SEARCHERS, UPKEEP_READERS, Database, ReadLimit
from support.living import started


@pytest.fixture
def database(tmp_path):
    database = Database(str(tmp_path / "folder" / "r.db"))
    database.open()
    database.submit(lambda c: c.execute("CREATE TABLE t (n INTEGER UNIQUE)")).result()
    yield database
    database.close()


def numbers(connection: apsw.Connection) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def insert(n: int):
    return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (n,)) and n


async def test_a_job_is_readable_when_it_is_done(database: Database) -> None:
    await database.write(insert(1))
    assert await database.read(numbers) == [1]


def test_one_failure_spoils_no_neighbour_of_the_same_commit(database: Database) -> None:
    hold = threading.Event()
    first = database.submit(lambda _: hold.wait(10))
    futures = [database.submit(insert(n)) for n in (1, 2, 2, 3)]
    hold.set()
    assert first.result() is True
    assert [futures[0].result(), futures[1].result(), futures[3].result()] == [1, 2, 3]
    with pytest.raises(apsw.ConstraintError):
        futures[2].result()
    assert database.submit(numbers).result() == [1, 2, 3]


def test_an_error_of_the_file_is_not_blamed_on_what_was_to_be_written(database: Database) -> None:
    def full(connection: apsw.Connection) -> None:
        insert(1)(connection)
        raise apsw.FullError("database or disk is full")

    with pytest.raises(BackendUnavailableError, match="disk is full"):
        database.submit(full).result()
    with pytest.raises(ValueError, match="invalid literal"):
        database.submit(lambda _: int("no number")).result()
    assert database.submit(numbers).result() == []


async def test_a_caller_who_is_cancelled_does_not_stop_the_writer(database: Database) -> None:
    entered, hold = threading.Event(), threading.Event()
    first = database.submit(lambda _: (entered.set(), hold.wait(10)))
    assert entered.wait(10)  # what comes from now on is not of its transaction
    waiting = await started(database.write(insert(1)))
    waiting.cancel()
    await asyncio.wait({waiting})
    hold.set()
    await asyncio.wrap_future(first)
    await database.write(insert(2))
    assert await database.read(numbers) == [2]


def test_a_commit_that_fails_keeps_nothing_and_the_next_succeeds(database: Database) -> None:
    vetoes = iter([True])

    def sabotage(connection: apsw.Connection) -> None:
        connection.set_commit_hook(lambda: next(vetoes, False))
        insert(1)(connection)

    with pytest.raises(BackendUnavailableError, match=r"r\.db"):
        database.submit(sabotage).result()
    assert database.submit(insert(2)).result() == 2
    assert database.submit(numbers).result() == [2]


async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(apsw.ReadOnlyError):
        await database.read(insert(1))


def test_the_file_is_private(database: Database) -> None:
    assert stat.S_IMODE(Path(database.path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(database.path).parent.stat().st_mode) == 0o700


def test_what_is_closed_says_so(database: Database) -> None:
    database.close()
    database.close()
    with pytest.raises(ClosedError, match="is not open"):
        database.submit(numbers)


def test_close_commits_what_was_given(tmp_path, database: Database) -> None:
    futures = [database.submit(insert(n)) for n in range(500)]
    database.close()
    assert [future.result() for future in futures] == list(range(500))


def test_durability_is_what_was_asked_for(tmp_path) -> None:
    for durability, pragma in (("full", 2), ("normal", 1)):
        database = Database(str(tmp_path / f"{durability}.db"), durability)
        database.open()
        assert database.submit(lambda c: c.execute("PRAGMA synchronous").get).result() == pragma
        assert database.submit(lambda c: c.execute("PRAGMA journal_mode").get).result() == "wal"
        database.close()


def test_a_newer_schema_is_refused(database: Database) -> None:
    database.migrate("queue", "reverie.backends.sqlite")
    database.submit(lambda c: c.execute("UPDATE schema_versions SET version = 99")).result()
    later = Database(database.path)
    later.open()
    with pytest.raises(SchemaTooNewError, match=r"version 99, this Reverie knows up to \d+: upgrade"):
        later.migrate("queue", "reverie.backends.sqlite")
    later.close()


# -- reads that take too long ------------------------------------------------------------------------

FOREVER = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def endless(connection: apsw.Connection) -> object:
    return connection.execute(FOREVER).get


@pytest.mark.parametrize("path", ["r.db", ":memory:"])
async def test_a_read_that_takes_too_long_is_ended_with_a_clear_error(tmp_path, path: str) -> None:
    database = Database(path if path == ":memory:" else str(tmp_path / path), read_timeout_s=0.01)
    database.open()
    with pytest.raises(ReadTimeoutError, match=r"longer than 0.01 s .*raise queue.read_timeout_s"):
        await database.read(endless)
    count = await database.read(lambda c: c.execute("SELECT 1").get, ReadLimit(60, "this.limit"))
    assert count == 1
    database.close()


async def test_reads_whose_callers_have_gone_are_ended(database: Database) -> None:
    limit = ReadLimit(600, "this.limit")
    for _ in range(SEARCHERS * 2):
        running = threading.Event()

        def job(connection: apsw.Connection, running: threading.Event = running) -> object:
            running.set()
            return endless(connection)

        reading = await started(database.read(job, ReadLimit(600, "this.limit"), purpose="search"))
        assert await asyncio.to_thread(running.wait, 10), "an earlier read still has the reader"
        reading.cancel()
        await asyncio.wait({reading})
    assert await database.read(numbers, limit, purpose="search") == []


async def test_other_reads_do_not_wait_for_searches(database: Database) -> None:
    limits = [ReadLimit(600, "this.limit") for _ in range(SEARCHERS * 3)]
    searches = [await started(database.read(endless, limit, purpose="search")) for limit in limits]
    assert await asyncio.wait_for(database.read(numbers), 30) == []
    for search in searches:
        search.cancel()
    await asyncio.wait(searches)


async def test_a_read_that_waits_too_long_for_a_reader_is_refused(database: Database) -> None:
    limits = [ReadLimit(600, "this.limit") for _ in range(SEARCHERS)]
    searches = [await started(database.read(endless, limit, purpose="search")) for limit in limits]
    late = await started(database.read(numbers, ReadLimit(0, "this.limit"), purpose="search"))
    for search in searches:
        search.cancel()
    with pytest.raises(ReadTimeoutError, match=r"this\.limit"):
        await late


async def test_the_caches_of_all_threads_are_small_together(database: Database) -> None:
    pools = {"look": READERS, "search": SEARCHERS, "upkeep": UPKEEP_READERS}
    together = threading.Barrier(sum(pools.values()))

    def cache_kib(connection: apsw.Connection) -> int:
        together.wait(30)  # each read is on a thread of its own
        return -int(connection.execute("PRAGMA cache_size").get)

    reads = [
        database.read(cache_kib, purpose=purpose) for purpose, size in pools.items() for _ in range(size)
    ]
    written = await database.write(lambda connection: -int(connection.execute("PRAGMA cache_size").get))
    assert 64 * 1024 <= sum(await asyncio.gather(*reads)) + written <= 128 * 1024


async def test_the_log_stays_short_while_upkeep_reads_all_the_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LONGEST_LOG", 1_000_000)
    await database.write(lambda connection: connection.execute("CREATE TABLE b (x BLOB)"))
    log = Path(database.path + "-wal")
    sizes = []
    for _ in range(6):
        reading, written = threading.Event(), threading.Event()

        def read(
            connection: apsw.Connection,
            reading: threading.Event = reading,
            written: threading.Event = written,
        ) -> None:
            with connection:
                connection.execute("SELECT count(*) FROM b").fetchall()
                reading.set()
                assert written.wait(30)

        upkeep = await started(database.read(read, purpose="upkeep"))
        assert await asyncio.to_thread(reading.wait, 30)
        await database.write(
            lambda connection: connection.execute("INSERT INTO b VALUES (zeroblob(1000000))")
        )
        sizes.append(await asyncio.to_thread(log.stat))
        written.set()
        await upkeep
    assert max(size.st_size for size in sizes) < 3_000_000
    count = await database.read(lambda connection: connection.execute("SELECT count(*) FROM b").get)
    assert count == 6
