"""Instances are killed at random while activity, periods and cron expressions fall due: each once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.triggers.plan import SYSTEM_USER
from support.living import wait_until
from support.places import PATHS, PLACES, SHARED, Place
from support.scale import SEED, evidence, scaled

if TYPE_CHECKING:
    from reverie import Scheduler

DEADLINE_S = 600
INSTANCES, USERS, KILLS = 8, 2000, 100
PERIODS = {f"period-{n}": 1.0 for n in range(5)}
CRONS = {f"cron-{n}": "*/2 * * * * *" for n in range(5)}
EVERY_MS = {
    **{name: round(1000 * seconds) for name, seconds in PERIODS.items()},
    **dict.fromkeys(CRONS, 2000),
}
ACTIVITY = "activity"
TASKS = {
    ACTIVITY: {"enabled": True, "interval": 2},
    **{
        name: {"enabled": True, "trigger_mode": "periodic", "interval": seconds, "misfire": "run_all"}
        for name, seconds in PERIODS.items()
    },
    **{
        name: {"enabled": True, "trigger_mode": "cron", "cron": expression, "misfire": "run_all"}
        for name, expression in CRONS.items()
    },
}


def start(place: Place) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("instance.py")],
        env=place.environment | PATHS,
        cwd=place.folder,
    )


@pytest.mark.scaled
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("kind", SHARED)
def test_every_due_time_has_one_effect(kind: str, tmp_path: Path) -> None:
    instances, users, kills = max(2, scaled(INSTANCES)), scaled(USERS), scaled(KILLS)
    chance = random.Random(SEED)
    with PLACES[kind](tmp_path) as place:
        place.extra |= {
            "REVERIE_SCHEDULER": json.dumps({"tasks": TASKS}),
            "REVERIE_WORKER__LEASE_S": "2",
            "REVERIE_WORKER__RENEW_S": "0.5",
            "REVERIE_QUEUE__MAX_LOSSES": "1000",
        }
        scheduled: Counter[str] = Counter()
        with evidence(f"triggers-{kind}") as figures, place.scheduler() as scheduler:
            scheduler.runtime.triggers.types.replace(
                scheduler.runtime.settings.scheduler.model_validate({"tasks": TASKS})
            )
            processes = [start(place) for _ in range(instances)]
            try:
                for wave in range(kills):
                    some = [f"user-{chance.randrange(users)}" for _ in range(max(1, 4 * users // kills))]
                    answers = scheduler.schedule_user_tasks(ACTIVITY, [(user, None, None) for user in some])
                    scheduled.update(user for user, new in zip(some, answers, strict=True) if new)
                    until = time.monotonic() + chance.uniform(0.2, 1)
                    wait_until(lambda: time.monotonic() > until)  # noqa: B023  the next mishap comes whenever it likes
                    victim = wave % instances if chance.random() < 0.5 else chance.randrange(instances)
                    processes[victim].kill()
                    processes[victim].wait()
                    processes[victim] = start(place)
                wait_until(lambda: all(fired(scheduler).get(name) for name in EVERY_MS), DEADLINE_S)
                for name in EVERY_MS:
                    scheduler.triggers.disable(name)
                wait_until(lambda: is_quiet(scheduler), DEADLINE_S)
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(60)
            fired_of = fired(scheduler)
            figures |= {"instances": instances, "users": users, "kills": kills, "fired": fired_of}
        runs = remembered(place)
    by_user = Counter(user for user, _ in runs if user != SYSTEM_USER)
    assert by_user == scheduled
    assert max(Counter(runs).values()) == 1
    for name, every in EVERY_MS.items():
        dues = sorted(int(item.removeprefix(f"{name}:")) for _, item in runs if item.startswith(f"{name}:"))
        assert len(dues) == fired_of[name]
        assert {later - earlier for earlier, later in pairwise(dues)} <= {every}, name


def fired(scheduler: Scheduler) -> dict[str, int]:
    return {one.task_type: one.fired for one in scheduler.triggers.statistics()}


def is_quiet(scheduler: Scheduler) -> bool:
    tasks = {one.task_type: one for one in scheduler.triggers.statistics()}
    work = any(state.waiting + state.in_progress for state in scheduler.control.labels())
    return not work and not tasks[ACTIVITY].pending and not any(one.running for one in tasks.values())


def remembered(place: Place) -> list[tuple[str, str]]:
    path = place.memory_url.removeprefix("sqlite:///")
    return apsw.Connection(path).execute("SELECT user_id, text FROM memory_items ORDER BY seq").fetchall()
