"""Another process that holds the file for too long: refused with the name of the limit, then it goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.errors import BackendUnavailableError
from reverie.storage.sqlite import Database

from .conftest import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA locking_mode = " + sys.argv[3])
connection.execute(sys.argv[2])
connection.execute("CREATE TABLE IF NOT EXISTS holder (n)")
print("held", flush=True)
sys.stdin.read()
"""
LOCKED = r"locked by another process for longer than queue\.busy_timeout_s = 0\.2 s"


@contextmanager
def held(path: Path, begin: str = "BEGIN IMMEDIATE", mode: str = "NORMAL") -> Iterator[None]:
    """Another process is in a write transaction, as long as the block lasts."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), begin, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_submit_says_who_is_in_the_way(bench: Bench, begin) -> None:
    bench.submit(1)
    with held(bench.path, begin):
        with pytest.raises(BackendUnavailableError, match=LOCKED) as refused:
            bench.submit(2)
        assert str(bench.path) in str(refused.value)
        assert [item.item_id for item in bench.scheduler.status("u1")] == ["n1"]  # reading goes on
    bench.submit(2)


def test_a_worker_goes_on_when_the_lock_is_gone(bench: Bench) -> None:
    began, go = threading.Event(), threading.Event()

    @bench.scheduler.handler("wait", ordered=False)
    def wait(_: object) -> None:
        began.set()
        assert go.wait(30)

    bench.scheduler.submit("wait", user_id="u9", item_id="wait")
    bench.scheduler.start()
    assert began.wait(30)
    with held(bench.path):
        go.set()  # it ends, and its end cannot be written
        with pytest.raises(BackendUnavailableError, match=LOCKED):
            bench.submit(100)
    bench.submit(*range(30), 100)
    assert bench.scheduler.wait("wait", user_id="u9").status == "completed"
    bench.wait(*range(30), 100)
    bench.scheduler.close()
    bench.rows("DELETE FROM pending_messages WHERE id = 'wait'")
    bench.assert_each_once(*range(30), 100)


def test_a_file_that_another_process_keeps_for_itself_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with held(path, mode="EXCLUSIVE"):
        database = Database(str(path), busy_timeout_s=0.2)
        with pytest.raises(BackendUnavailableError, match=LOCKED):
            database.open()
    database.open()
    database.close()


def test_a_job_that_began_on_old_data_is_the_files_trouble_not_the_messages(database: Database) -> None:
    """SQLITE_BUSY_SNAPSHOT cannot come from our own transactions; whoever raises it is told to come again."""
    stale = apsw.exception_for(apsw.SQLITE_BUSY_SNAPSHOT)

    def job(_: apsw.Connection) -> None:
        raise stale

    with pytest.raises(BackendUnavailableError, match="locked by another process") as refused:
        database.submit(job).result()
    assert refused.value.__cause__ is stale
    database.submit(lambda c: c.execute("INSERT INTO t VALUES (1, '')")).result()
