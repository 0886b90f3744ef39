"""Workers are killed and suspended at random, and the Redis server is killed, while messages are handled.

None is lost, order is kept in each lane, effects are applied once, and the counts are right.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw
import pytest

from reverie import Message, Scheduler
from reverie.backends.moves import Status
from reverie.backends.views import MOST_KEPT, StatusQuery
from reverie.errors import BackendUnavailableError
from support.living import wait_until
from support.places import PATHS, SHARED, Place, redis, sqlite
from support.scale import SEED, evidence, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Valkey

DEADLINE_S = 3000
LEASE_S = 2.0
SUSPENDED_S = 1.5 * LEASE_S
"""Long enough to lose every claim."""


class Size(NamedTuple):
    """How much happens in a full run."""

    messages: int
    lanes: int
    mishaps: int
    """Workers that are killed, or suspended."""
    workers: int
    patience_s: float
    """So long is some work waited for before the next mishap, at most."""
    suspended: float = 0
    """What part of the mishaps is not deadly."""
    server_kills: int = 0


SIZES = {
    "sqlite": Size(messages=20_000, lanes=200, mishaps=1000, workers=2, patience_s=1.5),
    "redis": Size(
        messages=200_000, lanes=5000, mishaps=300, workers=4, patience_s=5, suspended=0.25, server_kills=2
    ),
}


class Worker:
    """One worker process, started again whenever it dies."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.process = self.start()
        self._resumes_at: float | None = None

    def start(self) -> subprocess.Popen[bytes]:
        worker = Path(__file__).with_name("worker.py")
        environment = {
            **self.place.environment,
            **PATHS,
            "REVERIE_WORKER__LEASE_S": str(LEASE_S),
            "REVERIE_WORKER__RENEW_S": "0.5",
        }
        return subprocess.Popen([sys.executable, worker], env=environment, cwd=self.place.folder)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self.start()
        self._resumes_at = None

    def suspend(self) -> None:
        """Stop it, wherever it is, until its leases are over."""
        self.process.send_signal(signal.SIGSTOP)
        self._resumes_at = time.monotonic() + SUSPENDED_S

    def look_after(self) -> bool:
        """Let it go on if its time has come, or start it again; whether it runs."""
        if self._resumes_at is not None and time.monotonic() >= self._resumes_at:
            self.process.send_signal(signal.SIGCONT)
            self._resumes_at = None
        if self.process.poll() is not None:  # it had just started when the server went away
            self.process = self.start()
        return self._resumes_at is None

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        assert self.process.wait(60) in {0, -signal.SIGTERM}  # the latter while it is still starting


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One whose server forgets nothing when it is killed."""
    opened = redis(tmp_path, appendfsync="always") if request.param == "redis" else sqlite(tmp_path)
    with opened as place:
        yield place


@pytest.mark.scaled
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_mishaps_at_random(place: Place) -> None:
    size = SIZES[place.kind]
    total, lanes, mishaps = scaled(size.messages), scaled(size.lanes), scaled(size.mishaps)
    place.extra["REVERIE_QUEUE__MAX_LOSSES"] = "1000"
    chance = random.Random(SEED)
    users = [f"user-{n}" for n in range(lanes)]
    waves: list[list[Message]] = [[] for _ in range(mishaps)]
    for n in range(total):
        waves[n * mishaps // total].append(
            Message(user_id=users[n % lanes], label="note", content=str(n), item_id=str(n))
        )
    server_dies = set(chance.sample(range(mishaps), size.server_kills))
    with evidence(f"kills-{place.kind}") as figures, place.scheduler() as scheduler:
        workers = [Worker(place) for _ in range(size.workers)]
        try:
            for number, wave in enumerate(waves):
                if number in server_dies:
                    submit_while_the_server_dies(scheduler, wave, place.redis)
                elif wave:
                    scheduler.submit_messages(wave)
                until = time.monotonic() + chance.uniform(0, size.patience_s)
                wait_for_progress(scheduler, chance.randint(1, len(wave) or 1), until, workers)
                worker = chance.choice(workers)
                if chance.random() < size.suspended:
                    worker.suspend()
                else:
                    worker.kill()
            wait_until(lambda: all(each.look_after() for each in workers))
            wait_until(lambda: completed(scheduler) == total, DEADLINE_S)
        finally:
            for worker in workers:
                worker.stop()
        rows = [row for user in users for row in read(scheduler, user)]
        figures |= {
            "messages": total,
            "lanes": lanes,
            "workers": size.workers,
            "mishaps": mishaps,
            "server_kills": len(server_dies),
            "losses": sum(row.losses for row in rows),
        }
        assert len(rows) == total
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
        expected = [str(n) for n in range(users.index(user), total, lanes)]
        assert contents == expected, f"{user}: {len(contents)} memories, in another order or not each once"


def read(scheduler, user: str):
    query = StatusQuery(user_id=user, limit=100_000)
    return scheduler.run(scheduler.runtime.backend.views.read(query)).rows


def completed(scheduler: Scheduler) -> int:
    return sum(state.completed_ever for state in scheduler.control.labels())


def wait_for_progress(scheduler: Scheduler, wanted: int, until: float, workers: list[Worker]) -> None:
    """Let the workers do so much before the next mishap, or all there is, or what they can until then."""
    before = completed(scheduler)
    while completed(scheduler) - before < wanted and time.monotonic() < until and has_work(scheduler):
        for worker in workers:
            worker.look_after()


def has_work(scheduler: Scheduler) -> bool:
    return any(state.waiting + state.in_progress for state in scheduler.control.labels())


def submit_while_the_server_dies(scheduler: Scheduler, wave: list[Message], server: Valkey) -> None:
    """Kill it while it takes messages, and bring it back; what it has not confirmed is submitted again."""
    killing = threading.Thread(target=server.kill)
    killing.start()
    with suppress(BackendUnavailableError):
        for message in wave:
            scheduler.submit_messages([message])
    killing.join()
    server.start()
    answers = scheduler.submit_messages(wave)
    assert {answer.status for answer in answers} <= {"accepted", "duplicate"}


def remembered(place: Place) -> dict[str, list[str]]:
    """What each user remembers, in the order in which it was written."""
    path = place.memory_url.removeprefix("sqlite:///")
    rows = apsw.Connection(path).execute("SELECT user_id, text FROM memory_items ORDER BY seq").fetchall()
    found: dict[str, list[str]] = {}
    for user, text in rows:
        found.setdefault(user, []).append(text.removeprefix("note "))
    return found
