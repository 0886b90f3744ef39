"""Several worker processes under one supervisor: killed, stopped, orphaned, and started by a scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie import Scheduler
from reverie.backends.moves import Status
from reverie.dispatch.supervisor import Supervisor
from reverie.errors import InvalidSettingError
from reverie.settings import Settings, environment_of, load_settings
from support.forked import REVERIE
from support.living import children, is_gone, wait_until, wait_until_gone
from support.places import SHARED, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

BETWEEN_PROCESSES = pytest.mark.parametrize("place", SHARED, indirect=True)
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.3"}
APP = """
import os
import pathlib
import threading

from reverie import Scheduler

scheduler = Scheduler()

@scheduler.handler("hold")
def hold(message):
    \"\"\"The first time, say which process holds it and do not come back.\"\"\"
    held = pathlib.Path(message.content)
    if not held.exists():
        held.with_suffix(".new").write_text(str(os.getpid()))
        held.with_suffix(".new").rename(held)
        threading.Event().wait()

@scheduler.handler("quick")
def quick(message):
    print(os.getpid(), flush=True)

@scheduler.handler("stuck", timeout=0.05, max_attempts=1)
def stuck(message):
    threading.Event().wait()
"""


@contextmanager
def workers(place: Place, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`reverie worker` with our handlers; killed at the end if it still runs."""
    (place.folder / "app.py").write_text(APP)
    process = subprocess.Popen(
        [REVERIE, "worker", "--app", "app:scheduler", *arguments],
        env=place.environment | SHORT_LEASE | environment,
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def holder_of(held: Path) -> int:
    wait_until(held.exists)
    return int(held.read_text())


@BETWEEN_PROCESSES
def test_a_process_that_is_killed_is_started_again_and_its_message_completed(place: Place) -> None:
    with workers(place, "--processes", "2") as supervisor, place.scheduler() as scheduler:
        receipt = scheduler.submit("hold", user_id="ann", content=str(place.folder / "held"))
        killed = holder_of(place.folder / "held")
        before = children(supervisor.pid)
        assert killed in before
        assert len(before) == 2
        os.kill(killed, signal.SIGKILL)  # as the out-of-memory killer does
        item = scheduler.wait(receipt.item_id, user_id="ann")
        assert (item.status, item.attempts, item.losses) == (Status.COMPLETED, 1, 1)
        wait_until(lambda: len(children(supervisor.pid) - {killed}) == 2)
        after = children(supervisor.pid)
        supervisor.terminate()
        _, logs = supervisor.communicate(timeout=30)
        assert supervisor.returncode == 0, logs
        assert f"process.ended pid={killed} how='was killed by SIGKILL' failures=1 again_in_s=1.0" in logs
        assert all(is_gone(pid) for pid in after)


@BETWEEN_PROCESSES
def test_a_stop_ends_all_within_the_grace_time_and_strands_nothing(place: Place) -> None:
    environment = {"REVERIE_WORKER__PROCESSES": "2", "REVERIE_WORKER__GRACE_S": "1"}
    with workers(place, **environment) as supervisor, place.scheduler() as scheduler:
        held = scheduler.submit("hold", user_id="ann", content=str(place.folder / "held"))
        holder_of(place.folder / "held")
        quick = [scheduler.submit("quick", user_id=f"user-{n}") for n in range(50)]
        began = time.monotonic()
        supervisor.terminate()
        _, logs = supervisor.communicate(timeout=30)
        assert supervisor.returncode == 0, logs
        assert time.monotonic() - began < 10
        assert "process.killed" not in logs
        rows = [scheduler.status(f"user-{n}", receipt.item_id)[0] for n, receipt in enumerate(quick)]
        assert {row.status for row in rows} <= {Status.COMPLETED, Status.WAITING}
        item = scheduler.status("ann", held.item_id)[0]
        assert (item.status, item.attempts, item.losses) == (Status.WAITING, 0, 0)


@SQLITE
def test_workers_whose_supervisor_is_killed_stop_cleanly(place: Place) -> None:
    with (
        workers(place, "--processes", "2", REVERIE_WORKER__GRACE_S="0.1") as supervisor,
        place.scheduler() as scheduler,
    ):
        receipt = scheduler.submit("hold", user_id="ann", content=str(place.folder / "held"))
        holder_of(place.folder / "held")
        orphans = children(supervisor.pid)
        supervisor.kill()
        supervisor.wait()
        wait_until_gone(orphans, 10)
        item = scheduler.status("ann", receipt.item_id)[0]
        assert item.losses == 0  # handed back, not lost; the other one may even have run it before it stopped
        assert item.status in {Status.WAITING, Status.COMPLETED}


@SQLITE
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_interrupt_ends_at_once(place: Place, processes: str) -> None:
    with workers(place, "--processes", processes) as worker, place.scheduler() as scheduler:
        scheduler.submit("hold", user_id="ann", content=str(place.folder / "held"))
        holder = holder_of(place.folder / "held")
        began = time.monotonic()
        while worker.poll() is None:
            worker.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                worker.wait(0.1)
        assert time.monotonic() - began < 10  # the grace time is 30 s
        wait_until_gone([holder], 10)


@SQLITE
def test_a_worker_with_too_many_hanging_threads_starts_anew_and_keeps_its_id(place: Place) -> None:
    with workers(place, REVERIE_WORKER__MAX_ABANDONED="1") as worker, place.scheduler() as scheduler:
        for user in ("ann", "bob"):
            scheduler.submit("stuck", user_id=user)
        assert worker.stderr is not None
        logs = ""
        while logs.count("worker.started") < 2:
            line = worker.stderr.readline()
            assert line, logs
            logs += line
        assert "worker.too_many_abandoned abandoned=2 max_abandoned=1" in logs
        assert logs.index("worker.stopped") < logs.index("worker.restarting")
        receipt = scheduler.submit("quick", user_id="ann")
        assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED
        worker.terminate()
        shown, _ = worker.communicate(timeout=30)
        assert worker.returncode == 0
        assert shown.split() == [str(worker.pid)]


@SQLITE
def test_processes_that_cannot_be(place: Place) -> None:
    shown = place.command("worker", "--processes", "2", "--url", "memory://")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)
    assert "worker.processes = 2: memory:// lives in one process" in shown.stderr
    shown = place.command("worker", "--processes", "2", "--app", "nowhere:app")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)


def test_the_command_line_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "reverie", "worker", "--help"], capture_output=True, text=True, check=True
    )
    assert "--processes" in shown.stdout
    assert "--lifeline" not in shown.stdout


@pytest.mark.parametrize(("ran_well_s", "expected"), [(60, [1, 2, 4, 30, 30]), (0, [1, 1, 1, 1, 1])])
async def test_the_pauses_between_restarts(ran_well_s: float, expected: list[float]) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(expected):
            enough.set()
            await asyncio.Event().wait()

    supervisor = Supervisor(["--app", "nowhere:app"], processes=1, sleep=sleep, ran_well_s=ran_well_s)
    await supervisor.start()
    await supervisor.start()
    await asyncio.wait_for(enough.wait(), 60)
    await supervisor.stop(0)
    await supervisor.stop(0)
    assert pauses == expected
    assert supervisor.pids == []


def test_settings_are_read_back_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reverie.yaml").write_text("queue: {max_losses: 7}\nworker: {grace_s: 3}\n")
    monkeypatch.setenv("REVERIE_WORKER__LEASE_S", "90")
    given = load_settings(
        app="app:scheduler",
        queue={"url": "sqlite:///a b.db"},
        worker={"grace_s": 5},
        labels={"x.y": {"cpu": True}},
        scheduler_startup_mode="process",
    )
    environment = environment_of(given)
    assert "REVERIE_WORKER__LEASE_S" not in environment
    for name in [name for name in os.environ if name.startswith("REVERIE_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == given


PROGRAM = """
import sys
from pathlib import Path
from app import scheduler

if __name__ == "__main__":
    with scheduler:
        receipt = scheduler.submit("quick", user_id="ann")
        status = scheduler.wait(receipt.item_id, user_id="ann").status
        receipt = scheduler.memory.add("I moved to Lisbon", user_id="ann")
        scheduler.wait(receipt.item_id, user_id="ann")
        print(status, len(scheduler.memory.search("Lisbon", user_id="ann")), flush=True)
"""
PROCESS_MODE = {"REVERIE_SCHEDULER_STARTUP_MODE": "process", "REVERIE_APP": "app:scheduler"}


@BETWEEN_PROCESSES
def test_a_scheduler_that_runs_its_handlers_in_a_process(place: Place) -> None:
    (place.folder / "app.py").write_text(APP)
    (place.folder / "program.py").write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, "program.py"],
        env=place.environment | PROCESS_MODE,
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shown, logs = program.communicate(timeout=60)
    assert program.returncode == 0, logs
    handler, ended = shown.split("\n", 1)
    assert handler != str(program.pid)
    assert ended.strip() == "completed 1"
    assert is_gone(int(handler))


@SQLITE
def test_a_program_that_is_killed_leaves_no_worker(place: Place) -> None:
    (place.folder / "app.py").write_text(APP)
    program = textwrap.dedent("""
        from app import scheduler
        scheduler.start()
        print("started", flush=True)
        input()
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=place.environment | PROCESS_MODE,
        cwd=place.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    started = children(process.pid)
    assert len(started) == 1
    process.kill()
    process.communicate()
    wait_until_gone(started, 10)


@SQLITE
def test_a_server_that_runs_its_worker_in_a_process(place: Place) -> None:
    with place.server(REVERIE_SCHEDULER_STARTUP_MODE="process") as server, place.scheduler() as scheduler:
        body = {"user_id": "ann", "memory_content": "I moved to Lisbon", "item_id": "1"}
        assert server.client.post("/product/add", json=body).status_code == 200
        assert scheduler.wait("1", user_id="ann").status is Status.COMPLETED
        (worker,) = children(server.process.pid)
        server.process.terminate()
        server.process.communicate(timeout=30)
        assert server.process.returncode == 0
        assert is_gone(worker)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queue": {"url": "memory://"}, "app": "app:scheduler"}, "memory:// lives in one process"),
        ({"queue": {"url": "sqlite:///never.db"}}, "set app to module:attribute"),
    ],
)
def test_a_mode_that_cannot_work_is_refused(settings: dict, words: str, tmp_path: Path) -> None:
    chosen: Settings = load_settings(data_dir=tmp_path, scheduler_startup_mode="process", **settings)
    scheduler = Scheduler(settings=chosen)
    scheduler.handler("work")(lambda message: None)
    before = children()
    with pytest.raises(InvalidSettingError, match=words):
        scheduler.start()
    assert children() == before
    scheduler.close()
