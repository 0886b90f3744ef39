"""A disk that is full, or fails: refused clearly, nothing lost, and the work goes on by itself afterwards."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from pathlib import Path

import pytest

from reverie import Scheduler
from reverie.backends.moves import Presence
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings
from reverie.testing import ManualClock
from support.scale import SCALE, evidence
from support.small_disk import run_on_small_disk

from .conftest import Bench
from .disk import EVERYWHERE, LOG, Disk

FAULTS = {
    "full": "the disk is full .*: free space on it, then try again",
    "write": "the disk cannot be read or written",
    "sync": "the disk cannot be read or written",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_submit_is_refused_and_what_was_accepted_is_kept(bench: Bench, disk: Disk, fault) -> None:
    bench.submit(1, 2)
    disk.breaks(fault)
    for _ in range(3):
        with pytest.raises(BackendUnavailableError, match=FAULTS[fault]) as refused:
            bench.submit(3)
        assert str(bench.path) in str(refused.value)
    disk.wait_until_refused(3)
    assert [item.item_id for item in bench.scheduler.status("u1")] == ["n1"]
    disk.works()
    bench.submit(3, 4)
    bench.scheduler.start()
    bench.wait(1, 2, 3, 4)
    bench.scheduler.close()
    bench.assert_each_once(1, 2, 3, 4)


@pytest.mark.parametrize("where", [EVERYWHERE, LOG], ids=["everywhere", "log"])
@pytest.mark.parametrize("fault", ["full", "write"])
def test_a_worker_pauses_and_finishes_by_itself(bench: Bench, disk: Disk, fault, where) -> None:
    messages = range(60)

    @bench.scheduler.handler("trip")
    def trip(_: object) -> None:
        """Breaks the disk between the claim of some messages and their settlement."""
        disk.breaks(fault, where)

    bench.submit(*messages)
    bench.scheduler.submit("trip", user_id="u9", item_id="trip")
    bench.scheduler.start()
    disk.wait_until_refused(10)
    with pytest.raises(BackendUnavailableError):
        bench.submit(100)
    disk.works()
    bench.wait(*messages)
    assert bench.scheduler.wait("trip", user_id="u9").status == "completed"
    bench.submit(100)
    bench.wait(100)
    bench.scheduler.close()
    assert bench.rows("DELETE FROM pending_messages WHERE id = 'trip'") == []
    bench.assert_each_once(*messages, 100)
    assert set(bench.ran) == {f"n{number}" for number in (*messages, 100)}


@pytest.mark.parametrize("where", [EVERYWHERE, LOG], ids=["everywhere", "log"])
def test_a_worker_goes_on_while_submits_cannot_be_synced(bench: Bench, disk: Disk, where) -> None:
    messages = range(60)
    bench.submit(*messages)
    disk.breaks("sync", where)
    bench.scheduler.start()
    bench.wait(*messages)
    with pytest.raises(BackendUnavailableError, match=FAULTS["sync"]):
        bench.submit(100)
    disk.works()
    bench.submit(100)
    bench.wait(100)
    bench.scheduler.close()
    bench.assert_each_once(*messages, 100)


def test_a_message_is_cancelled_on_a_full_disk_by_the_room_of_the_reserve(bench: Bench, disk: Disk) -> None:
    bench.submit(1, 2)
    reserve = bench.path.with_name("reverie.db-reserve")
    assert reserve.stat().st_blocks * 512 >= 1024 * 1024
    disk.room = reserve
    disk.breaks("full")
    with pytest.raises(BackendUnavailableError, match=FAULTS["full"]):
        bench.submit(3)
    assert reserve.exists()  # a submit does not use it
    result = bench.scheduler.control.cancel("n1", user_id="u1")
    assert [key.item_id for key in result.changed] == ["n1"]
    assert bench.scheduler.status("u1")[0].status == "cancelled"
    assert not reserve.exists()


def test_other_writes_wait_until_there_is_room_for_the_reserve_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(1)
    reserve = bench.path.with_name("reverie.db-reserve")
    reserve.unlink()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(BackendUnavailableError, match="the room that is left is kept for commands"):
            bench.submit(2)
        assert bench.scheduler.control.cancel("n1", user_id="u1").changed
    bench.submit(2)
    assert reserve.exists()
    bench.scheduler.close()
    assert not reserve.exists()


def test_a_full_disk_does_not_make_workers_seem_dead(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(data_dir=tmp_path, queue={"url": f"sqlite:///{tmp_path / 'r.db'}"})
    with Scheduler(settings=settings, clock=clock).used() as scheduler:
        scheduler.open()
        presence = Presence(worker="w", labels=("work",), lives_ms=30_000)
        scheduler.run(scheduler.runtime.backend.queue.renew([], 30_000, presence))
        scheduler.submit("work", user_id="ann")
        clock.advance(1000)
        with monkeypatch.context() as patched:
            patched.setattr("reverie.storage.sqlite.LEAST_FREE_BYTES", 2**80)  # any disk is too small
            health = scheduler.observe.health()
            assert (health.workers, health.unhandled_labels) == (1, [])
            assert not [alert for alert in scheduler.observe.alerts() if "no worker" in alert.message]
        assert scheduler.observe.health().workers == 0


@pytest.mark.timeout(120)
def test_a_real_file_system_that_is_full_can_be_looked_at_and_cancelled_on(tmp_path: Path) -> None:
    program = Path(__file__).with_name("cancel_on_full.py")
    shown = run_on_small_disk("24m", tmp_path, sys.executable, str(program), str(tmp_path))
    assert json.loads(shown) == {
        "refused": 1,
        "cancelled": ["later-1", "later-2"],
        "status": "cancelled",
        "workers": 1,
        "after": "completed",
    }


@pytest.mark.scaled
@pytest.mark.skipif(SCALE != 1, reason="a real file system is filled under REVERIE_TEST_SCALE=1 (make soak)")
@pytest.mark.timeout(300)
def test_a_real_file_system_that_is_full(tmp_path: Path) -> None:
    program = Path(__file__).with_name("full_file_system.py")
    with evidence("full-file-system") as figures:
        shown = run_on_small_disk("16m", tmp_path, sys.executable, str(program), str(tmp_path), timeout_s=240)
        figures.update(json.loads(shown))
        assert re.search(FAULTS["full"], figures["refusal"])
        assert figures["remembered"] == figures["accepted"] > 400
        assert figures["statuses"] == {"completed": figures["accepted"]}
        assert (figures["running"], figures["losses"], figures["integrity"]) == (0, 0, "ok")
