"""One thing goes wrong, and everything else goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack

import apsw
import pytest

from reverie import Message, Scheduler
from reverie.backends.moves import Status
from support.gate import gate
from support.living import wait_until
from support.places import PLACES, SHARED, Place
from support.scale import evidence, scaled

QUICK = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.2"}
"""Leases that run out while a test waits."""
LEASE_S = 3.0
SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": str(LEASE_S), "REVERIE_WORKER__RENEW_S": "1"}


def suspend(process: subprocess.Popen[bytes], place: Place) -> None:
    """Stop a process between two of its writes: in the middle of one, the file would stay locked."""
    for _ in range(100):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if place.kind != "sqlite" or not is_locked(place.queue_url.removeprefix("sqlite:///")):
            return
        process.send_signal(signal.SIGCONT)
        assert not is_locked(
            place.queue_url.removeprefix("sqlite:///"), patience_s=30
        )  # let it end its write
    pytest.fail("it was always writing")


def is_locked(path: str, patience_s: int = 0) -> bool:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(patience_s * 1000)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return True
    finally:
        connection.close()
    return False


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_worker_suspended_past_its_lease(place: Place) -> None:
    """One loss, one attempt, settled once."""
    with gate() as door, place.scheduler() as scheduler:
        place.extra |= QUICK | {"TEST_GATE": door.path}
        with place.worker("--app", "app:scheduler") as first:
            scheduler.submit("gated", user_id="ann", item_id="1")
            assert door.arrival() == first.pid
            suspend(first, place)
            try:
                with place.worker("--app", "app:scheduler") as second:
                    assert door.arrival() == second.pid  # it was handed on
                    door.open()
                    item = scheduler.wait("1", user_id="ann")
                    assert (item.status, item.losses, item.attempts) == (Status.COMPLETED, 1, 1)
            finally:
                first.send_signal(signal.SIGCONT)
            scheduler.submit("note", user_id="ann", item_id="2")  # the first goes on, and is not heard
            assert scheduler.wait("2", user_id="ann").status is Status.COMPLETED
        item = scheduler.status("ann", "1")[0]
        assert (item.status, item.losses, item.attempts) == (Status.COMPLETED, 1, 1)
    rows = apsw.Connection(place.memory_url.removeprefix("sqlite:///")).execute(
        "SELECT text FROM memory_items"
    )
    assert sorted(text for (text,) in rows) == ["note 1", "note 2"]


@pytest.mark.scaled
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mishap", ["suspended", "killed"])
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_short_lease_is_handed_on_in_time(place: Place, mishap: str) -> None:
    """Another worker runs the message within twice its lease, also one that was idle for long."""
    with gate() as door, place.scheduler() as scheduler, ExitStack() as stack:
        place.extra |= SHORT_LEASE | {"TEST_GATE": door.path}

        def start() -> dict[int, subprocess.Popen[bytes]]:
            process = stack.enter_context(place.worker("--app", "app:scheduler"))
            return {process.pid: process}

        workers = start() | start()
        wait_until(lambda: alive(scheduler) >= set(workers))
        with evidence(f"lease-{place.kind}-{mishap}") as figures:
            figures["seconds"] = []
            for number in range(max(2, scaled(10))):
                scheduler.submit("gated", user_id="ann", item_id=str(number))
                holder = workers[door.arrival()]
                if mishap == "suspended":
                    suspend(holder, place)
                else:
                    holder.kill()
                    holder.wait()
                began = time.monotonic()
                assert door.arrival() != holder.pid
                figures["seconds"].append(round(time.monotonic() - began, 2))
                holder.send_signal(signal.SIGCONT)
                door.open()
                item = scheduler.wait(str(number), user_id="ann")
                assert (item.status, item.losses) == (Status.COMPLETED, 1)
                if mishap == "killed":
                    del workers[holder.pid]
                    workers.update(start())
                    wait_until(lambda: alive(scheduler) >= set(workers))
            assert max(figures["seconds"]) <= 2 * LEASE_S


def alive(scheduler: Scheduler) -> set[int]:
    """The processes of the workers that have registered."""
    return {int(presence.worker.split("-")[-2]) for presence in scheduler.control.workers()}


@pytest.mark.parametrize("batch", [False, True], ids=["plain", "batch"])
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_one_poisonous_message_of_a_hundred(place: Place, batch: bool) -> None:
    settings = place.settings().model_copy(deep=True)
    settings.worker.backoff_s = 0.001
    scheduler = Scheduler(settings=settings)
    fixed = threading.Event()

    def check(message: Message) -> None:
        if message.item_id == "42" and not fixed.is_set():
            raise ZeroDivisionError("poison")

    @scheduler.handler("work", batch=batch)
    def work(given) -> None:
        for message in given if batch else [given]:
            check(message)

    with scheduler:
        messages = [Message(user_id=f"user-{n % 10}", label="work", item_id=str(n)) for n in range(100)]
        scheduler.submit_messages(messages)
        statuses = {m.item_id: scheduler.wait(m.item_id, user_id=m.user_id).status for m in messages}
        assert [item_id for item_id, status in statuses.items() if status is not Status.COMPLETED] == ["42"]
        (letter,) = scheduler.control.dead_letters().rows
        assert (letter.item_id, letter.status, letter.attempts) == ("42", Status.FAILED, 3)
        assert "ZeroDivisionError: poison" in letter.error
        assert "in check" in letter.error
        fixed.set()
        assert len(scheduler.control.requeue("42", user_id="user-2").changed) == 1
        assert scheduler.wait("42", user_id="user-2").status is Status.COMPLETED
        assert scheduler.control.dead_letters().rows == []


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_flood_of_the_background_leaves_the_reserved_slots_free(place: Place) -> None:
    settings = place.settings().model_copy(deep=True)
    settings.worker.slots = 8
    scheduler = Scheduler(settings=settings)
    begun = threading.Semaphore(0)
    freed = threading.Event()
    running: list[str] = []

    def wait_inside(message: Message) -> None:
        running.append(message.label)
        begun.release()
        freed.wait(60)

    for label, level in (("background", 3), ("soon", 2), ("at_once", 1)):
        scheduler.handler(label, level=level, concurrency=100)(wait_inside)

    arrived = 0

    def arrivals(count: int) -> list[str]:
        """The labels of the next ones that have begun."""
        nonlocal arrived
        assert [begun.acquire(timeout=30) for _ in range(count)] == [True] * count
        arrived += count
        return running[arrived - count : arrived]

    with scheduler:
        scheduler.submit_messages([Message(user_id=f"u{n}", label="background") for n in range(50)])
        assert arrivals(5) == ["background"] * 5
        scheduler.submit_messages([Message(user_id=f"u{n}", label="at_once") for n in range(5)])
        assert arrivals(2) == ["at_once"] * 2
        scheduler.submit_messages([Message(user_id=f"u{n}", label="soon") for n in range(5)])
        assert arrivals(1) == ["soon"]
        assert not begun.acquire(blocking=False)
        freed.set()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("label", ["killer", "hidden_killer"])
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_message_that_kills_its_worker(place: Place, label: str) -> None:
    """It is buried after its losses; its neighbours are done."""
    place.extra |= QUICK
    with place.scheduler() as scheduler:
        messages = [
            Message(user_id=f"user-{n % 4}", label=label, item_id=str(n), content="die" if n == 5 else "")
            for n in range(20)
        ]
        scheduler.submit_messages(messages)
        with place.worker("--app", "app:scheduler", "--processes", "2"):
            for message in messages:
                item = scheduler.wait(message.item_id, user_id=message.user_id, timeout=180)
                if message.content == "die":
                    assert (item.status, item.error, item.losses) == (Status.FAILED, "killed_worker", 5)
                else:
                    assert (item.status, item.attempts) == (Status.COMPLETED, 1)
                    assert item.losses < 5
        assert [state for state in scheduler.control.labels() if state.waiting or state.in_progress] == []


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_fifty_handlers_that_hang(place: Place) -> None:
    """They fail in seconds, and other labels go on; the process starts anew now and then."""
    with gate() as door, place.scheduler() as scheduler:
        place.extra |= QUICK | {"TEST_GATE": door.path}
        hanging = [Message(user_id=f"user-{n}", label="hang", item_id=f"h{n}") for n in range(50)]
        scheduler.submit_messages(hanging)
        with place.worker("--app", "app:scheduler"):
            for _ in range(5):
                door.arrival()
            others = [Message(user_id=f"user-{n}", label="note", item_id=f"n{n}") for n in range(50)]
            scheduler.submit_messages(others)
            for message in others:
                assert scheduler.wait(message.item_id, user_id=message.user_id).status is Status.COMPLETED
            for message in hanging:
                item = scheduler.wait(message.item_id, user_id=message.user_id, timeout=60)
                assert (item.status, item.attempts) == (Status.FAILED, 1)
                assert item.error.startswith("timeout:")
