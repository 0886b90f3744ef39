"""The spool: what is written is whole, private, and never too much."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reverie import Message
from reverie.capture.spool import FIELDS, Spool, _Names
from reverie.errors import (
    InvalidMessageError,
    SpoolError,
    SpoolFullError,
)
from support.spooling import NOTE, put, waiting

FILLED_BY_THE_ENGINE = {
    "level",
    "attempts",
    "losses",
    "conflicts",
    "requeues",
    "redis_message_id",
    "stream_key",
    "user_key",
}


def test_imports_the_standard_library_only() -> None:
    program = """
import sys
import reverie.capture.spool
ours = {name for name in sys.modules if name.split(".")[0] == "reverie"}
others = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(ours), sorted(others - {"reverie", "__main__"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", program.replace("import reverie.capture.spool", "")],
        capture_output=True,
        text=True,
        check=True,
    )
    ours, others = done.stdout.split("] ")
    assert ours == "['reverie', 'reverie.capture', 'reverie.capture.spool', 'reverie.version'"
    assert others == bare.stdout.split("] ")[1]


def test_is_private_and_leaves_nothing_else(spool: Spool, folder: Path) -> None:
    before = os.umask(0)
    try:
        spool.write(NOTE)
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_folder_that_was_there_keeps_its_mode(spool: Spool, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o2755)
    spool.check()
    spool.write(NOTE)
    (file,) = waiting(folder)
    assert (folder.stat().st_mode & 0o7777, file.stat().st_mode & 0o777) == (0o2755, 0o600)


def test_files_of_others_do_not_fill_the_spool(folder: Path) -> None:
    for name in ("package.json", "1.json", ".editor.tmp"):
        put(folder, name)
    Spool(folder, max_files=1).write(NOTE)
    with pytest.raises(SpoolFullError):
        Spool(folder, max_files=1).write(NOTE)


def test_fixes_the_id_and_the_time(spool: Spool, folder: Path) -> None:
    before = datetime.now(UTC)
    item_id = spool.write(NOTE)
    (file,) = waiting(folder)
    kept = json.loads(file.read_bytes())
    assert {name: kept[name] for name in ("user_id", "label", "item_id")} == NOTE | {"item_id": item_id}
    assert before <= datetime.fromisoformat(kept["timestamp"]) <= datetime.now(UTC)
    assert spool.write(NOTE | {"item_id": "mine"}) == "mine"


def test_knows_the_fields_of_a_message() -> None:
    assert set(Message.__struct_fields__) - FIELDS == FILLED_BY_THE_ENGINE
    assert set(Message.__struct_fields__) >= FIELDS


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"label": "note"}, "user_id=null"),
        (NOTE | {"label": ""}, "label=''"),
        (NOTE | {"item_id": 7}, "item_id=7"),
        (NOTE | {"colour": "red"}, "colour='red'.*no such field"),
        (NOTE | {"attempts": 3}, "attempts=3.*no such field"),
        (NOTE | {"content": "\ud800"}, "cannot be written as JSON"),
        (NOTE | {"info": {"x": float("nan")}}, "cannot be written as JSON"),
        (NOTE | {"info": {"x": {1, 2}}}, "contains a set"),
        (NOTE | {"content": "x" * 2000}, "spool.max_file_bytes = 1000"),
    ],
)
def test_refuses_what_nobody_could_read(folder: Path, fields, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        Spool(folder, max_file_bytes=1000).write(fields)
    assert not folder.exists()


def test_a_full_spool_refuses_until_there_is_room(folder: Path) -> None:
    spool = Spool(folder, max_files=3)
    for _ in range(3):
        spool.write(NOTE)
    for _ in range(2):
        with pytest.raises(SpoolFullError, match=r"spool.max_files = 3 is reached.*reverie worker"):
            spool.write(NOTE)
    assert len(waiting(folder)) == 3
    waiting(folder)[0].unlink()
    spool.write(NOTE)
    with pytest.raises(SpoolFullError):
        Spool(folder, max_files=3).write(NOTE)


def test_counting_is_rare_and_a_full_folder_is_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: lists.append(path) or scandir(path))
    monkeypatch.setattr(os, "urandom", random.Random(7).randbytes)
    spool = Spool(folder, max_files=100_000)
    for _ in range(200):
        spool.write(NOTE)
    assert len(lists) < 10
    (folder / ".full").touch()
    spool.write(NOTE)
    assert not (folder / ".full").exists(), "somebody has made room since"


def test_names_never_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _Names()
    times = iter([1000, 1001, 500, 1001, 2000])
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    made = [names.next() for _ in range(5)]
    assert made == sorted(made)
    assert [int(name.partition("-")[0]) for name in made] == [1000, 1001, 1002, 1003, 2000]


def test_threads_write_each_their_own(spool: Spool, folder: Path) -> None:
    def write(number: int) -> None:
        for index in range(20):
            spool.write(NOTE | {"item_id": f"{number}-{index:02d}"})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [json.loads(path.read_bytes())["item_id"] for path in waiting(folder)]
    for number in range(4):
        own = [item for item in ids if item.startswith(f"{number}-")]
        assert own == [f"{number}-{index:02d}" for index in range(20)]


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_full_disk_is_named_and_leaves_nothing(
    spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    spool.write(NOTE)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, step, full)
        with pytest.raises(SpoolError, match="the disk is full: free space on it, then try again") as no:
            spool.write(NOTE)
    assert str(folder) in str(no.value)
    assert len(list(folder.iterdir())) == 1
    spool.write(NOTE)
    assert len(waiting(folder)) == 2


def test_a_file_where_the_folder_should_be(spool: Spool, folder: Path) -> None:
    folder.parent.mkdir()
    folder.touch()
    with pytest.raises(SpoolError, match=r"set spool.dir"):
        spool.write(NOTE)


def test_killed_at_any_moment(folder: Path) -> None:
    program = """
import itertools, os, sys
from reverie.capture.spool import Spool
spool = Spool(sys.argv[1])
for number in itertools.count():
    made = spool.write({"user_id": "ann", "label": "note", "content": "x" * 5000})
    os.write(1, (made + "\\n").encode())
"""
    told: list[str] = []
    chance = random.Random(3)
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            lines = chance.randrange(1, 30)
            told += [writer.stdout.readline().decode().strip() for _ in range(lines)]
            os.kill(writer.pid, signal.SIGKILL)
            told += writer.stdout.read().decode().split()
            assert writer.wait() == -signal.SIGKILL
    others = [path.name for path in folder.iterdir() if path.suffix != ".json"]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in others)
    kept = [json.loads(path.read_bytes()) for path in waiting(folder)]
    assert all(message["content"] == "x" * 5000 for message in kept)
    ids = [message["item_id"] for message in kept]
    assert len(set(ids)) == len(ids)
    assert [item for item in ids if item in set(told)] == told, "all that were promised, in their order"


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_killed_at_each_step(spool: Spool, folder: Path, step: str) -> None:
    """Before a file has its name it is none; `write` stands for a part of it."""
    program = """
import os, sys
from reverie.capture.spool import Spool
def die(*arguments, **_):
    if sys.argv[2] == "write":
        write(arguments[0], arguments[1][:10])
    os.kill(os.getpid(), 9)
write = os.write
setattr(os, sys.argv[2], die)
Spool(sys.argv[1]).write({"user_id": "ann", "label": "note"})
"""
    spool.write(NOTE)
    done = subprocess.run([sys.executable, "-c", program, str(folder), step], check=False)
    assert done.returncode == -signal.SIGKILL
    kept, unfinished = sorted(folder.iterdir(), reverse=True)
    assert json.loads(kept.read_bytes())["label"] == "note"
    assert re.fullmatch(r"\..*\.json\.tmp", unfinished.name)
