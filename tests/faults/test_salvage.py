"""The steps that the error about a damaged file names, taken as it says."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.assembly import ROOMS
from reverie.backends.views import LabelState
from reverie.errors import CorruptDatabaseError, SalvageError
from reverie.storage.salvage import salvage
from support.agreement import assert_agreement
from support.places import Place

from .conftest import Bench
from .test_corruption import PAGE, contents_of, read_all, spoil

if TYPE_CHECKING:
    from collections.abc import Callable

DONE = range(100)
WAITING = range(1000, 1500)


@pytest.fixture
def used(new_bench: Callable[..., Bench]) -> Bench:
    """Some messages are done and remembered, many wait; it is closed."""
    bench = new_bench()
    bench.submit(*DONE)
    with bench.scheduler:
        bench.wait(*DONE)
    bench.submit(*WAITING)
    bench.scheduler.close()
    return bench


def spoil_table(path: Path, name: str) -> None:
    file = apsw.Connection(str(path))
    root = file.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get
    file.close()
    with path.open("r+b") as raw:
        raw.seek((root - 1) * PAGE)
        raw.write(b"\xde\xad\xbe\xef" * (PAGE // 4))


def test_the_steps_of_the_error_bring_the_work_back(used: Bench, tmp_path: Path) -> None:
    used.scheduler.open()
    spoil(used.path, 0.75, 0.9)
    with pytest.raises(CorruptDatabaseError) as found:
        read_all(used)
    used.scheduler.close()  # (1)
    copy = re.search(r"cp (\S+ \S+)", str(found.value))[1]
    command = re.search(r"reverie (salvage \S+ \S+)", str(found.value))[1]
    shutil.copy(*copy.split())  # (2)
    before = contents_of(used.path)
    url = f"sqlite:///{used.path}"
    place = Place("sqlite", tmp_path, url, url)
    done = place.command(*command.split(), "--json")  # (3)
    assert done.returncode == 0, done.stderr
    assert contents_of(used.path)[:1] == before[:1]
    tables = {table["table"]: table for table in json.loads(done.stdout)}
    rows = tables["pending_messages"]["rows"]
    assert 0 < rows < len(DONE) + len(WAITING)
    assert rows + tables["pending_messages"]["lost"] == len(DONE) + len(WAITING)
    for name in ("-wal", "-shm"):
        Path(f"{used.path}{name}").unlink(missing_ok=True)
    Path(f"{used.path}.saved").rename(used.path)
    with used.scheduler:  # (4)
        waiting = [item.item_id[1:] for user in ("u0", "u1", "u2") for item in used.scheduler.status(user)]
        assert len(waiting) == rows
        used.wait(*waiting)
        used.submit(5000)
        used.wait(5000)
        kept = used.rows("SELECT user_id, id, text FROM memory_items WHERE id LIKE 'note-1%' LIMIT 20")
        for user, name, text in kept:
            hits = used.scheduler.memory.search(text, user_id=user, note=False)
            assert name in [hit.item.id for hit in hits]
    assert used.rows("SELECT count(*) FROM pending_messages WHERE status <> 'completed'") == [(0,)]
    assert used.rows("SELECT sum(running) FROM lanes") == [(0,)]
    assert used.rows("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    "table",
    [
        "lanes",
        "queue_counters",
        "label_counts",
        "schema_versions",
        "inbox",
        "memory_postings",
        "memory_cards",
        "memory_bits",
        "memory_shelves",
        "memory_tenants",
        "memory_state",
        "memory_unindexed",
    ],
)
def test_what_follows_from_the_messages_is_made_anew(used: Bench, tmp_path: Path, table) -> None:
    spoil_table(used.path, table)
    saved = tmp_path / "saved.db"
    tables = {found.table: found for found in salvage(str(used.path), str(saved), ROOMS)}
    assert tables["pending_messages"].rows == len(DONE) + len(WAITING)
    saved.rename(used.path)
    with used.scheduler.used():
        assert used.scheduler.control.labels() == [
            LabelState(label="note", waiting=len(WAITING), completed=len(DONE), completed_ever=len(DONE))
        ]
    with used.scheduler:
        used.wait(*WAITING)
        assert used.scheduler.memory.search("7", user_id="u1", note=False)[0].item.id == "note-7"
        assert used.scheduler.memory.indexed().left == 0  # the vectors, too
    used.assert_each_once(*DONE, *WAITING)
    used.scheduler.close()
    assert_agreement(used.path, indexed=True)


def test_a_healthy_file_is_copied_whole(used: Bench, tmp_path: Path) -> None:
    tables = salvage(str(used.path), str(tmp_path / "saved.db"), ROOMS)
    assert {found.lost for found in tables} == {0}
    used.path.unlink()
    (tmp_path / "saved.db").rename(used.path)
    with used.scheduler:
        used.wait(*WAITING)
    used.assert_each_once(*DONE, *WAITING)


def test_what_cannot_be_saved_says_so(used: Bench, tmp_path: Path) -> None:
    saved = tmp_path / "saved.db"
    with pytest.raises(SalvageError, match="is not a file"):
        salvage(str(tmp_path / "missing.db"), str(saved), ROOMS)
    with pytest.raises(SalvageError, match="name a new file"):
        salvage(str(used.path), sys.executable, ROOMS)
    spoil(used.path, 0)
    with pytest.raises(CorruptDatabaseError, match="not even its list of tables can be read"):
        salvage(str(used.path), str(saved), ROOMS)
    assert not saved.exists()
