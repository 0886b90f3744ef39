"""A newer Reverie migrates the queue while processes of this one run: they stop writing, nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reverie
from reverie import Message
from reverie.backends.redis.keys import DEFAULT_PREFIX
from reverie.backends.redis.library import VERSION
from reverie.errors import BackendUnavailableError
from reverie.storage.queries import load_migrations
from support.forked import REVERIE
from support.gate import gate
from support.living import wait_until
from support.places import PATHS, SHARED, Place

LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.2", "REVERIE_SPOOL__LOOK_S": "0.05"}
NEWER = VERSION + 1
SCHEMA = len(load_migrations("reverie.backends.sqlite"))
OPEN = "from reverie import Scheduler\nwith Scheduler().used() as scheduler:\n    scheduler.status('ann')"
COMPLETE = """
from app import scheduler
from support.living import wait_until
with scheduler:
    for item_id in {item_ids}:
        # It may still be in the spool.
        wait_until(lambda: item_id in [item.item_id for item in scheduler.status("ann")])
        item = scheduler.wait(item_id, user_id="ann", timeout=60)
        assert item.status == "completed", item
"""


class Newer:
    """A copy of the package that writes the next version of the keys and of the queue's tables."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place, self._folder = place, folder
        copy = folder / "reverie"
        shutil.copytree(Path(reverie.__file__).parent, copy)
        library = copy / "backends" / "redis" / "library.py"
        library.write_text(library.read_text().replace(f"VERSION = {VERSION}\n", f"VERSION = {NEWER}\n"))
        script = copy / "backends" / "sqlite" / "migrations" / f"{SCHEMA + 1:04}_newer.sql"
        script.write_text("CREATE TABLE newer (one TEXT);\n")
        paths = os.pathsep.join([str(folder), PATHS["PYTHONPATH"]])
        self.environment = place.environment | {"PYTHONPATH": paths}

    def migrate(self) -> None:
        """Open the queue as the newer version does. Its keys on Redis are migrated by hand."""
        if self._place.redis is not None:
            with self._place.redis.client() as client:
                client.set(f"{DEFAULT_PREFIX}:version", NEWER)
        done = subprocess.run(
            [sys.executable, "-c", OPEN],
            env=self.environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    def worker(self, *item_ids: str) -> subprocess.Popen[str]:
        """Start a worker of the newer version, which ends when these are completed."""
        script = COMPLETE.format(item_ids=item_ids)
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env=self.environment,
            cwd=self._folder,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def newer(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Newer:
    place.extra |= LEASE
    return Newer(place, tmp_path_factory.mktemp("newer"))


def told(place: Place) -> str:
    versions = {
        "redis": f"to version {NEWER} while this process writes version {VERSION}",
        "sqlite": f"to version {SCHEMA + 1} while this process knows up to {SCHEMA}",
    }
    return f"{versions[place.kind]}: this process writes nothing more"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_an_upgrade_while_an_old_process_runs(place: Place, newer: Newer) -> None:
    with gate() as door:
        place.extra["TEST_GATE"] = newer.environment["TEST_GATE"] = door.path
        log = place.folder / "worker.log"
        with place.scheduler() as old, log.open("wb") as lines:
            worker = subprocess.Popen(
                [REVERIE, "worker", "--app", "app:scheduler"],
                env=place.environment | PATHS,
                cwd=place.folder,
                stderr=lines,
            )
            try:
                old.submit("gated", user_id="ann", item_id="running")
                assert door.arrival() == worker.pid
                newer.migrate()
                for _ in range(2):  # the first one finds out, the second one knows
                    with pytest.raises(BackendUnavailableError, match=told(place)):
                        old.submit("note", user_id="ann", item_id="refused")
                    with pytest.raises(BackendUnavailableError, match=told(place)):
                        old.submit_messages([Message(user_id="ann", label="note", item_id="refused")])
                assert old.capture("note", user_id="ann", item_id="spooled").status == "spooled"
                door.open()  # the old worker has an answer, and may not write it
                wait_until(lambda: told(place) in log.read_text())
            finally:
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0, log.read_text()
        again = newer.worker("running", "spooled")
        assert door.arrival() == again.pid
        door.open()
        _, problems = again.communicate(timeout=120)
        assert again.returncode == 0, problems


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_server_that_was_overtaken_says_so(place: Place, newer: Newer) -> None:
    with place.server() as server:
        body = {"messages": [{"user_id": "ann", "label": "add", "item_id": "1", "content": "tea"}]}
        assert server.client.post("/product/scheduler/submit", json=body).status_code == 200
        assert server.client.get("/ready").status_code == 200
        newer.migrate()
        answer = server.client.get("/ready")
        assert answer.status_code == 503
        why = {one["name"]: one["why"] for one in answer.json()["dependencies"] if not one["ok"]}
        assert told(place) in why["queue"]
        refused = server.client.post("/product/scheduler/submit", json=body)
        assert refused.status_code == 503
        assert told(place) in refused.json()["message"]
    doctor = place.command("doctor")
    assert doctor.returncode == 2
    assert f"version {NEWER if place.kind == 'redis' else SCHEMA + 1}" in doctor.stdout
