"""The worker that hooks start: one, whatever happens at once, and nothing of it from the agent's folder."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from reverie.capture.worker_start import ERRORS, LOCK, start_problem
from reverie.version import __version__
from support.hooks import PROGRAM, HookHome
from support.living import is_gone, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTER = """#!/bin/sh
{
    echo "$@"
    pwd
    ls -l /proc/$$/fd
    env
} > "$REVERIE_DATA_DIR/start-$$.new"
mv "$REVERIE_DATA_DIR/start-$$.new" "$REVERIE_DATA_DIR/start-$$"
read line < "$REVERIE_DATA_DIR/gate"
"""
"""Stands for Python: writes down how it was called, and runs until the gate is opened."""


class Starts:
    """What the starters of a home have written down."""

    def __init__(self, home: HookHome) -> None:
        self.home = home
        home.data.mkdir(mode=0o700)
        os.mkfifo(home.data / "gate")
        python = home.folder / "python"
        python.write_text(STARTER)
        python.chmod(0o700)
        home.settings(python=str(python))

    def seen(self, count: int) -> list[str]:
        """The texts of this many starters, in order, once all are there."""
        wait_until(lambda: len(self._paths()) >= count)
        paths = self._paths()
        assert len(paths) == count
        return [path.read_text() for path in paths]

    def _paths(self) -> list[Path]:
        paths = [path for path in self.home.data.glob("start-*") if path.suffix != ".new"]
        return sorted(paths, key=lambda path: path.stat().st_mtime_ns)

    def let_go(self) -> None:
        """Let the starter that runs end, and wait until its lock is free."""
        (self.home.data / "gate").write_text("\n")
        lock = os.open(self.home.data / LOCK, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)


@pytest.fixture
def home(tmp_path: Path) -> HookHome:
    return HookHome(tmp_path)


@pytest.fixture
def starts(home: HookHome) -> Iterator[Starts]:
    starts = Starts(home)
    yield starts
    gate = os.open(home.data / "gate", os.O_RDWR)  # opens even if nobody reads
    os.write(gate, b"\n" * 100)
    lock = os.open(home.data / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)
    os.close(gate)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A process that holds this lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def state(home: HookHome, **fields: object) -> None:
    (home.data / "worker.json").write_text(json.dumps(fields))


def grow_old(home: HookHome, seconds: float = 60) -> None:
    """Let the last start be that long ago."""
    moment = (home.data / LOCK).stat().st_mtime - seconds
    os.utime(home.data / LOCK, (moment, moment))


def test_thirty_hooks_at_once_start_one_worker(home: HookHome, starts: Starts) -> None:
    ready = threading.Barrier(30)
    codes = []

    def hook() -> None:
        ready.wait()
        process = home.start("SessionStart")
        process.communicate(timeout=100)
        codes.append(process.returncode)

    threads = [threading.Thread(target=hook) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 30
    assert len(home.records()) == 30
    starts.seen(1)


def test_the_starter_takes_nothing_from_the_agent(home: HookHome, starts: Starts) -> None:
    reading, writing = os.pipe()  # the agent would wait for its end if the worker inherited it
    try:
        command = [sys.executable, "-c", PROGRAM, "codex", "Stop"]
        process = subprocess.run(
            command,
            input=json.dumps(home.input("Stop")).encode(),
            capture_output=True,
            pass_fds=[writing],
            cwd=home.project,
            env=home.environment
            | {
                "PYTHONPATH": str(home.project),
                "PYTHONSTARTUP": "x",
                "REVERIE_APP": "evil:app",
                "REVERIE_SERVICES": '["evil:service"]',
                "REVERIE_GOVERNANCE": "evil:rules",
                "REVERIE_MEMORY__STORE": "evil:store",
                "REVERIE_MEMORY__EMBEDDING": "none",
                "REVERIE_LABELS": '{"add": {"place": "evil:place"}}',
                "REVERIE_QUEUE__URL": "redis://cache",
            },
            check=False,
        )
        assert (process.returncode, process.stderr) == (0, b"")
        (text,) = starts.seen(1)
    finally:
        os.close(reading)
        os.close(writing)
    first, folder, *rest = text.splitlines()
    assert first == "-P -m reverie worker start"
    assert folder == str(home.data)
    opened = {line.rpartition("-> ")[2] for line in rest if "-> " in line}
    assert {path for path in opened if str(home.data) not in path} == {
        "/dev/null",
        str(home.folder / "python"),
    }
    assert str(home.data / LOCK) in opened
    variables = dict(line.split("=", 1) for line in rest if "=" in line and "->" not in line)
    assert variables["REVERIE_DATA_DIR"] == str(home.data)
    assert variables["REVERIE_QUEUE__URL"] == "redis://cache"
    assert variables["REVERIE_MEMORY__EMBEDDING"] == "none"
    assert not [name for name, value in variables.items() if name.startswith("PYTHON") or "evil" in value]


def test_a_worker_that_runs_is_left_alone(home: HookHome, starts: Starts) -> None:
    with held(home.data / "worker.lock"):
        home.run("Stop")
        state(home, version=__version__, ready_at=1)
        home.run("Stop")
        state(home, version="0.0.0", ready_at=None)  # it starts just now
        home.run("Stop")
    starts.seen(0)


def test_a_worker_of_another_version_is_restarted(home: HookHome, starts: Starts) -> None:
    with held(home.data / "worker.lock"):
        state(home, version="0.0.0", ready_at=1)
        home.run("Stop")
        home.run("Stop")
        (text,) = starts.seen(1)
        assert text.startswith("-P -m reverie worker restart\n")
        starts.let_go()
        home.run("Stop")
        starts.seen(1)
        grow_old(home)
        home.run("Stop")
        starts.seen(2)


def test_a_worker_that_does_not_come_up_is_not_started_all_the_time(home: HookHome, starts: Starts) -> None:
    home.run("Stop")
    starts.seen(1)
    starts.let_go()
    home.run("Stop")
    starts.seen(1)
    grow_old(home)
    home.run("Stop")
    starts.seen(2)
    starts.let_go()
    state(home, version=__version__, ready_at=1)  # it came up, and was killed
    home.run("Stop")
    starts.seen(3)


def test_it_can_be_switched_off(home: HookHome, starts: Starts) -> None:
    home.settings(start_worker=False, python=str(home.folder / "python"))
    home.run("Stop")
    starts.seen(0)


@pytest.mark.parametrize("python", ["/no/such/python", "/etc/passwd"])
def test_a_python_that_cannot_be_started(home: HookHome, python: str) -> None:
    home.settings(python=python)
    home.run("Stop")
    assert len(home.records()) == 1
    assert "the worker could not be started" in home.log()


def test_the_next_session_is_told_why_the_worker_does_not_start(home: HookHome, tmp_path: Path) -> None:
    bad = tmp_path / "config" / "reverie" / "reverie.yaml"
    home.settings()
    bad.write_text("capture: {hook_max_bytes: -1}")
    home.run("Stop")
    wait_until(lambda: start_problem(str(home.data)) != [])
    told = json.loads(home.run("SessionStart"))["systemMessage"]
    assert "the worker does not start" in told
    assert "capture.hook_max_bytes = -1" in told
    assert home.run("Stop") == b""
    old = time.time() - 2 * 24 * 3600
    os.utime(home.data / ERRORS, (old, old))
    assert home.run("SessionStart") == b""


def test_a_process_limit(home: HookHome) -> None:
    program = f"""
import errno, os
def full(*_, **__): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.posix_spawn = full
{PROGRAM}
"""
    home.settings()
    home.run("Stop", program=program)
    assert len(home.records()) == 1
    assert "the worker could not be started" in home.log()


def test_a_real_worker_in_a_hostile_folder(home: HookHome) -> None:
    """Neither settings nor modules of the agent's folder reach the worker."""
    (home.project / "reverie.yaml").write_text("nonsense: true\napp: evil:app\n")
    for name in ("json", "reverie", "sitecustomize", "typing"):
        (home.project / f"{name}.py").write_text(
            f"open({str(home.folder / 'evil')!r}, 'w')\nraise SystemExit(3)\n"
        )
    home.settings()
    environment = home.environment | {"REVERIE_DATA_DIR": str(home.data)}
    command = [sys.executable, "-P", "-m", "reverie", "worker"]

    def status() -> subprocess.CompletedProcess[bytes]:
        shown = [*command, "status", "--json"]
        return subprocess.run(shown, env=environment, capture_output=True, cwd=home.folder, check=False)

    home.run("Stop", program=f"import sys; sys.path.remove(''); {PROGRAM}")
    try:
        worker = home.data / "worker.json"
        wait_until(lambda: worker.exists() and json.loads(worker.read_bytes())["ready_at"], 60)
        seen = json.loads(worker.read_bytes())
        assert (seen["folder"], seen["options"], seen["environment"]) == (str(home.data), {}, {})
        assert json.loads(status().stdout)["status"] == "running"
        wait_until(lambda: home.records() == [], 30)
    finally:
        stop = subprocess.run([*command, "stop", "--now"], env=environment, capture_output=True, check=False)
    assert stop.returncode == 0
    assert is_gone(seen["pid"])
    assert not (home.folder / "evil").exists()
