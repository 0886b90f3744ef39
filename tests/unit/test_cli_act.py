"""Doing something from the shell: cancel, pause, resume, dead letters; and what a shell offers at tab."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reverie import Bury, Message, Scheduler
from reverie.cli.commands.bulk import _url_option
from reverie.testing import drain
from support.commands import answer, run
from support.forked import REVERIE
from support.places import Place
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    """The place, looked at from the test; what it handles fails."""
    with place.scheduler() as scheduler:

        @scheduler.handler("bad")
        def bad(message):
            raise Bury("it was too hot")

        @scheduler.handler("broken", max_attempts=1)
        def broken(message):
            raise ValueError("no such document")

        yield scheduler


def submit(scheduler: Scheduler, *item_ids: str, label: str = "work", user_id: str = "ann", **fields) -> None:
    scheduler.submit_messages(
        [Message(user_id=user_id, label=label, item_id=item_id, **fields) for item_id in item_ids]
    )


def statuses(scheduler: Scheduler, user_id: str = "ann") -> str:
    """How the items of a user stand, by their first letters."""
    return "".join(row.status[0] for row in scheduler.status(user_id))


def test_cancelling_items_and_taking_it_back_as_the_answer_says(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", "2", "-3 $(x)")
    shown = run(place, "cancel", "--user", "ann", "--", "1", "-3 $(x)")
    assert (shown.exit_code, shown.stdout) == (0, "cancelled 2 items\n")
    assert statuses(scheduler) == "cwc"
    words = shlex.split(shown.stderr.removeprefix("to undo: "))
    assert words[:3] == ["reverie", "dead", "requeue"]
    back = run(place, *words[1:])
    assert back.stdout == "requeued 2 items\n"
    assert statuses(scheduler) == "www"
    again = run(place, *shlex.split(back.stderr.removeprefix("to undo: "))[1:])
    assert again.stdout == "cancelled 2 items\n"


def test_the_way_back_names_the_queue_but_not_its_password(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1")
    shown = run(place, "cancel", "1", "-u", "ann", "--url", place.queue_url)
    words = shlex.split(shown.stderr.removeprefix("to undo: "))
    assert run(place, *words[1:]).stdout == "requeued 1 item\n"
    assert "hunter2" not in _url_option("redis://:hunter2@127.0.0.1:6379/0")


def test_items_that_cannot_be_cancelled_are_named(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1")
    submit(scheduler, "2", label="bad")
    drain(scheduler)
    shown = run(place, "cancel", "1", "2", "nowhere", "-u", "ann")
    assert (shown.exit_code, shown.stdout) == (1, "cancelled 1 item\n")
    assert "2 is failed: only what is waiting or in progress can be cancelled" in shown.stderr
    assert "user 'ann' has no item or task 'nowhere'" in shown.stderr
    undo = run(place, "dead", "delete", "1", "2", "-u", "ann")
    assert (undo.exit_code, undo.stdout, statuses(scheduler)) == (1, "deleted 1 item\n", "c")
    assert "1 is cancelled: only what is failed can be deleted" in undo.stderr


@pytest.mark.parametrize("command", [["cancel"], ["dead", "requeue"], ["dead", "delete"]])
def test_a_command_without_a_choice_does_nothing(
    place: Place, scheduler: Scheduler, command: list[str]
) -> None:
    submit(scheduler, "1")
    for arguments, words in {
        (): "say which",
        ("1",): "say whose, with --user",
        ("--all",): "say which",
    }.items():
        shown = run(place, *command, *arguments, "--yes")
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert words in shown.stderr
    assert statuses(scheduler) == "w"


def test_choosing_by_user_task_cube_and_label(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", label="a", task_id="t", mem_cube_id="home")
    submit(scheduler, "2", label="a", mem_cube_id="home")
    submit(scheduler, "3", label="b", task_id="t")
    submit(scheduler, "1", label="b", user_id="bob")
    for choice, chosen in {
        ("--task", "t"): ["1", "3"],
        ("--cube", "home", "--label", "a"): ["1", "2"],
        ("--label", "b"): ["3", "1"],
        ("--user", "ann"): ["1", "2", "3"],
        ("--user", "ann", "--task", "t", "--label", "b"): ["3"],
        ("--label", "c"): [],
    }.items():
        result = answer(place, "cancel", *choice)
        assert [key["item_id"] for key in result["changed"]] == chosen
        assert (result["requested"], result["more"]) == ([], False)
        scheduler.control.requeue(user_id="ann")
        scheduler.control.requeue(user_id="bob")


def test_step_by_step(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, *(str(n) for n in range(25)))
    first = run(place, "cancel", "-u", "ann", "--limit", "10")
    assert first.stdout == "cancelled 10 items\n"
    assert "there are more: do it again, or use --all" in first.stderr
    rest = run(place, "cancel", "-u", "ann", "--limit", "10", "--all")
    assert (rest.stdout, statuses(scheduler)) == ("cancelled 15 items\n", "c" * 25)
    assert "reverie dead requeue --all --user ann  (also all that fits" in rest.stderr
    assert len(answer(place, "dead", "requeue", "-u", "ann", "--limit", "10", "--all")["changed"]) == 25
    assert statuses(scheduler) == "w" * 25


def test_what_runs_is_asked_to_stop_and_what_waits_behind_it_is_reached(place: Place) -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    with place.scheduler() as scheduler:

        @scheduler.handler("work", ordered=False, concurrency=3)
        def work(message, ctx):
            begun.release()
            go.wait(60)
            raise RuntimeError("stopped")

        with scheduler:
            submit(scheduler, "1", "2", "3")
            assert all(begun.acquire(timeout=30) for _ in range(3))
            submit(scheduler, "4", "5", label="later")
            shown = run(place, "cancel", "-u", "ann", "--limit", "2", "--all")
            assert (shown.exit_code, shown.stdout) == (0, "cancelled 2 items, asked 3 to stop\n")
            go.set()
            assert {scheduler.wait(n, user_id="ann").status for n in "123"} == {"cancelled"}
            assert statuses(scheduler) == "ccccc"


def test_what_fails_again_at_once_is_not_sent_back_forever(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", "2", "3", label="bad")
    with scheduler:
        assert {scheduler.wait(n, user_id="ann").status for n in "123"} == {"failed"}
        assert run(place, "dead", "requeue", "--label", "bad", "--limit", "1", "--all").exit_code == 0


def test_a_person_is_asked_before_many_items_are_changed(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", "2", "3", "4")
    submit(scheduler, "1", user_id="bob")
    with terminal(place, REVERIE, "cancel", "-u", "ann", "--label", "work") as person:
        person.reads("cancel 4 items (--user ann --label work)? [y/N]:")
        person.types("n\n")
        assert person.ends() == 1
        assert "nothing was changed" in person.shown
    assert statuses(scheduler) == "wwww"
    with terminal(place, REVERIE, "cancel", "1", "-u", "ann") as person:
        assert person.ends() == 0
        assert person.shown.startswith("cancelled 1 item")
    with terminal(place, REVERIE, "cancel", "--label", "work", "--limit", "2") as person:
        person.reads("cancel the first 2 of 4 items (--label work)?")
        person.types("y\n")
        assert person.ends() == 0
    assert statuses(scheduler) == "cccw"
    with terminal(place, REVERIE, "cancel", "--cube", "ann", "--yes", "--all") as person:
        assert person.ends() == 0
        assert "cancelled 1 item" in person.shown
    submit(scheduler, "5", "6", label="bad")
    drain(scheduler)
    with terminal(place, REVERIE, "dead", "delete", "-u", "ann", "--cube", "ann") as person:
        person.reads("delete 2 items (--user ann --cube ann)? This cannot be undone. [y/N]:")
        person.types("y\n")
        assert person.ends() == 0
        assert "to undo" not in person.shown
    assert [row.status for row in scheduler.status("ann")] == ["cancelled"] * 4


def test_pausing_a_label(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1")
    shown = run(place, "pause", "work", "--reason", "the disk is full")
    assert (shown.stdout, shown.stderr) == ("paused work: the disk is full\n", "")
    assert [state.paused for state in scheduler.control.labels()] == ["the disk is full"]
    assert run(place, "resume", "work").stdout == "resumed work\n"
    assert [state.paused for state in scheduler.control.labels()] == [None]
    assert run(place, "resume", "work").stdout == "work was not paused\n"
    assert run(place, "pause", "work").stdout == "paused work\n"
    assert run(place, "resume", "work").stdout == "resumed work\n"
    assert "is it written as you mean it?" in run(place, "pause", "wrok").stderr
    assert answer(place, "resume", "wrok") == {"label": "wrok", "paused": None}


def test_listing_dead_letters_page_by_page(place: Place, scheduler: Scheduler) -> None:
    assert run(place, "dead", "list").stdout == ""
    submit(scheduler, "1", "2", "3", label="bad")
    submit(scheduler, "4", label="bad", user_id="bob")
    submit(scheduler, "5")
    drain(scheduler)
    first = run(place, "dead", "list", "--limit", "2")
    assert "it was too hot" in first.stdout
    after = shlex.split(first.stderr.partition("there are more: ")[2])
    page = answer(place, "dead", "list", *after)
    assert ([row["item_id"] for row in page["rows"]], page["next"]) == (["3", "4"], None)
    assert [row["item_id"] for row in answer(place, "dead", "list", "-u", "bob")["rows"]] == ["4"]
    assert answer(place, "dead", "list", "--label", "work")["rows"] == []


def test_showing_a_dead_letter(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", label="bad", content='{"doc":{"id":7}}')
    submit(scheduler, "2", label="bad", content="no [json]")
    submit(scheduler, "3")
    submit(scheduler, "5", label="broken")
    drain(scheduler)
    traceback = run(place, "dead", "show", "5", "-u", "ann").stdout.partition("\nerror\n")[2]
    assert "Traceback" in traceback
    assert "ValueError: no such document" in traceback
    shown = run(place, "dead", "show", "1", "-u", "ann").stdout
    assert '\ncontent\n  {\n    "doc": {\n      "id": 7\n    }\n  }\n' in shown
    assert "it was too hot" in shown
    assert "\nruns\n" in shown
    assert "\ncontent\n  no [json]\n" in run(place, "dead", "show", "2", "-u", "ann").stdout
    letter = answer(place, "dead", "show", "1", "-u", "ann")
    assert letter["message"]["content"] == '{"doc":{"id":7}}'
    assert [one["outcome"] for one in letter["history"]] == ["failed"]
    waiting, unknown = (
        run(place, "dead", "show", "3", "-u", "ann"),
        run(place, "dead", "show", "4", "-u", "ann"),
    )
    assert (waiting.exit_code, unknown.exit_code) == (1, 1)
    assert "3 is no dead letter, it is waiting" in waiting.stderr
    assert "has no item or task '4'" in unknown.stderr


HOSTILE = ["e$(touch owned)", "e;x", "e'x", 'e"x', "e`x`", "e x", "e\nx", "-e", "e)x", "e\\x", "e*x"]


def typed(place: Place, script: str, **environment: str) -> str:
    """What bash shows, with `reverie` in its path."""
    path = f"{Path(REVERIE).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--norc", "-c", script],
        env=place.environment | {"PATH": path, "HOME": str(place.folder)} | environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def tab(place: Place, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    array = " ".join(shlex.quote(word) for word in words)
    script = (
        "source <(reverie --show-completion)\n"
        f"COMP_WORDS=(reverie {array}); COMP_CWORD={len(words)}; _reverie_completion reverie\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return typed(place, script).split()


def test_tab_offers_names_that_mean_nothing_to_a_shell(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "export-1", label="export")
    for label in HOSTILE:
        submit(scheduler, label, label=label, user_id="eve")
    submit(scheduler, "d1", label="bad")
    drain(scheduler)
    assert tab(place, "pause", "e") == ["export"]
    assert tab(place, "resume", "") == ["bad", "export"]
    assert tab(place, "cancel", "--user", "ann", "") == ["export-1"]
    assert tab(place, "cancel", "--user", "eve", "") == []
    assert tab(place, "status", "--user", "ann", "") == ["d1", "export-1"]
    assert tab(place, "dead", "show", "") == ["d1"]
    assert tab(place, "events", "--event", "f") == ["finish"]
    assert "cancel" in tab(place, "c")
    assert not (place.folder / "owned").exists()


def test_tab_creates_nothing_and_says_nothing(place: Place) -> None:
    assert tab(place, "pause", "") == []
    assert not list(place.folder.iterdir())
    (place.folder / "reverie.db").write_text("this is no database")
    assert tab(place, "pause", "") == []


def test_the_completion_of_each_shell(place: Place, scheduler: Scheduler) -> None:
    submit(scheduler, "1", label="export")
    for shell, words in {"zsh": "#compdef reverie", "fish": "complete --command reverie"}.items():
        script = typed(
            place, f"reverie --show-completion {shell}", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
        )
        assert words in script
        offered = typed(
            place,
            "reverie",
            _REVERIE_COMPLETE=f"complete_{shell}",
            _TYPER_COMPLETE_ARGS="reverie pause e",
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        )
        assert "export" in offered
    assert "bash completion installed" in typed(place, "reverie --install-completion; true")
    assert "completion" in (place.folder / ".bashrc").read_text()
