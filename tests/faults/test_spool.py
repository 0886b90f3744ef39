"""The spool when things break: a kill between two steps, a database that takes no writes, a full disk."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from reverie.capture.intake import add_message
from reverie.capture.spool import Spool
from support.living import wait_until
from support.places import SHARED, Place
from support.small_disk import run_on_small_disk
from support.spooling import damaged, waiting

from .conftest import Bench
from .disk import Disk

TEXT = "I moved to Lisbon in May"
LOOK = {"REVERIE_SPOOL__LOOK_S": "0.05"}


def spool_of(place: Place) -> Path:
    return place.settings().spool_dir


def capture(place: Place, item_id: str) -> None:
    Spool(spool_of(place)).write(
        msgspec.to_builtins(add_message(f"{TEXT} ({item_id})", user_id="ann", item_id=item_id))
    )


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_killed_between_submit_and_removal(place: Place) -> None:
    for item_id in ("one", "two"):
        capture(place, item_id)
    with place.server(REVERIE_FAILPOINT="after_ingest", API_SCHEDULER_ON="false") as server:
        assert server.process.wait(30) == -signal.SIGKILL
    assert len(waiting(spool_of(place))) == 2
    with place.scheduler() as scheduler:
        assert [item.status for item in scheduler.status("ann")] == ["waiting", "waiting"]
    with place.server(), place.scheduler() as scheduler:
        for item_id in ("one", "two"):
            assert scheduler.wait(item_id, user_id="ann").status == "completed"
        wait_until(lambda: waiting(spool_of(place)) == [])
        assert len(scheduler.status("ann")) == 2
        assert len(scheduler.memory.search("Lisbon", user_id="ann")) == 2
    assert damaged(spool_of(place)) == {}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_several_processes_share_the_folder(place: Place) -> None:
    """Two servers without workers take in what comes, while one of them is killed."""
    with place.server(API_SCHEDULER_ON="false", **LOOK), place.scheduler() as scheduler:
        with place.server(API_SCHEDULER_ON="false", **LOOK) as other:
            for number in range(100):
                capture(place, f"n{number}")
            other.process.kill()
            other.process.wait(30)
        for number in range(100, 120):
            capture(place, f"n{number}")
        wait_until(lambda: waiting(spool_of(place)) == [])
        assert {item.item_id for item in scheduler.status("ann")} == {f"n{number}" for number in range(120)}
    assert damaged(spool_of(place)) == {}


@pytest.mark.parametrize("started", [True, False], ids=["a worker runs", "no worker runs yet"])
def test_a_database_that_takes_no_writes(bench: Bench, disk: Disk, started: bool) -> None:
    folder = bench.path.parent / "spool"
    bench.submit(0)
    if started:
        bench.scheduler.start()
        bench.wait(0)
    disk.breaks("full")
    for number in (3, 6, 9):  # all of one user
        answer = bench.scheduler.capture("note", user_id="u0", item_id=f"n{number}", content=str(number))
        assert (answer.item_id, answer.status) == (f"n{number}", "spooled")
    assert len(waiting(folder)) == 3
    disk.works()
    bench.scheduler.start()
    wait_until(lambda: waiting(folder) == [])
    bench.wait(0, 3, 6, 9)
    bench.scheduler.close()
    bench.assert_each_once(0, 3, 6, 9)
    assert list(bench.ran) == ["n0", "n3", "n6", "n9"]


FILL = """
import json, os, sys
from reverie.capture.spool import Spool
from reverie.errors import SpoolError
spool = Spool(sys.argv[1] + "/spool")
kept = []
def write():
    kept.append(spool.write({"user_id": "ann", "label": "note", "content": "x" * 5000}))
refusals = set()
while len(refusals) < 1:
    try:
        write()
    except SpoolError as error:
        refusals.add(str(error))
names = sorted(os.listdir(spool.folder))
first = json.load(open(spool.folder + "/" + names[0]))["item_id"]
os.unlink(spool.folder + "/" + names[0])
write()
found = [json.load(open(spool.folder + "/" + name)) for name in sorted(os.listdir(spool.folder))]
print(json.dumps({
    "refusals": sorted(refusals),
    "kept": [item for item in kept if item != first],
    "found": [message["item_id"] for message in found],
}))
"""


def test_a_real_file_system_that_is_full(tmp_path: Path) -> None:
    figures = json.loads(run_on_small_disk("256k", tmp_path, sys.executable, "-c", FILL, str(tmp_path)))
    assert figures["refusals"] == [
        f"the spool {tmp_path}/spool did not keep this: the disk is full: free space on it, then try again"
    ]
    assert figures["found"] == figures["kept"]
    assert len(figures["kept"]) > 10
