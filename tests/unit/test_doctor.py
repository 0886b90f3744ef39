"""`reverie doctor`, for someone who has done something wrong: it names that, and what it says helps."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from redis import Redis

from reverie.backends.moves import Status
from reverie.cli.daemon.state import Daemon
from reverie.observe.rules import failing_services
from reverie.storage.peers import peers_folder
from reverie.version import __version__
from support.forked import REVERIE
from support.living import wait_until, wait_until_gone
from support.places import Place
from support.small_disk import run_on_small_disk
from support.spooling import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
APP = """
from reverie import Scheduler

scheduler = Scheduler()

@scheduler.handler("work", max_attempts=1)
def work(message):
    raise ValueError("a wrong handler")
"""
RIGHT = APP.replace('raise ValueError("a wrong handler")', "pass")
WITH_ODD = RIGHT + '\n@scheduler.handler("odd")\ndef odd(message):\n    pass\n'


@contextmanager
def used(place: Place, app: str = RIGHT) -> Iterator[None]:
    """Someone's folder, with an app; what runs in the background ends with the block."""
    (place.folder / "app.py").write_text(app)
    place.extra |= {"REVERIE_APP": "app:scheduler", "REVERIE_SERVER__PORT": "0"}
    try:
        yield
    finally:
        ended = place.command("worker", "stop", "--now")
        assert ended.returncode == 0, ended.stderr


def look(place: Place, *arguments: str, **environment: str) -> dict[str, dict[str, Any]]:
    """What is wrong, by check."""
    shown = place.command("doctor", "--json", *arguments, **environment)
    assert shown.stderr == ""
    findings = json.loads(shown.stdout)
    codes = [{"ok": 0, "note": 0, "warning": 1, "error": 2}[finding["level"]] for finding in findings]
    assert shown.returncode == max(codes)
    wrong = {finding["check"]: finding for finding in findings if finding["level"] != "ok"}
    for finding in wrong.values():
        assert finding["level"] == "note" or finding["remedy"] or finding["check"] == "queue", finding
    return wrong


def commands_of(finding: dict[str, Any]) -> list[str]:
    return re.findall(r"`([^`]+)`", finding["remedy"])


def types(place: Place, command: str) -> str:
    """Type a command that a remedy names; it must work."""
    name, *arguments = shlex.split(command)
    if name == "reverie":
        shown = place.command(*arguments)
    else:
        shown = subprocess.run(
            [name, *(REVERIE if word == "reverie" else word for word in arguments)],
            env=place.environment,
            cwd=place.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    assert shown.returncode == 0, f"{command}: {shown.stderr}"
    return shown.stdout


def submit(place: Place, label: str, count: int = 1) -> list[str]:
    with place.scheduler() as scheduler:
        return [scheduler.submit(label, user_id="ann").item_id for _ in range(count)]


def wait(place: Place, items: list[str], status: Status) -> None:
    with place.scheduler() as scheduler:
        for item in items:
            assert scheduler.wait(item, user_id="ann").status is status


@SQLITE
def test_nothing_is_wrong_with_what_was_never_used(place: Place) -> None:
    with used(place):
        place.extra["REVERIE_DATA_DIR"] = str(place.folder / "new")
        assert {name: finding["level"] for name, finding in look(place).items()} == {
            "data_folder": "note",
            "queue": "note",
        }
        assert not (place.folder / "new").exists()
        assert not (place.folder / "reverie.db").exists()
        del place.extra["REVERIE_DATA_DIR"]
        assert place.command("doctor").returncode == 0


@SQLITE
def test_it_speaks_to_people(place: Place) -> None:
    with used(place):
        submit(place, "work")
        shown = place.command("doctor")
        assert shown.returncode == 2
        assert shown.stdout == (
            "error: 1 message waits and no worker is running\n"
            "  → start one: `reverie worker start` (or `reverie serve`)\n\n"
        )
        assert f"ok: Reverie {__version__}" in place.command("doctor", "--verbose").stdout
        types(place, "reverie worker start")
        shown = place.command("doctor")
        assert (shown.returncode, shown.stdout) == (0, "nothing is wrong\n")


@SQLITE
def test_a_wrong_handler(place: Place) -> None:
    with used(place, APP):
        types(place, "reverie worker start")
        items = submit(place, "work", 11)
        wait(place, items, Status.FAILED)
        wrong = look(place)
        assert set(wrong) == {"failed"}
        assert wrong["failed"]["level"] == "error"
        assert "11 messages have failed for good" in wrong["failed"]["what"]
        see, requeue, delete = commands_of(wrong["failed"])
        assert "a wrong handler" in types(place, see)
        (place.folder / "app.py").write_text(RIGHT)
        types(place, "reverie worker restart")
        types(place, requeue)
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}
        types(place, delete)


@SQLITE
def test_a_stopped_worker(place: Place) -> None:
    with used(place):
        items = submit(place, "work", 2)
        wrong = look(place, REVERIE_ALERTS__STALLED_S="0.001", REVERIE_ALERTS__OLDEST_PENDING_S="0.001")
        assert set(wrong) == {"no_worker", "oldest_pending"}
        assert wrong["no_worker"]["level"] == "error"
        types(place, commands_of(wrong["oldest_pending"])[0])
        types(place, commands_of(wrong["no_worker"])[0])
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}


@SQLITE
def test_a_handler_that_hangs(place: Place) -> None:
    hangs = "import threading\n" + RIGHT.replace("max_attempts=1", "concurrency=1")
    place.extra["REVERIE_WORKER__GRACE_S"] = "0"
    with used(place, hangs.replace("    pass", "    threading.Event().wait()")):
        types(place, "reverie worker start")
        items = submit(place, "work", 2)
        with place.scheduler() as scheduler:
            wait_until(lambda: scheduler.observe.health().processing)
        wrong = look(place, REVERIE_ALERTS__STALLED_S="0.001")
        assert set(wrong) == {"stalled"}
        assert "1 are being worked on" in wrong["stalled"]["what"]
        logs, restart = commands_of(wrong["stalled"])
        assert "worker.started" in types(place, logs)
        (place.folder / "app.py").write_text(RIGHT)
        types(place, restart)
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}


@SQLITE
def test_a_paused_label(place: Place) -> None:
    with used(place, RIGHT.replace('"work"', '"my work; $(x)"')):
        types(place, "reverie worker start")
        place.command("pause", "my work; $(x)", "--reason", "the model is away")
        items = submit(place, "my work; $(x)")
        wrong = look(place)
        assert set(wrong) == {"paused"}
        assert "the model is away" in wrong["paused"]["what"]
        types(place, *commands_of(wrong["paused"]))
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}


@SQLITE
def test_an_unhandled_label(place: Place) -> None:
    with used(place):
        types(place, "reverie worker start")
        items = submit(place, "odd")
        wrong = look(place)
        assert set(wrong) == {"unhandled"}
        assert "no live worker handles the label 'odd'" in wrong["unhandled"]["what"]
        restart, with_app = commands_of(wrong["unhandled"])
        (place.folder / "app.py").write_text(WITH_ODD)
        types(place, restart)
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}
        types(place, with_app.replace("module:", "app:"))


@SQLITE
def test_too_much_work(place: Place) -> None:
    with used(place):
        place.command("pause", "work")
        items = submit(place, "work", 101)
        types(place, "reverie worker start")
        wrong = look(place)
        assert set(wrong) == {"pending", "paused"}
        for command in commands_of(wrong["pending"]):
            types(place, command)
        with place.scheduler() as scheduler:
            assert scheduler.observe.health().workers == 2
        types(place, *commands_of(wrong["paused"]))
        wait(place, items, Status.COMPLETED)
        assert look(place) == {}


@SQLITE
def test_a_full_disk(place: Place) -> None:
    script = """
        export REVERIE_DATA_DIR="$1" REVERIE_QUEUE__URL="" REVERIE_MEMORY__URL=""
        unset REVERIE_QUEUE__URL REVERIE_MEMORY__URL
        reverie="$2"
        "$reverie" submit work 1 --user ann --item-id 1 > /dev/null || exit 1
        head -c 50000000 /dev/zero > "$1/filler" 2> /dev/null
        "$reverie" doctor --json; echo "exit $?"
        rm "$1/filler"
        "$reverie" doctor --json; echo "exit $?"
    """
    command = "sh", "-c", script, "sh", str(place.folder), REVERIE
    shown = run_on_small_disk("32m", place.folder, *command, environment=place.environment)
    full, freed = re.findall(r"(\[.*?^\])\nexit 2", shown, re.DOTALL | re.MULTILINE)
    wrong = {finding["check"]: finding for finding in json.loads(full)}
    assert wrong["disk"]["level"] == "error"
    assert "the disk is full" in wrong["disk"]["what"]
    assert types(place, *commands_of(wrong["disk"])).strip().endswith(str(place.folder))
    after = {finding["check"]: finding["level"] for finding in json.loads(freed)}
    assert (after["disk"], after["data_folder"], after["no_worker"]) == ("warning", "ok", "error")


@SQLITE
def test_settings_that_are_wrong(place: Place) -> None:
    with used(place):
        (place.folder / "reverie.yaml").write_text("worker: {lease_s: -1}\nqueue: {durability: maybe}\n")
        shown = place.command("doctor")
        assert shown.returncode == 2
        assert "worker.lease_s" in shown.stdout
        assert "queue.durability" in shown.stdout
        (command,) = commands_of(look(place)["settings"])
        (place.folder / "reverie.yaml").write_text("worker: {lease_s: 40}\n")
        types(place, command)
        assert set(look(place)) == {"queue"}
        assert "no module 'nowhere'" in look(place, REVERIE_APP="nowhere:app")["app"]["what"]


@SQLITE
def test_a_data_folder_that_cannot_be(place: Place) -> None:
    with used(place):
        (place.folder / "file").write_text("")
        for folder, words in {"file": "is a file", "file/below": "cannot be made in"}.items():
            wrong = look(place, REVERIE_DATA_DIR=str(place.folder / folder))
            assert wrong["data_folder"]["level"] == "error"
            assert words in wrong["data_folder"]["what"]


@SQLITE
def test_a_database_that_cannot_be_used(place: Place) -> None:
    with used(place):
        submit(place, "work")
        file = place.folder / "reverie.db"
        holder = apsw.Connection(str(file))
        holder.execute("BEGIN EXCLUSIVE")
        try:
            held = look(place, REVERIE_QUEUE__BUSY_TIMEOUT_S="0.1")["queue"]
        finally:
            holder.execute("ROLLBACK")
        assert "locked by another process" in held["what"]
        assert commands_of(held) == [f"fuser -v {file}"]
        holder.execute("UPDATE schema_versions SET version = 999 WHERE room = 'queue'")
        holder.close()
        newer = look(place)["queue"]
        assert newer["level"] == "error"
        assert "have version 999" in newer["what"]
        file.write_bytes(b"this is not a database, it is a text that is long enough" * 100)
        for beside in ("-wal", "-shm"):
            Path(f"{file}{beside}").unlink(missing_ok=True)
        damaged = look(place)["queue"]
        assert "is damaged, or is no database of Reverie" in damaged["what"]
        assert commands_of(damaged) == [f"reverie salvage {file} {file}.saved"]


@SQLITE
def test_a_server_that_is_away(place: Place) -> None:
    with used(place):
        wrong = look(place, "--url", "redis://:hunter2@127.0.0.1:1/0", REVERIE_APP="")
        assert wrong["queue"]["level"] == "error"
        assert "127.0.0.1:1" in wrong["queue"]["what"]
        assert "hunter2" not in json.dumps(wrong)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        assert look(place, REVERIE_SERVER__PORT=str(port))["server"]["level"] == "note"
        with place.server() as server:
            assert "server" not in look(place, REVERIE_SERVER__PORT=str(server.client.base_url.port))


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_queue_on_redis(place: Place) -> None:
    with used(place):
        items = submit(place, "work")
        (command, _) = commands_of(look(place)["no_worker"])
        types(place, command)
        wait(place, items, Status.COMPLETED)
        found = look(place)
        assert {name: one["level"] for name, one in found.items()} == {
            "maxmemory": "note",
            "stream-node-max-bytes": "note",
        }
        shown = place.command("doctor", "--verbose").stdout
        assert re.search(r"redis_version (Valkey|Redis) \d+\.\d+", shown)
        assert "ok: appendfsync everysec: durability is everysec" in shown
        with Redis.from_url(place.queue_url) as server:
            for one in found.values():
                for command in commands_of(one):
                    server.execute_command(*shlex.split(command))
        assert look(place) == {}


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_redis_that_may_forget(place: Place) -> None:
    with used(place), Redis.from_url(place.queue_url) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        found = look(place)
        assert {name for name, one in found.items() if one["level"] == "error"} == {"maxmemory-policy"}
        server.execute_command(*shlex.split(commands_of(found["maxmemory-policy"])[0]))
        server.config_set("requirepass", "right")
        url = place.queue_url.replace("unix://", "unix://:hunter2@")
        found = look(place, "--url", url, REVERIE_APP="")
        assert {name for name, one in found.items() if one["level"] == "error"} == {"queue"}
        assert "hunter2" not in json.dumps(found)


@SQLITE
def test_a_missing_extra(place: Place) -> None:
    with used(place):
        (place.folder / "redis.py").write_text(
            "raise ModuleNotFoundError('No module named redis', name='redis')"
        )
        wrong = look(
            place, "--url", "redis://127.0.0.1:1/0", REVERIE_APP="", PYTHONPATH=path_with(place.folder)
        )
        assert "pip install 'reverie[redis]'" in commands_of(wrong["queue"])


def path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@SQLITE
def test_a_worker_that_was_killed(place: Place) -> None:
    with used(place):
        types(place, "reverie worker start")
        daemon = Daemon(place.folder)
        killed = daemon.running().pid
        os.kill(killed, signal.SIGKILL)
        wait_until_gone([killed])
        wrong = look(place)
        assert set(wrong) == {"daemon", "sockets"}
        assert f"process {killed}) has died" in wrong["daemon"]["what"]
        for command in (*commands_of(wrong["sockets"]), *commands_of(wrong["daemon"])):
            types(place, command)
        assert look(place) == {}
        lock = Path(daemon.lock_file)
        types(place, "reverie worker stop")
        held = daemon.lock()
        assert held is not None
        try:
            assert str(lock) in look(place)["daemon"]["what"]
        finally:
            os.close(held)


@SQLITE
def test_a_worker_on_another_queue(place: Place) -> None:
    own = RIGHT.replace("Scheduler()", 'Scheduler("sqlite:///own.db")')
    with used(place, own):
        here = {"REVERIE_APP": ""}
        assert place.command("worker", "start", "--app", "app:scheduler", **here).returncode == 0
        own_queue = f"sqlite:///{place.folder.resolve()}/own.db"
        assert own_queue in place.command("worker", "status", **here).stdout
        assert look(place, **here)["other_queue"]["level"] == "note"
        submit(place, "work")
        wrong = look(place, **here)
        assert "no_worker" not in wrong
        assert f"works on another queue ({own_queue}), not on this one" in wrong["other_queue"]["what"]
        assert wrong["other_queue"]["level"] == "error"
        (command,) = commands_of(wrong["other_queue"])
        assert command == "reverie doctor --app app:scheduler"
        assert place.command(*command.split()[1:], **here).returncode == 0


@SQLITE
def test_a_duty_of_the_worker_that_fails(place: Place) -> None:
    """Its file is taken away under it: only the worker itself can say what that does to it."""
    with used(place):
        place.extra["REVERIE_ALERTS__CHECK_S"] = "0.1"
        types(place, "reverie worker start")
        file = place.folder / "reverie.db"
        file.rename(place.folder / "moved.db")
        daemon = Daemon(place.folder)
        wait_until(lambda: daemon.running().alerts, 60)
        shown = place.command("doctor")
        assert shown.returncode == 2
        assert re.search(r"error: the \w+ of this process has failed \d+ times in a row", shown.stdout)
        (command,) = commands_of(look(place)["service_failing"])
        assert "was deleted, moved or replaced" in types(place, command)


@SQLITE
def test_what_is_written_down_about_a_worker(place: Place) -> None:
    with used(place):
        types(place, "reverie worker start")
        daemon = Daemon(place.folder)
        state = json.loads(daemon.state_file.read_bytes())
        alert = {"rule": "service_failing", "level": "error", "subject": "producer"}
        (words,) = failing_services({"producer": 3})
        state |= {"version": "0.0.1", "alerts": [alert | {"message": words.message, "remedy": words.remedy}]}
        daemon.state_file.write_text(json.dumps(state))
        wrong = look(place)
        assert set(wrong) == {"service_failing", "daemon"}
        assert "Reverie 0.0.1" in wrong["daemon"]["what"]
        types(place, *commands_of(wrong["service_failing"]))
        types(place, *commands_of(wrong["daemon"]))
        assert look(place) == {}


def fill(mouth: socket.socket, ear: Path) -> None:
    """Send until no more fits."""
    with suppress(BlockingIOError):
        while True:
            mouth.sendto(b"[]", str(ear))


@SQLITE
def test_a_process_that_does_not_listen(place: Place) -> None:
    with used(place):
        submit(place, "work")
        folder = peers_folder(str(place.folder / "reverie.db"))
        folder.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
            deaf.bind(str(folder / f"{os.getpid()}-deaf"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
                mouth.setblocking(False)
                fill(mouth, folder / f"{os.getpid()}-deaf")
            wrong = look(place)["sockets"]
            assert wrong["level"] == "warning"
            assert f"process {os.getpid()} does not hear" in wrong["what"]


@SQLITE
def test_captured_messages_that_wait(place: Place) -> None:
    with used(place):
        spool = place.settings().spool_dir
        (spool / "damaged").mkdir(parents=True)
        assert "spool" not in look(place)
        name = file_name(1)
        (spool / "package.json").write_text("{}")
        assert "spool" not in look(place)
        (spool / name).write_text("{}")
        assert "1 captured message waits" in look(place)["spool"]["what"]
        (spool / name).rename(spool / "damaged" / name)
        (spool / "damaged" / f"{name}.reason").write_text("is no message\n")
        damaged = look(place)["spool"]
        assert "1 captured message in" in damaged["what"]
        shown = subprocess.run(
            commands_of(damaged)[0], shell=True, capture_output=True, text=True, check=True
        )
        assert "is no message" in shown.stdout


def test_help_says_what_the_exit_codes_mean() -> None:
    shown = subprocess.run([REVERIE, "doctor", "--help"], capture_output=True, text=True, check=True)
    assert "1 if there is a warning" in " ".join(shown.stdout.split())
