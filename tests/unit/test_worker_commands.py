"""The worker in the background: started, stopped, killed, restarted, and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie.backends.moves import Status
from reverie.cli.daemon import control
from reverie.cli.daemon.launch import Launch
from reverie.cli.daemon.log import rotate, rotated, show
from reverie.cli.daemon.processes import send_signal, start_of
from reverie.cli.daemon.state import Daemon
from reverie.errors import DaemonError
from support.forked import REVERIE
from support.living import is_gone, wait_until, wait_until_gone
from support.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
APP = """
import os
import pathlib
import threading

from reverie import Scheduler

scheduler = Scheduler()

@scheduler.handler("quick")
def quick(message):
    print("handled by", os.getpid())

@scheduler.handler("hold")
def hold(message):
    folder = pathlib.Path(message.content)
    (folder / "held").write_text("")
    (folder / "release").read_text()

@scheduler.handler("stuck", timeout=0.05, max_attempts=1)
def stuck(message):
    threading.Event().wait()
"""
OTHER = APP.replace('"quick"', '"other"')


@contextmanager
def tidy(place: Place) -> Iterator[Daemon]:
    """Handlers in the working folder; whatever runs in the background at the end is ended.

    Who opens one end of `held` or `release` waits for who opens the other.
    """
    for name in ("held", "release"):
        os.mkfifo(place.folder / name)
    (place.folder / "app.py").write_text(APP)
    (place.folder / "other.py").write_text(OTHER)
    daemon = Daemon(place.folder)
    try:
        yield daemon
    finally:
        ended = place.command("worker", "stop", "--now")
        assert ended.returncode == 0, ended.stderr


def answer(place: Place, *arguments: str, **environment: str) -> dict[str, object]:
    shown = place.command("worker", *arguments, "--json", **environment)
    told = json.loads(shown.stdout)
    not_running = arguments[0] == "status" and told["status"] == "not_running"
    assert shown.returncode == (3 if not_running else 0), shown.stderr
    return told


def start(place: Place, *arguments: str, **environment: str) -> int:
    told = answer(place, "start", "--app", "app:scheduler", *arguments, **environment)
    assert told["status"] == "started"
    return int(told["pid"])


def complete(place: Place, label: str) -> None:
    with place.scheduler() as scheduler:
        receipt = scheduler.submit(label, user_id="ann")
        assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED


@SQLITE
def test_a_life(place: Place) -> None:
    with tidy(place) as daemon:
        assert "no worker is running" in place.command("worker", "status").stdout
        pid = start(place)
        assert daemon.running().pid == pid
        assert os.getsid(pid) == pid
        complete(place, "quick")
        for command in ("start", "status"):
            told = answer(place, command)
            assert (told["pid"], told["log"]) == (pid, str(daemon.log))
            assert told["status"] == {"start": "already_running", "status": "running"}[command]
        shown = place.command("worker", "logs").stdout
        assert "worker.started" in shown
        assert f"handled by {pid}" in shown
        assert place.command("worker", "logs", "-n", "1").stdout == shown.splitlines()[-1] + "\n"
        assert answer(place, "stop") | {"started_at": 0} == {
            "status": "stopped",
            "pid": pid,
            "log": str(daemon.log),
            "version": told["version"],
            "started_at": 0,
            "queue": place.queue_url,
        }
        assert is_gone(pid)
        assert not daemon.is_locked
        assert not daemon.state_file.exists()
        assert "worker.stopped" in place.command("worker", "logs").stdout
        assert answer(place, "stop")["status"] == "not_running"
        assert {path.stat().st_mode & 0o777 for path in (daemon.log, daemon.lock_file)} == {0o600}


@SQLITE
def test_one_that_cannot_start_says_why(place: Place) -> None:
    (place.folder / "not.db").write_text("this is not a database, it is a text that is long enough" * 100)
    with tidy(place) as daemon:
        for options, words in {
            ("--app", "nowhere:app"): "there is no module 'nowhere'",
            ("--url", f"sqlite:///{place.folder}/not.db"): "file is not a database",
            ("--url", f"sqlite:///{place.folder}/not.db", "--processes", "2"): "file is not a database",
            ("--url", "memory://"): "lives in one process",
            ("--app", "app:scheduler", "--url", "memory://"): "leave one out",
        }.items():
            shown = place.command("worker", "start", *options)
            assert (shown.returncode, shown.stdout) == (1, ""), options
            assert words in shown.stderr
            assert len(shown.stderr.splitlines()) == 1
            assert not daemon.is_locked
            assert not daemon.state_file.exists()


@SQLITE
def test_an_app_that_crashes_shows_its_trace(place: Place) -> None:
    with tidy(place) as daemon:
        (place.folder / "bad.py").write_text(
            "import sys\nsys.stderr.write('my last words\\n')\nraise SystemExit(3)"
        )
        shown = place.command("worker", "start", "--app", "bad:scheduler")
        assert shown.returncode == 1
        assert "the worker did not start: my last words" in shown.stderr
        assert not daemon.is_locked


@SQLITE
def test_a_folder_that_cannot_be_written(place: Place) -> None:
    (place.folder / "file").write_text("")
    shown = place.command("worker", "start", REVERIE_DATA_DIR=str(place.folder / "file"))
    assert shown.returncode == 1
    assert "error: cannot write in the data folder" in shown.stderr
    shown = place.command("worker", "logs")
    assert (shown.returncode, "no worker was ever started" in shown.stderr) == (1, True)


@SQLITE
def test_one_that_was_killed_leaves_no_lock(place: Place) -> None:
    with tidy(place) as daemon:
        killed = start(place)
        os.kill(killed, signal.SIGKILL)
        wait_until_gone([killed])
        assert daemon.state().pid == killed
        assert daemon.running() is None
        assert answer(place, "status")["status"] == "not_running"
        told = answer(place, "restart")
        assert told["status"] == "started"
        assert daemon.running().options == {"--app": "app:scheduler"}
        complete(place, "quick")


@SQLITE
def test_two_starts_at_once_start_one(place: Place) -> None:
    with tidy(place) as daemon:
        command = [REVERIE, "worker", "start", "--app", "app:scheduler", "--json"]
        starts = [
            subprocess.Popen(command, env=place.environment, cwd=place.folder, stdout=subprocess.PIPE)
            for _ in range(3)
        ]
        told = [json.loads(process.communicate(timeout=60)[0]) for process in starts]
        assert sorted(one["status"] for one in told) == ["already_running", "already_running", "started"]
        assert {one["pid"] for one in told} == {daemon.running().pid}


@SQLITE
def test_a_restart_keeps_its_options_but_for_new_ones(place: Place) -> None:
    with tidy(place) as daemon:
        before = start(place)
        elsewhere = place.folder / "elsewhere"
        elsewhere.mkdir()
        again = subprocess.run(
            [REVERIE, "worker", "restart", "--processes", "2"],
            env=place.environment,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (again.returncode, again.stderr) == (0, "with the options of last time: --app app:scheduler\n")
        assert is_gone(before)
        assert daemon.running().options == {"--app": "app:scheduler", "--processes": "2"}
        with place.scheduler() as scheduler:
            assert scheduler.observe.health().workers == 2, "ready means that all of them take work"
        complete(place, "quick")
        answer(place, "restart", "--app", "other:scheduler", "--processes", "1")
        assert daemon.running().options == {"--app": "other:scheduler", "--processes": "1"}
        complete(place, "other")


@SQLITE
def test_a_restart_that_could_not_start_leaves_the_old_one_running(place: Place) -> None:
    with tidy(place) as daemon:
        pid = start(place)
        for options, words in {
            ("--app", "nowhere:scheduler"): "there is no module 'nowhere'",
            ("--url", "memory://"): "lives in one process",
        }.items():
            shown = place.command("worker", "restart", *options)
            assert (shown.returncode, shown.stdout) == (1, "")
            assert words in shown.stderr
            assert f"the one that runs (process {pid}) goes on" in shown.stderr
        (place.folder / "app.py").write_text("this is no Python")
        assert place.command("worker", "restart").returncode == 1
        assert daemon.running().pid == pid
        (place.folder / "app.py").write_text(APP)
        assert answer(place, "restart")["status"] == "started"
        assert daemon.running().options == {"--app": "app:scheduler"}


@SQLITE
def test_the_options_of_last_time(place: Place) -> None:
    with tidy(place) as daemon:
        start(place, "--processes", "2")
        for command in ("start", "restart"):
            place.command("worker", "stop")
            shown = place.command("worker", command)
            words = "with the options of last time: --app app:scheduler --processes 2"
            assert (shown.returncode, words in shown.stderr) == (0, True), shown.stderr
            assert daemon.running().options == {"--app": "app:scheduler", "--processes": "2"}
        place.command("worker", "stop")
        shown = place.command("worker", "start", "--fresh")
        assert (shown.returncode, shown.stderr, daemon.running().options) == (0, "", {})
        assert {daemon.launch_file.stat().st_mode & 0o777} == {0o600}


@SQLITE
def test_an_app_that_the_environment_named_is_kept(place: Place) -> None:
    with tidy(place):
        answer(place, "start", REVERIE_APP="app:scheduler")
        place.command("worker", "stop")
        shown = place.command("worker", "start")
        assert "with the options of last time: REVERIE_APP=app:scheduler" in shown.stderr
        complete(place, "quick")
        answer(place, "restart", REVERIE_APP="other:scheduler")
        complete(place, "other")


@SQLITE
def test_options_that_one_that_runs_does_not_have(place: Place) -> None:
    with tidy(place) as daemon:
        pid = start(place)
        assert place.command("worker", "start", "--app", "app:scheduler").returncode == 0
        shown = place.command("worker", "start", "--app", "other:scheduler")
        assert shown.returncode == 1
        assert "yours are ignored" in shown.stderr
        assert "reverie worker restart --app other:scheduler" in shown.stderr
        shown = place.command("worker", "start", REVERIE_APP="other:scheduler")
        assert (shown.returncode, "reverie worker restart\n" in shown.stderr) == (1, True)
        assert daemon.running().pid == pid


@SQLITE
def test_bad_settings_do_not_keep_a_worker_from_being_stopped(place: Place) -> None:
    with tidy(place):
        pid = start(place)
        (place.folder / "reverie.yaml").write_text("worker: {grace_s: long}")
        for command in ("start", "restart"):
            assert place.command("worker", command).returncode == 1
        shown = place.command("worker", "status")
        assert (shown.returncode, str(pid) in shown.stdout) == (0, True)
        assert "the settings are bad" in shown.stderr
        shown = place.command("worker", "stop")
        assert (shown.returncode, "has stopped" in shown.stdout) == (0, True)
        assert is_gone(pid)


@SQLITE
def test_a_stop_waits_for_handlers(place: Place) -> None:
    with tidy(place), place.scheduler() as scheduler:
        start(place)
        receipt = scheduler.submit("hold", user_id="ann", content=str(place.folder))
        (place.folder / "held").read_text()
        stop = subprocess.Popen(
            [REVERIE, "worker", "stop"], env=place.environment, cwd=place.folder, stdout=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            stop.wait(1)
        (place.folder / "release").write_text("")
        assert b"has stopped" in stop.communicate(timeout=60)[0]
        assert stop.returncode == 0
        assert scheduler.status("ann", receipt.item_id)[0].status is Status.COMPLETED


@SQLITE
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_stop_that_does_not_wait(place: Place, processes: str) -> None:
    with tidy(place) as daemon, place.scheduler() as scheduler:
        pid = start(place, "--processes", processes)
        scheduler.submit("hold", user_id="ann", content=str(place.folder))
        (place.folder / "held").read_text()
        assert answer(place, "stop", "--now")["pid"] == pid
        assert is_gone(pid)
        assert (daemon.is_locked, daemon.state_file.exists()) == (False, False)


@SQLITE
def test_a_stop_that_takes_too_long(place: Place) -> None:
    said: list[str] = []
    with tidy(place) as daemon, place.scheduler() as scheduler:
        pid = start(place)
        scheduler.submit("hold", user_id="ann", content=str(place.folder))
        (place.folder / "held").read_text()
        with pytest.raises(DaemonError, match=f"process {pid}.* did not stop in 0.2 s.*stop --now"):
            control.stop(daemon, grace_s=0.2, now=False, say=said.append)
        assert daemon.running().pid == pid
        (place.folder / "release").write_text("")
        assert control.stop(daemon, grace_s=30, now=False, say=said.append).pid == pid
        assert control.stop(daemon, grace_s=30, now=False, say=said.append) is None


@SQLITE
def test_a_start_that_takes_too_long_leaves_nothing(place: Place) -> None:
    with tidy(place) as daemon:
        (place.folder / "slow.py").write_text(
            "import threading\nprint('I wait', flush=True)\nthreading.Event().wait()"
        )
        with pytest.raises(DaemonError, match="was not ready after 3 s and was ended"):
            control.start(
                daemon, Launch(options={"--app": "slow:scheduler"}, folder=str(place.folder)), patience_s=3
            )
        assert not daemon.is_locked
        assert answer(place, "status")["status"] == "not_running"


def test_a_lock_that_someone_else_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FORGOTTEN_S", 0.1)
    daemon = Daemon(tmp_path)
    held = daemon.lock()
    assert held is not None
    try:
        with pytest.raises(DaemonError, match=r"does not say who it is.*fuser"):
            control.start(daemon, Launch(folder=str(tmp_path)), patience_s=0.1)
        with pytest.raises(DaemonError, match=r"does not say who it is.*fuser"):
            control.stop(daemon, grace_s=1, now=True, say=print)
    finally:
        os.close(held)
    assert control.stop(daemon, grace_s=1, now=True, say=print) is None


@SQLITE
def test_one_whose_handlers_hang_begins_anew_and_keeps_the_lock(place: Place) -> None:
    with tidy(place) as daemon, place.scheduler() as scheduler:
        pid = start(place, REVERIE_WORKER__MAX_ABANDONED="0")
        scheduler.submit("stuck", user_id="ann")
        wait_until(lambda: daemon.log.read_text().count("worker.started") == 2)
        assert "worker.restarting" in daemon.log.read_text()
        wait_until(lambda: daemon.running() is not None and daemon.running().ready_at is not None)
        assert daemon.running().pid == pid
        assert daemon.lock() is None


@SQLITE
def test_a_worker_in_the_foreground_says_that_there_is_another(place: Place) -> None:
    with tidy(place):
        pid = start(place)
        shown = place.command("worker", "run", "--app", "app:scheduler", "--drain")
        assert shown.returncode == 0
        assert f"runs in the background, too (process {pid})" in shown.stderr
        place.command("worker", "stop")
        shown = place.command("worker", "--drain")
        assert (shown.returncode, "in the background" in shown.stderr) == (0, False)


@SQLITE
def test_options_before_the_command_are_refused(place: Place) -> None:
    shown = place.command("worker", "--app", "app:scheduler", "start")
    assert shown.returncode == 2
    assert "behind the command" in shown.stderr


def test_a_stranger_gets_no_signal(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        start = start_of(stranger.pid)
        assert start is not None
        assert not send_signal(stranger.pid, start + "0", signal.SIGKILL)
        assert stranger.poll() is None
        assert send_signal(stranger.pid, start, signal.SIGKILL)
        assert stranger.wait(30) == -signal.SIGKILL
        assert start_of(stranger.pid) is None
        assert not send_signal(stranger.pid, start, signal.SIGKILL)


@SQLITE
def test_a_file_about_a_stranger_means_nothing(place: Place) -> None:
    """Its number was given to another process after a crash."""
    with tidy(place) as daemon:
        start(place)
        state = json.loads(daemon.state_file.read_bytes())
        place.command("worker", "stop")
        state |= {"pid": os.getpid(), "process_start": start_of(os.getpid())}
        daemon.state_file.write_text(json.dumps(state))
        assert answer(place, "stop")["status"] == "not_running"
        daemon.state_file.write_text("{")
        assert answer(place, "status")["status"] == "not_running"
        start(place)


def test_a_log_is_set_aside_when_it_is_too_large(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("a") as writer:
        for number in range(4):
            writer.write(f"{number}a\n{number}b\n")
            writer.flush()
            assert rotate(log, 100, 2) is False
            assert rotate(log, 5, 2) is True
            assert log.read_text() == ""
        writer.write("last\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker.log", "worker.log.1", "worker.log.2"]
    assert rotated(log, 1).read_text() == "3a\n3b\n"
    assert list(show(log, 4)) == ["2b\n3a\n3b\nlast\n"]
    assert list(show(log, 100)) == ["2a\n2b\n3a\n3b\nlast\n"]
    assert list(show(log, 1)) == ["last\n"]
    assert list(show(log, 0)) == [""]
    assert rotate(log, 1, 0) is True
    assert log.read_text() == ""


@SQLITE
def test_following_a_log_that_is_set_aside(place: Place) -> None:
    log = Daemon(place.folder).log
    log.parent.mkdir()
    log.write_text("before\n" * 3)
    command = [REVERIE, "worker", "logs", "-n", "1", "--follow"]
    shown = subprocess.Popen(
        command, env=place.environment, cwd=place.folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert shown.stdout.readline() == "before\n"
        with log.open("a") as writer:
            writer.write("one\n")
            writer.flush()
            assert shown.stdout.readline() == "one\n"
            assert rotate(log, 5, 1)
            writer.write("two\n")
            writer.flush()
            assert shown.stdout.readline() == "two\n"
        shown.send_signal(signal.SIGINT)
        assert shown.wait(30) == 0
    finally:
        shown.kill()
        shown.communicate()


@SQLITE
def test_the_log_of_a_worker_stays_small(place: Place) -> None:
    with tidy(place) as daemon:
        start(place, REVERIE_WORKER__LOG_MAX_BYTES="10", REVERIE_WORKER__LOG_FILES="1")
        wait_until(rotated(daemon.log, 1).exists)
        complete(place, "quick")
        wait_until(lambda: "handled by" in "".join(show(daemon.log, 10)))
        assert not rotated(daemon.log, 2).exists()
