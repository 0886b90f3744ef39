"""Worker processes are killed at random while messages are handled: none lost, order kept, effects once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from places import PATHS, SHARED, Place
from reverie import Message
from reverie.backends.moves import Status
from reverie.backends.views import MOST_KEPT, StatusQuery
from scale import SEED, evidence, scaled

WORKERS = 2
DEADLINE_S = 3000


class Worker:
    """One worker process, started again whenever it is killed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        worker = Path(__file__).with_name("worker.py")
        environment = {
            **self.place.environment,
            **PATHS,
            "REVERIE_WORKER__LEASE_S": "2",
            "REVERIE_WORKER__RENEW_S": "0.5",
        }
        return subprocess.Popen([sys.executable, worker], env=environment, cwd=self.place.folder)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self.start()


@pytest.mark.scaled
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_workers_killed_at_random(place: Place) -> None:
    lanes, kills = scaled(200), scaled(1000)
    place.extra["REVERIE_QUEUE__MAX_LOSSES"] = "1000"
    chance = random.Random(SEED)
    users = [f"user-{n}" for n in range(lanes)]
    waves: list[list[Message]] = [[] for _ in range(kills)]
    for n in range(scaled(20_000)):
        waves[n * kills // scaled(20_000)].append(
            Message(user_id=users[n % lanes], label="note", content=str(n), item_id=str(n))
        )
    with evidence(f"kills-{place.kind}") as figures, place.scheduler() as scheduler:
        workers = [Worker(place) for _ in range(WORKERS)]
        try:
            for wave in waves:
                if wave:
                    scheduler.submit_messages(wave)
                wait_for_progress(scheduler, users, chance)
                chance.choice(workers).kill()
            wait_until_done(scheduler, users)
        finally:
            for worker in workers:
                worker.process.terminate()
                assert worker.process.wait(60) in {
                    0,
                    -signal.SIGTERM,
                }  # the latter while it is still starting
        rows = [row for user in users for row in read(scheduler, user)]
        figures |= {
            "messages": scaled(20_000),
            "lanes": lanes,
            "kills": kills,
            "losses": sum(row.losses for row in rows),
        }
        assert len(rows) == scaled(20_000)
        assert {row.status for row in rows} == {Status.COMPLETED}
        assert {row.attempts for row in rows} == {1}
        (notes,) = [state for state in scheduler.control.labels() if state.label == "note"]
        assert (notes.waiting, notes.in_progress, notes.failed, notes.cancelled) == (0, 0, 0, 0)
        assert notes.completed == notes.completed_ever == len(rows)
        assert scheduler.observe.health().oldest_processing_age == 0
        lost = [
            sum(attempt.outcome == "lost" for attempt in history)
            for history in (scheduler.observe.history(r.item_id, user_id=r.user_id) for r in rows if r.losses)
        ]
        assert sum(lost) == sum(min(row.losses, MOST_KEPT - 1) for row in rows)
    for user, contents in remembered(place).items():
        expected = [str(n) for n in range(scaled(20_000)) if users[n % lanes] == user]
        assert contents == expected, f"{user}: {len(contents)} memories, in another order or not each once"


def read(scheduler, user: str):
    query = StatusQuery(user_id=user, limit=100_000)
    return scheduler.run(scheduler.runtime.backend.views.read(query)).rows


def wait_for_progress(scheduler, users: list[str], chance: random.Random) -> None:
    """Let the workers come to something before the next kill: until a lane has moved, or a while."""
    user = chance.choice(users)
    before = sum(row.status is Status.COMPLETED for row in read(scheduler, user))
    until = time.monotonic() + chance.uniform(0, 1.5)
    while time.monotonic() < until:
        if sum(row.status is Status.COMPLETED for row in read(scheduler, user)) > before:
            return


def wait_until_done(scheduler, users: list[str]) -> None:
    for user in users:
        for row in read(scheduler, user):
            scheduler.wait(row.item_id, user_id=user, timeout=DEADLINE_S)


def remembered(place: Place) -> dict[str, list[str]]:
    """What each user remembers, in the order in which it was written."""
    path = place.memory_url.removeprefix("sqlite:///")
    rows = apsw.Connection(path).execute("SELECT user_id, text FROM memory_items ORDER BY seq").fetchall()
    found: dict[str, list[str]] = {}
    for user, text in rows:
        found.setdefault(user, []).append(text.removeprefix("note "))
    return found
