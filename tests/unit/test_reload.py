"""Settings that are read anew by real processes: the daemon, a worker, a server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from reverie import Scheduler
from reverie.cli.daemon.state import Daemon
from reverie.cli.reload import Reloader
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings
from reverie.testing import ManualClock
from support.commands import answer
from support.living import wait_until
from support.places import REVERIE, Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
APP = """
from reverie import Scheduler

scheduler = Scheduler()

@scheduler.trigger("sweep", mode="periodic")
def sweep(user_id, device_id, agent_id):
    return True
"""


def write(place: Place, version: int = 1, interval: float = 3600, **others: Any) -> None:
    """Settings in the folder that everything is started in."""
    task = {"enabled": True, "trigger_mode": "periodic", "interval": interval}
    section = {"version": version, "tasks": {"sweep": task}} | others.pop("scheduler", {})
    (place.folder / "reverie.yaml").write_text(yaml.safe_dump({"scheduler": section, **others}))


def interval(place: Place) -> float:
    """What is in force."""
    return answer(place, "triggers", "show", "sweep")["settings"]["interval"]


@contextmanager
def daemon(place: Place, *options: str) -> Iterator[Daemon]:
    (place.folder / "app.py").write_text(APP)
    write(place)
    started = place.command("worker", "start", "--app", "app:scheduler", *options)
    assert started.returncode == 0, started.stderr
    try:
        yield Daemon(place.folder)
    finally:
        assert place.command("worker", "stop").returncode == 0


def reload(place: Place) -> tuple[int, dict[str, Any]]:
    shown = place.command("config", "reload", "--json")
    return shown.returncode, json.loads(shown.stdout)


@SQLITE
def test_the_daemon_brings_its_section_into_force(place: Place) -> None:
    with daemon(place) as worker:
        assert interval(place) == 3600
        write(place, version=2, interval=7200, worker={"grace_s": 5}, labels={"export": {"level": 2}})
        code, told = reload(place)
        assert (code, told["status"], told["changed"]) == (0, "reloaded", True)
        assert told["need_restart"] == ["labels.export", "worker.grace_s"]
        assert interval(place) == 7200
        shown = place.command("config", "reload")
        assert "scheduler says the same as before" in shown.stdout
        assert "need a restart (reverie worker restart): labels.export, worker.grace_s" in shown.stderr
        assert worker.running().reloads == 2
        log = worker.log.read_text()
        assert "settings.reloaded section='scheduler' changed=True" in log
        assert "settings.need_restart settings='labels.export, worker.grace_s'" in log


@SQLITE
def test_bad_settings_are_refused_with_their_line_and_the_old_ones_stay(place: Place) -> None:
    file = place.folder / "reverie.yaml"
    bad = {
        "scheduler:\n  version: 2\n  tasks:\n    sweep:\n      interval: -1\n": (
            f"{file.name}:5: scheduler.tasks.sweep.interval = -1: "
        ),
        "scheduler: [\n": f"{file.name}:2: is not YAML",
        "scheduler:\n  user_key_config:\n    use_agent_id: false\n": (
            f"{file.name}:2: scheduler.user_key_config = "
        ),
    }
    with daemon(place) as worker:
        for text, words in bad.items():
            file.write_text(text)
            shown = place.command("config", "reload")
            assert (shown.returncode, shown.stdout) == (1, "")
            assert words in shown.stderr
            assert f"(process {worker.running().pid}) goes on with the settings that it has" in shown.stderr
            assert words in worker.log.read_text()
            assert reload(place)[1]["status"] == "refused"
        write(place)
        assert interval(place) == 3600
        assert reload(place) == (
            0,
            {
                "status": "reloaded",
                "pid": worker.running().pid,
                "problems": [],
                "changed": False,
                "not_in_force": "",
                "need_restart": [],
            },
        )


@SQLITE
def test_it_is_said_what_does_not_come_into_force(place: Place) -> None:
    with daemon(place):
        write(place, version=1, interval=7200)
        shown = place.command("config", "reload")
        assert shown.returncode == 1
        assert "give them scheduler.version = 2" in shown.stderr
        assert interval(place) == 3600
        write(place, version=5, interval=10_000)
        assert reload(place)[0] == 0
        write(place, version=4, interval=20_000)
        code, told = reload(place)
        assert (code, "give them scheduler.version = 6" in told["not_in_force"]) == (1, True)
        assert interval(place) == 10_000


@SQLITE
def test_several_processes_are_all_told(place: Place) -> None:
    with daemon(place, "--processes", "2") as worker:
        write(place, version=2, interval=7200)
        assert reload(place)[1]["changed"] is True
        assert interval(place) == 7200
        wait_until(
            lambda: worker.log.read_text().count("settings.reloaded section='scheduler' changed=True") == 3
        )
        write(place, version=3, interval=-1)
        assert reload(place)[1]["status"] == "refused"
        assert worker.log.read_text().count("settings.refused") == 1


@SQLITE
def test_without_a_daemon_there_is_nobody_to_tell(place: Place) -> None:
    shown = place.command("config", "reload")
    assert shown.returncode == 3
    assert "no worker is running in the background" in shown.stderr
    assert reload(place) == (3, {"status": "not_running"})


@SQLITE
def test_a_daemon_of_another_version_is_left_alone(place: Place) -> None:
    with daemon(place) as worker:
        state = json.loads(worker.state_file.read_text())
        worker.state_file.write_text(json.dumps(state | {"version": "0.0.0"}))
        shown = place.command("config", "reload")
        assert shown.returncode == 1
        assert "`reverie worker restart`" in shown.stderr
        worker.state_file.write_text(json.dumps(state))


@SQLITE
def test_a_server_reads_its_settings_at_a_hangup(place: Place) -> None:
    write(place)
    with place.server() as server:

        def in_force() -> float:
            (one,) = server.client.get("/product/scheduler/triggers").json()["data"]
            return one["settings"]["interval"]

        def heard(words: str) -> None:
            while words not in server.process.stderr.readline():
                assert server.process.poll() is None

        assert in_force() == 3600
        write(place, version=2, interval=7200, server={"max_body_bytes": 5000})
        server.process.send_signal(signal.SIGHUP)
        heard("settings.need_restart settings='server.max_body_bytes'")
        heard("settings.reloaded")
        assert in_force() == 7200
        (place.folder / "reverie.yaml").write_text("scheduler:\n  tasks: 7\n")
        server.process.send_signal(signal.SIGHUP)
        heard("reverie.yaml:2: scheduler.tasks = 7")
        assert in_force() == 7200
    assert server.process.returncode == 0


# -- terminals ---------------------------------------------------------------------------------------


@contextmanager
def at_terminal(place: Place, *, nohup: bool = False) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker in the foreground of a terminal, which takes work."""
    write(place)
    side, other = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

    log = place.folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [REVERIE, "worker"],
            stdin=other,
            stdout=file,
            stderr=file,
            env=place.environment,
            cwd=place.folder,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509  it only makes two calls of the system
        )
    os.close(other)
    try:
        wait_until(lambda: "worker.started" in log.read_text())
        yield process, side
    finally:
        process.kill()
        process.wait(30)


@SQLITE
def test_a_hangup_at_a_terminal_is_for_the_settings_until_it_is_closed(place: Place) -> None:
    log = place.folder / "log"
    with at_terminal(place) as (process, terminal):
        write(place, version=2, interval=7200)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "settings.reloaded" in log.read_text())
        assert interval(place) == 7200
        os.close(terminal)
        assert process.wait(30) == 0
        assert "terminal.closed" in log.read_text()
        assert "worker.stopped" in log.read_text()


@SQLITE
def test_who_was_told_to_ignore_a_closed_terminal_goes_on(place: Place) -> None:
    log = place.folder / "log"
    with at_terminal(place, nohup=True) as (process, terminal):
        os.close(terminal)
        wait_until(lambda: "settings.reloaded" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "terminal.closed" not in log.read_text()


# -- in this process ---------------------------------------------------------------------------------


def test_timed_tasks_can_be_switched_on_and_off(tmp_path: Path, clock: ManualClock, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REVERIE_QUEUE__URL", "memory://")
    file = tmp_path / "reverie.yaml"
    file.write_text("scheduler: {enabled: false}\n")
    scheduler = Scheduler(settings=load_settings(), clock=clock)
    ran: list[str] = []
    scheduler.trigger("digest", interval=10)(lambda user_id, *_: ran.append(user_id))
    with scheduler:
        reloader = Reloader(scheduler.runtime)
        assert not scheduler.schedule_user_task("digest", "ann")
        file.write_text("scheduler: {enabled: true}\n")
        assert scheduler.run(reloader.reload()).changed
        assert scheduler.schedule_user_task("digest", "ann")
        clock.advance(10)
        wait_until(lambda: ran == ["ann"])
        file.write_text("scheduler: {enabled: false}\n")
        assert scheduler.run(reloader.reload()).changed
        assert not scheduler.schedule_user_task("digest", "bob")


def test_a_backend_that_is_away_is_tried_again(tmp_path: Path, clock: ManualClock, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REVERIE_QUEUE__URL", "memory://")
    with Scheduler(settings=load_settings(), clock=clock).used() as scheduler:
        reloader = Reloader(scheduler.runtime)
        (tmp_path / "reverie.yaml").write_text("scheduler: {version: 2}\n")
        store = scheduler.runtime.backend.triggers
        put = store.put

        async def away(*_, **__):
            raise BackendUnavailableError("it is away")

        monkeypatch.setattr(store, "put", away)
        told = scheduler.run(reloader.reload())
        assert (told.changed, told.not_in_force) == (True, "it is away; it will be tried again")
        monkeypatch.setattr(store, "put", put)
        assert {one.version for one in scheduler.triggers.types()} == {2}
