"""Looking in from the shell: status, wait, queue, events."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from reverie import Bury, Scheduler
from reverie.cli.output import moment, plain
from reverie.errors import WaitTimeoutError
from reverie.testing import drain
from support.commands import answer, run
from support.forked import REVERIE
from support.places import Place
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

NASTY = "x\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202e[red]y[/red][/]{z}"
"""Sets a title, clears the screen, writes a line anew, colours, turns the direction; and markup of ours."""


def works(scheduler: Scheduler) -> None:
    @scheduler.handler("good")
    def good(message):
        return None

    @scheduler.handler("bad")
    def bad(message):
        raise Bury(f"line one\nit was {message.content}")


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    """The place, looked at from the test; it handles `good` and `bad`."""
    with place.scheduler() as scheduler:
        works(scheduler)
        yield scheduler


def test_the_items_of_a_user_in_pages(place: Place, scheduler: Scheduler) -> None:
    for number in range(5):
        scheduler.submit("good", user_id="ann", item_id=str(number))
    first = answer(place, "status", "-u", "ann", "--limit", "3")
    assert [row["item_id"] for row in first["rows"]] == ["0", "1", "2"]
    rest = answer(place, "status", "-u", "ann", "--cursor", first["next"])
    assert ([row["item_id"] for row in rest["rows"]], rest["next"]) == (["3", "4"], None)
    assert f"--cursor {first['next']}" in run(place, "status", "-u", "ann", "--limit", "3").stderr
    refused = run(place, "status", "-u", "ann", "--cursor", "x")
    assert (refused.exit_code, "give the `next` of the page before" in refused.stderr) == (2, True)
    assert run(place, "status", "0", "-u", "ann", "--limit", "3").exit_code == 2


def test_the_items_of_a_user(place: Place, scheduler: Scheduler) -> None:
    assert (run(place, "status", "-u", "ann").stdout, answer(place, "status", "-u", "ann")) == ("", [])
    scheduler.submit("good", user_id="ann", item_id="1")
    scheduler.submit("bad", user_id="ann", item_id="2", content="hot")
    drain(scheduler)
    shown = run(place, "status", "-u", "ann").stdout
    assert "completed" in shown
    assert "it was hot" in shown
    assert "line one" not in shown
    assert [row["status"] for row in answer(place, "status", "-u", "ann")] == ["completed", "failed"]


def test_a_business_task_is_summed_up(place: Place, scheduler: Scheduler) -> None:
    for item_id, label in [("1", "good"), ("2", "bad"), ("3", "good")]:
        scheduler.submit(label, user_id="ann", item_id=item_id, task_id=None if item_id == "3" else "t")
    assert "task t: in_progress, 2 items" in run(place, "status", "t", "-u", "ann").stdout
    drain(scheduler)
    assert "task t: failed, 2 items" in run(place, "status", "t", "-u", "ann").stdout
    assert [row["item_id"] for row in answer(place, "status", "t", "-u", "ann")] == ["1", "2"]
    assert "task" not in run(place, "status", "1", "-u", "ann").stdout


def test_the_runs_of_an_item_and_its_whole_error(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("bad", user_id="ann", item_id="1", content="hot", task_id="t")
    drain(scheduler)
    scheduler.control.requeue("1", user_id="ann")
    drain(scheduler)
    shown = run(place, "status", "1", "-u", "ann", "--history").stdout
    assert "\nerror\n  line one\n  it was hot\n" in shown
    assert len([line for line in shown.splitlines() if line.strip().startswith("failed")]) == 2
    (row,) = answer(place, "status", "1", "-u", "ann", "--history")
    assert (row["item_id"], [run["outcome"] for run in row["history"]]) == ("1", ["failed", "failed"])
    nothing = run(place, "status", "-u", "ann", "--history")
    assert nothing.exit_code == 2
    assert "say which" in nothing.stderr


def test_of_very_many_items_a_person_sees_the_newest(place: Place, scheduler: Scheduler) -> None:
    from reverie import Message  # noqa: PLC0415

    scheduler.submit_messages([Message(user_id="ann", label="x", item_id=f"i{n}") for n in range(1002)])
    shown = run(place, "status", "-u", "ann")
    assert "1002 items; the newest 1000 are shown" in shown.stderr
    assert " i2 " in shown.stdout
    assert " i1 " not in shown.stdout
    assert len(answer(place, "status", "-u", "ann")) == 1002


def test_the_labels_of_the_queue(place: Place, scheduler: Scheduler) -> None:
    assert run(place, "queue").stdout == "the queue is empty\n"
    with scheduler:
        scheduler.submit("good", user_id="ann", item_id="1")
        scheduler.wait("1", user_id="ann")
        scheduler.submit("other", user_id="ann")
        run(place, "pause", "good", "--reason", "the disk is full")
        rows = {row["label"]: row for row in answer(place, "queue")}
        assert (rows["good"]["completed"], rows["good"]["workers"], rows["other"]["workers"]) == (1, 1, 0)
        shown = run(place, "queue").stdout
        (good,) = [line.split() for line in shown.splitlines() if "good" in line]
        assert good == ["good", "0", "0", "1", "0", "0", "1", "the", "disk", "is", "full"]
        assert "nobody" in shown


def test_the_queue_on_a_narrow_screen(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("a_label_of_some_length", user_id="ann")
    scheduler.control.pause("a_label_of_some_length", "the model is away until tomorrow")
    with terminal(place, REVERIE, "queue", columns=80) as person:
        assert person.ends() == 0
    heads = ["label", "waiting", "running", "done", "failed", "cancelled", "workers", "paused"]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in person.shown.splitlines()]
    assert heads in lines, person.shown


@pytest.mark.parametrize(
    "command",
    [["queue"], ["status", "-u", "ann"], ["wait", "-u", "ann"], ["search", "x", "-u", "ann"], ["events"]],
)
def test_looking_at_a_file_that_is_not_there(place: Place, command: list[str]) -> None:
    file = place.folder / "nosuch.db"
    shown = run(place, *command, "--url", f"sqlite:///{file}")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "there is no such file" in shown.stderr
    assert not file.exists()
    assert run(place, "submit", "work", "x", "-u", "ann", "--url", f"sqlite:///{file}").exit_code == 0
    assert file.exists()


def test_a_search_that_finds_nothing_says_so(place: Place) -> None:
    shown = run(place, "search", "bees", "-u", "ann")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "nothing of ann was found\n")
    assert answer(place, "search", "bees", "-u", "ann")["hits"] == []


def test_the_lanes_of_a_user(place: Place, scheduler: Scheduler) -> None:
    assert run(place, "queue", "-u", "ann").stdout == "nothing waits or runs\n"
    scheduler.submit("good", user_id="ann", mem_cube_id="home")
    scheduler.submit("good", user_id="bob")
    assert answer(place, "queue", "-u", "ann") == [
        {"user_id": "ann", "mem_cube_id": "home", "label": "good", "waiting": 1, "in_progress": 0}
    ]
    assert "home" in run(place, "queue", "-u", "ann").stdout


def test_watching_the_queue_in_place(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("good", user_id="ann")
    with terminal(place, REVERIE, "queue", "--watch", "--every", "0.1") as person:
        person.reads("good")
        scheduler.submit("news", user_id="ann")
        person.reads("news")
        assert "\x1b[1A" in person.shown  # the cursor goes up: no second table below
        person.presses_ctrl_c()
        assert person.ends() == 0
        assert "Traceback" not in person.shown


def test_watching_for_a_program_is_a_line_each_time(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("good", user_id="ann")
    command = [REVERIE, "queue", "--watch", "--json", "--every", "0.1"]
    with subprocess.Popen(command, env=place.environment, stdout=-1, stderr=-1, text=True) as watching:
        looks = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.stdout.close()  # as `| head -2` does
        assert watching.stderr.read() == ""
    assert [[row["label"] for row in look] for look in looks] == [["good"], ["good"]]


def test_waiting_for_an_item(place: Place, scheduler: Scheduler) -> None:
    for item_id, label in [("1", "good"), ("2", "bad"), ("3", "nobody"), ("4", "nobody")]:
        scheduler.submit(label, user_id="ann", item_id=item_id, content="hot")
    drain(scheduler)
    scheduler.control.cancel("3", user_id="ann")
    shown = {n: run(place, "wait", n, "-u", "ann", "--timeout", "0") for n in "12345"}
    assert [one.exit_code for one in shown.values()] == [0, 1, 1, 2, 1]
    assert [one.stdout for one in shown.values()] == [
        "completed 1\n",
        "failed 2: it was hot\n",
        shown["3"].stdout,
        "",
        "",
    ]
    assert shown["3"].stdout.startswith("cancelled 3")
    assert "4 is still waiting after 0 s" in shown["4"].stderr
    assert "has no item or task '5'" in shown["5"].stderr
    assert answer(place, "wait", "1", "-u", "ann")["status"] == "completed"
    late = run(place, "wait", "4", "-u", "ann", "--timeout", "0", "--json")
    assert (late.exit_code, json.loads(late.stdout)["timed_out"]) == (2, True)
    assert run(place, "wait", "1", "-u", "ann", "--timeout", "nan").exit_code == 2


def test_waiting_for_a_business_task(place: Place, scheduler: Scheduler) -> None:
    for item_id, label in [("1", "good"), ("2", "good"), ("3", "nobody"), ("4", "nobody")]:
        scheduler.submit(label, user_id="ann", item_id=item_id, task_id="monday")
    drain(scheduler)
    late = run(place, "wait", "monday", "-u", "ann", "--timeout", "0")
    assert (late.exit_code, late.stdout) == (2, "")
    assert "2 of 4 items of task monday not ended after 0 s" in late.stderr
    late = run(place, "wait", "monday", "-u", "ann", "--timeout", "0", "--json")
    assert (late.exit_code, json.loads(late.stdout)["timed_out"]) == (2, True)
    scheduler.control.cancel(["3", "4"], user_id="ann")
    shown = run(place, "wait", "monday", "-u", "ann")
    assert (shown.exit_code, shown.stdout) == (0, "completed task monday, 4 items\n")
    scheduler.submit("bad", user_id="ann", item_id="5", task_id="monday")
    with scheduler:
        shown = run(place, "wait", "monday", "-u", "ann", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["status"]) == (1, "failed")


def test_words_about_what_does_not_end(place: Place) -> None:
    assert "a worker must handle its label" in str(WaitTimeoutError("1", "waiting", 1))
    running = str(WaitTimeoutError("1", "in_progress", 1))
    assert running == "1 is still in progress after 1 s; its handler still runs"


def test_waiting_for_a_user(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("good", user_id="ann")
    late = run(place, "wait", "-u", "ann", "--timeout", "0")
    assert (late.exit_code, late.stdout) == (2, "")
    assert "1 item of ann not ended after 0 s" in late.stderr
    drain(scheduler)
    assert run(place, "wait", "-u", "ann").stdout == "ann has no work that waits or runs\n"
    idle = answer(place, "wait", "-u", "ann")
    assert (idle["status"], idle["active_tasks"]) == ("idle", 0)


def test_a_person_who_waits_sees_that_it_goes_on(place: Place) -> None:
    go = threading.Event()
    with place.scheduler() as scheduler:

        @scheduler.handler("slow")
        def slow(message):
            go.wait(60)

        scheduler.submit("slow", user_id="ann")
        with scheduler, terminal(place, REVERIE, "wait", "-u", "ann") as person:
            person.reads("work of ann")
            person.reads("0/1")
            go.set()
            person.reads("ann has no work")
            assert person.ends() == 0
        with terminal(place, REVERIE, "wait", "-u", "ann", "--json") as person:
            assert person.ends() == 0
            assert json.loads(person.shown)["status"] == "idle"
        scheduler.submit("other", user_id="ann", item_id="{1}")
        with terminal(place, REVERIE, "wait", "{1}", "-u", "ann") as person:
            person.reads("waiting for {1}")
            person.presses_ctrl_c()
            assert person.ends() == 130
            assert "Traceback" not in person.shown


@contextmanager
def listening(place: Place, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`reverie events`, from the moment on from which it hears."""
    process = subprocess.Popen(
        [REVERIE, "events", *arguments],
        env=place.environment | environment,
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = process.stderr.readline()
        assert first.startswith("listening to all who use "), first + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def ends(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    shown, errors = process.communicate(timeout=30)
    return shown, errors, process.returncode


def test_events_of_other_processes(place: Place) -> None:
    with listening(place, "--count", "5") as people, listening(place, "--json", "--count", "5") as programs:
        with place.scheduler() as scheduler:
            works(scheduler)
            scheduler.submit("bad", user_id="ann", item_id="1", content="hot")
            drain(scheduler)
        lines, errors, code = ends(people)
        assert (errors, code) == ("", 0)
        events = [json.loads(line) for line in ends(programs)[0].splitlines()]
    names = ["enqueue", "dequeue", "start", "finish", "message_processing_failed"]
    assert [event["event"] for event in events] == names
    assert events[-1]["error"] == "line one\nit was hot"
    last = lines.splitlines()[-1].split("  ")
    assert last[1:6] == ["message_processing_failed", "bad", "ann", "1", "failed"]
    assert "in all " in last[6]
    assert last[7:] == ["the last run", "it was hot"]


def test_only_some_events(place: Place) -> None:
    wanted = ["--user", "ann", "--label", "good", "--label", "bad", "--event", "finish", "--count", "2"]
    with listening(place, *wanted, "--json") as some, listening(place, "--item", "4", "--count", "1") as one:
        with place.scheduler() as scheduler:
            works(scheduler)
            for item_id, (label, user) in enumerate(
                [("good", "ann"), ("good", "bob"), ("other", "ann"), ("bad", "ann"), ("good", "eve")]
            ):
                scheduler.submit(label, user_id=user, item_id=str(item_id))
            drain(scheduler)
        events = [json.loads(line) for line in ends(some)[0].splitlines()]
        assert {(event["item_id"], event["event"]) for event in events} == {("0", "finish"), ("3", "finish")}
        assert "enqueue  good  eve  4  waiting" in ends(one)[0]


def test_listening_ends_quietly(place: Place) -> None:
    with listening(place) as process:
        process.send_signal(signal.SIGINT)
        assert ends(process) == ("", "", 0)
    with listening(place, REVERIE_QUEUE__URL="memory://", REVERIE_MEMORY__URL="memory://") as process:
        assert "nobody else can be heard here" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert ends(process) == ("", "", 0)


def test_an_event_that_does_not_exist(place: Place) -> None:
    shown = run(place, "events", "--event", "finished")
    assert shown.exit_code == 2
    assert "finished is no event" in shown.stderr
    assert "message_processing_failed" in " ".join(shown.stderr.split())


def test_what_users_write_gives_no_orders_to_a_terminal(place: Place, scheduler: Scheduler) -> None:
    @scheduler.handler(NASTY)
    def nasty(message):
        raise Bury(NASTY)

    names = {
        "user_id": NASTY,
        "item_id": NASTY,
        "mem_cube_id": NASTY,
        "content": NASTY,
        "task_id": "t" + NASTY,
    }
    with listening(place, "--event", "finish", "--count", "1") as people:
        scheduler.submit(NASTY, **names)
        drain(scheduler)
        heard, _, _ = ends(people)
    scheduler.submit("waits", **names | {"item_id": "2"})
    scheduler.control.pause(NASTY, NASTY)
    shown = [heard]
    for command in [
        ("status", "-u", NASTY),
        ("status", "t" + NASTY, "-u", NASTY),
        ("status", NASTY, "-u", NASTY, "--history"),
        ("status", NASTY, "-u", "bob"),
        ("queue",),
        ("queue", "-u", NASTY),
        ("wait", NASTY, "-u", NASTY),
        ("wait", "-u", NASTY, "--timeout", "0"),
        ("dead", "list"),
        ("dead", "show", NASTY, "-u", NASTY),
        ("dead", "show", "2", "-u", NASTY),
        ("cancel", NASTY, "-u", NASTY),
        ("dead", "requeue", NASTY, "-u", NASTY),
        ("pause", NASTY, "--reason", NASTY),
        ("resume", NASTY),
        ("submit", "waits", "x", "-u", NASTY, "--item-id", NASTY),
    ]:
        for form in ([], ["--json"]):
            result = run(place, *command, *form)
            assert not result.exception or isinstance(result.exception, SystemExit), result.exception
            assert result.output.strip(), command
            shown.append(result.output)
    assert not [text for text in shown if set(text) & set("\x1b\x07\r\x9b\u202e")]
    assert plain(NASTY) in heard
    assert plain(NASTY) in run(place, "queue").stdout
    assert "[red]y[/red][/]{z}" in plain(NASTY)
    assert answer(place, "status", "-u", NASTY)[0]["item_id"] == NASTY  # a program gets it as it is


def test_a_reader_who_goes_early(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("good", user_id="ann", item_id="1")
    drain(scheduler)
    for command in [
        ("status", "-u", "ann"),
        ("status", "-u", "ann", "--json"),
        ("status", "1", "-u", "ann", "--history"),
        ("queue",),
        ("wait", "-u", "ann"),
    ]:
        read, write = os.pipe()
        os.close(read)
        shown = subprocess.run(
            [REVERIE, *command],
            env=place.environment,
            stdout=write,
            stderr=-1,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert shown.stderr == "", command


def test_a_terminal_that_knows_few_letters(place: Place, scheduler: Scheduler) -> None:
    scheduler.submit("good", user_id="ann", item_id="café")
    shown = place.command("status", "-u", "ann", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "caf\\xe9" in shown.stdout


def test_a_command_line_that_is_not_text(place: Place) -> None:
    shown = subprocess.run(
        [REVERIE.encode(), b"status", b"-u", b"\xff"],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (2, "error: the command line is not valid UTF-8\n")


def test_a_moment_that_no_calendar_has(place: Place) -> None:
    assert moment(10**18) == str(10**18)
    assert moment(None) == ""
