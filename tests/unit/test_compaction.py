"""`reverie storage`: what takes room, and giving it back while work goes on."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from types import SimpleNamespace

import apsw
import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings
from reverie.storage import compaction
from reverie.storage.compaction import compact, look_into
from support.living import wait_until
from support.places import Place

pytestmark = pytest.mark.filterwarnings("error")


def fill(path, rows: int) -> apsw.Connection:
    file = apsw.Connection(str(path))
    file.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (id TEXT PRIMARY KEY, body TEXT)").fetchall()
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    file.execute(f"{numbers} INSERT INTO t SELECT 'id-' || i, hex(zeroblob(200)) FROM n", (rows,))
    return file


def test_the_parts_of_a_file_add_up_to_it(tmp_path) -> None:
    file = fill(tmp_path / "f.db", 2000)
    file.execute("DELETE FROM t WHERE rowid > 1000")
    usage = look_into(str(tmp_path / "f.db"))
    assert sum(part.bytes for part in usage.parts) + usage.free_bytes == usage.file_bytes
    assert usage.free_bytes > 0 < usage.log_bytes
    assert [(part.name, part.kind, part.rows) for part in usage.parts] == [
        ("t", "table", 1000),
        ("sqlite_autoindex_t_1", "index", None),
        ("sqlite_schema", "table", 2),
    ]
    file.close()


def test_a_compaction_keeps_the_numbers_of_rows(tmp_path) -> None:
    file = fill(tmp_path / "f.db", 2000)
    file.execute("DELETE FROM t WHERE rowid % 3 = 0")
    rows = file.execute("SELECT rowid, * FROM t").fetchall()
    done = compact(str(tmp_path / "f.db"))
    assert file.execute("SELECT rowid, * FROM t").fetchall() == rows
    assert done.bytes_after < done.bytes_before
    assert look_into(str(tmp_path / "f.db")).free_bytes == 0
    file.close()


def test_a_compaction_that_is_interrupted_changes_nothing(tmp_path, monkeypatch) -> None:
    file = fill(tmp_path / "f.db", 2000)
    file.execute("DELETE FROM t WHERE rowid % 3 = 0")
    rows = file.execute("SELECT rowid, * FROM t").fetchall()
    monkeypatch.setattr(compaction, "TICK", 10)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(str(tmp_path / "f.db"), on_tick=stop)
    assert file.execute("SELECT rowid, * FROM t").fetchall() == rows
    file.execute("INSERT INTO t VALUES ('one more', '')")
    file.close()


def test_a_compaction_needs_room_on_the_disk(tmp_path, monkeypatch) -> None:
    fill(tmp_path / "f.db", 2000).close()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(BackendUnavailableError, match="the disk has 1000 left"):
        compact(str(tmp_path / "f.db"))


def test_a_file_that_stays_locked_is_left_alone(tmp_path) -> None:
    file = fill(tmp_path / "f.db", 10)
    file.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailableError, match="locked by another process"):
        compact(str(tmp_path / "f.db"), busy_timeout_s=0.01)
    file.execute("ROLLBACK")
    file.close()


def is_empty(scheduler: Scheduler) -> bool:
    """Whether nothing waits, runs, or is kept."""
    states = scheduler.control.labels()
    return not any(state.waiting or state.in_progress or state.completed for state in states)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_compaction_while_a_worker_runs_loses_nothing(place: Place) -> None:
    settings = load_settings(data_dir=place.folder, queue={"url": place.queue_url, "retention_s": 0})
    scheduler, ran = Scheduler(settings=settings), Counter[str]()

    @scheduler.handler("bulk", ordered=False)
    def bulk(message: Message) -> None:
        return None

    @scheduler.handler("note", ordered=False)
    def note(message: Message) -> Done:
        ran[message.item_id] += 1
        return Done(effects=[Remember(memory_id=f"of-{message.item_id}", text="a note")])

    with scheduler:
        large = [Message(user_id="ann", label="bulk", content="x" * 4000) for _ in range(5000)]
        scheduler.submit_messages(large)
        wait_until(lambda: is_empty(scheduler), 60)
        before = (place.folder / "reverie.db").stat().st_size
        submitted: list[str] = []
        compacted = threading.Event()

        def submit() -> None:
            while not (compacted.is_set() and len(submitted) >= 1000):
                ids = [f"n-{len(submitted) + number}" for number in range(20)]
                scheduler.submit_messages([Message(user_id="ann", label="note", item_id=i) for i in ids])
                submitted.extend(ids)

        submitter = threading.Thread(target=submit)
        submitter.start()
        answers = []
        for _ in range(3):
            shown = place.command("storage", "compact", "--json")
            assert shown.returncode == 0, shown.stderr
            answers += json.loads(shown.stdout)
        compacted.set()
        submitter.join(60)
        wait_until(lambda: is_empty(scheduler), 60)
        assert ran == Counter(submitted)  # no claim was lost
    assert answers[0]["bytes_before"] >= before > 2 * answers[0]["bytes_after"]
    file = apsw.Connection(str(place.folder / "reverie.db"))
    assert file.execute("SELECT count(*) FROM memory_items").get == len(submitted)
    assert file.execute("PRAGMA integrity_check").get == "ok"
    file.close()


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_storage_shows_what_takes_room(place: Place) -> None:
    for number in range(3):
        assert place.command("add", "I keep bees", "--user", "ann", "--item-id", str(number)).returncode == 0
    assert place.command("worker", "--drain").returncode == 0
    shown = json.loads(place.command("storage", "--json").stdout)
    parts = {part["name"]: part for file in shown["files"] for part in file["parts"]}
    assert parts["memory_items"]["rows"] == 3
    assert shown["folders"]["spool"] == {"path": shown["folders"]["spool"]["path"], "files": 0, "bytes": 0}
    people = place.command("storage")
    assert "memory_items " in people.stdout
    if place.kind == "sqlite":
        assert parts["pending_messages"]["rows"] == 3
        assert shown["redis"] is None
    else:
        assert parts["inbox"]["rows"] == 3
        sizes = {part["key"].rpartition(":")[2]: part for part in shown["redis"]["parts"]}
        assert sizes["expiry"]["entries"] == 3
        assert sizes["expiry"]["bytes"] > 0
        assert shown["redis"]["memory_bytes"] > 0
        assert "the server uses" in people.stdout


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_long_compaction_is_refused_unless_it_is_wanted(place: Place) -> None:
    assert place.command("add", "I keep bees", "--user", "ann").returncode == 0
    impatient = {"REVERIE_QUEUE__BUSY_TIMEOUT_S": "0"}
    refused = place.command("storage", "compact", **impatient)
    assert refused.returncode == 1
    assert "reverie storage compact --long" in refused.stderr
    done = place.command("storage", "compact", "--long", **impatient)
    assert (done.returncode, done.stderr) == (0, "")
    assert "writers waited at most" in done.stdout
