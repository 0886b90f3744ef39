"""A damaged file: found, not written to any more, and the error's own steps bring the work back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie.errors import CorruptDatabaseError
from reverie.storage.sqlite import Database

from .conftest import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4096
MESSAGES = range(3000)


def spoil(path: Path, first: float = 0.4, last: float = 0.6) -> None:
    """Overwrite the pages in the middle of a file."""
    pages = path.stat().st_size // PAGE
    with path.open("r+b") as file:
        file.seek(int(pages * first) * PAGE)
        file.write(b"\xde\xad\xbe\xef" * (PAGE // 4) * int(pages * (last - first)))


def contents_of(path: Path) -> list[bytes]:
    """The database, and its log if there is one."""
    return [file.read_bytes() for file in (path, Path(f"{path}-wal")) if file.exists()]


@pytest.fixture
def filled(new_bench: Callable[..., Bench]) -> Bench:
    """Many messages wait in it; it is closed."""
    bench = new_bench()
    bench.submit(*MESSAGES)
    bench.scheduler.close()
    return bench


def read_all(bench: Bench) -> None:
    for user in ("u0", "u1", "u2"):
        bench.scheduler.status(user)


def assert_stopped(bench: Bench) -> None:
    """Nothing is written any more, whoever asks."""
    before, ran = contents_of(bench.path), bench.ran.total()
    for _ in range(3):
        with pytest.raises(CorruptDatabaseError) as refused:
            bench.submit(9999)
        assert str(bench.path) in str(refused.value)
    bench.scheduler.close()
    assert contents_of(bench.path) == before
    assert bench.ran.total() == ran


def test_a_worker_that_finds_damage_stops_writing(filled: Bench) -> None:
    spoil(filled.path)
    found = asyncio.Event()
    scheduler = filled.scheduler

    async def wait_for_damage() -> None:
        turns = scheduler.runtime.worker._producer
        turns_pause = turns._pause

        async def pause(error: Exception) -> None:
            if isinstance(error, CorruptDatabaseError):
                found.set()
            await turns_pause(error)

        turns._pause = pause
        await scheduler.runtime.start()
        await asyncio.wait_for(found.wait(), 30)

    scheduler.run(wait_for_damage())
    assert_stopped(filled)


def test_damage_that_comes_while_the_file_is_open(filled: Bench) -> None:
    filled.submit(5000)
    database = filled.scheduler.runtime.store._database
    database.submit(lambda _: None).result()
    filled.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    spoil(filled.path)
    with pytest.raises(CorruptDatabaseError, match="malformed"):  # a reader finds it
        read_all(filled)
    assert_stopped(filled)


def test_reading_what_is_whole_goes_on(filled: Bench) -> None:
    filled.scheduler.open()
    spoil(filled.path, 0.5, 0.7)
    with pytest.raises(CorruptDatabaseError):
        read_all(filled)
    assert [item.item_id for item in filled.scheduler.status("u0", "n0")] == ["n0"]
    assert not filled.scheduler.memory.search("nothing", user_id="u0", threshold=0.9)


@pytest.mark.parametrize(
    ("deed", "match"),
    [
        (lambda path: path.write_text("Dear diary, " * 1000), "file is not a database"),
        (lambda path: spoil(path, 0, 0.1), "file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[: PAGE * 3]), "malformed"),
    ],
    ids=["another file", "no beginning", "cut off"],
)
def test_it_is_found_at_open(filled: Bench, deed, match) -> None:
    deed(filled.path)
    before = contents_of(filled.path)
    with pytest.raises(CorruptDatabaseError, match=match) as refused:
        filled.scheduler.open()
    assert refused.value.path == str(filled.path)
    assert contents_of(filled.path) == before


def test_a_backup_in_its_place_works_after_a_new_start(filled: Bench, tmp_path: Path) -> None:
    backup = filled.path.read_bytes()
    spoil(filled.path, 0)
    with pytest.raises(CorruptDatabaseError):
        filled.scheduler.open()
    filled.path.write_bytes(backup)
    filled.submit(5000)
    assert [item.item_id for item in filled.scheduler.status("u2", "n5000")] == ["n5000"]


def test_the_neighbours_of_a_job_that_finds_damage_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    database = Database(str(path))
    database.open()
    database.submit(lambda c: c.execute("CREATE TABLE t (n, filler)")).result()
    rows = [(n, "x" * 1000) for n in range(3000)]
    database.submit(lambda c: c.executemany("INSERT INTO t VALUES (?, ?)", rows)).result()
    database.close()
    database.open()
    spoil(path)
    neighbour, finder = (
        database.submit(lambda c: c.execute("INSERT INTO t VALUES (0, '')")),
        database.submit(lambda c: c.execute("SELECT sum(length(filler)) FROM t").get),
    )
    assert isinstance(finder.exception(), CorruptDatabaseError)
    if neighbour.exception() is not None:  # they shared a commit
        assert isinstance(neighbour.exception(), CorruptDatabaseError)
    with pytest.raises(CorruptDatabaseError):
        database.submit(lambda c: c.execute("INSERT INTO t VALUES (0, '')"))
    database.close()
