"""Sessions of agents from the shell: list, show, delete, and timelines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reverie import Remember
from reverie.capture.hook_settings import login_name
from reverie.memory.sessions import SessionNote
from support.commands import answer, run
from support.forked import REVERIE
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie import Scheduler
    from support.places import Place

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

HOUR = 3_600_000


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    with place.scheduler() as scheduler:
        scheduler.open()
        yield scheduler


def note(scheduler: Scheduler, session_id: str, at: int, **fields: Any) -> None:
    """Note one hook of a session of ann."""
    given = {"user_id": "ann", "mem_cube_id": "app", "session_id": session_id, "at": at} | fields
    scheduler.run(scheduler.runtime.store.note_sessions([SessionNote(**given)]))


def learn(scheduler: Scheduler, count: int, session_id: str = "s1", **fields: Any) -> None:
    """Let ann's agent learn something in a session, an hour apart."""
    items = [
        Remember(
            memory_id=f"{session_id}-{number}",
            text=f"Step {number}",
            kind="observation",
            type="Edit",
            session_id=session_id,
            learned_at=(number + 1) * HOUR,
            **fields,
        )
        for number in range(count)
    ]
    scheduler.run(scheduler.runtime.store.change(("ann", "app"), items))


def titles(found: list[dict[str, Any]]) -> list[str]:
    return [item["text"] for item in found]


def test_sessions_are_listed_page_by_page(place: Place, scheduler: Scheduler) -> None:
    for number in range(4):
        note(scheduler, f"s{number}", 1000 + number, prompt="go" if number % 2 else None, agent="codex")
    note(scheduler, "other", 500, mem_cube_id="site")
    note(scheduler, "of-bob", 500, user_id="bob")
    page = answer(place, "sessions", "list", "-u", "ann", "--limit", "3")
    assert [one["session_id"] for one in page["sessions"]] == ["s3", "s2", "s1"]
    assert {"context", "last_items"}.isdisjoint(page["sessions"][0])
    rest = answer(place, "sessions", "list", "-u", "ann", "--limit", "3", "--after", page["next"])
    assert ([one["session_id"] for one in rest["sessions"]], rest["next"]) == (["s0", "other"], None)
    chosen = answer(place, "sessions", "list", "-u", "ann", "--cube", "app", "--status", "active")
    assert [one["session_id"] for one in chosen["sessions"]] == ["s3", "s1"]
    shown = run(place, "sessions", "list", "-u", "ann", "--limit", "3")
    assert [word in shown.stdout for word in ("s3", "active", "codex", "app", "go")] == [True] * 5
    assert "there are more: --after" in shown.stderr


def test_the_user_is_the_login_name_if_none_is_named(place: Place, scheduler: Scheduler) -> None:
    note(scheduler, "mine", 1000, user_id=login_name())
    assert answer(place, "sessions", "list")["sessions"][0]["session_id"] == "mine"
    assert answer(place, "sessions", "show", "mine")["user_id"] == login_name()
    assert answer(place, "timeline", "--session", "mine") == []
    assert "there are no such sessions of nobody" in run(place, "sessions", "list", "-u", "nobody").stderr


def test_a_session_is_shown_with_its_context(place: Place, scheduler: Scheduler) -> None:
    note(scheduler, "s1", 1000, prompt="fix\x1b[31m it", agent="codex", context="Known:\n- a fact")
    shown = answer(place, "sessions", "show", "s1", "-u", "ann")
    assert (shown["status"], shown["context"], "last_items" in shown) == ("active", "Known:\n- a fact", False)
    printed = run(place, "sessions", "show", "s1", "-u", "ann")
    assert "  - a fact" in printed.stdout
    assert "fix\\x1b[31m it" in printed.stdout
    assert "reverie timeline --user ann --session=s1" in printed.stderr
    unknown = run(place, "sessions", "show", "s2", "-u", "ann")
    assert (unknown.exit_code, "there is no session 's2'" in unknown.stderr) == (1, True)


def test_a_session_is_deleted_with_its_memories(place: Place, scheduler: Scheduler) -> None:
    note(scheduler, "s1", 1000)
    note(scheduler, "s2", 1000)
    learn(scheduler, 3)
    learn(scheduler, 1, "s2")
    shown = run(place, "sessions", "delete", "s1", "-u", "ann")
    assert shown.stdout == "deleted the session s1 and 3 memories\n"
    assert "this cannot be undone" in shown.stderr
    again = run(place, "sessions", "delete", "s1", "-u", "ann")
    assert (again.exit_code, "there is no session 's1'" in again.stderr) == (1, True)
    assert titles(answer(place, "timeline", "-u", "ann", "--session", "s2")) == ["Step 0"]
    deleted = answer(place, "sessions", "delete", "s2", "-u", "ann", "--yes")
    assert deleted == {"session_id": "s2", "memories": 1}


def test_a_person_is_asked_before_a_session_is_deleted(place: Place, scheduler: Scheduler) -> None:
    note(scheduler, "s1", 1000, prompt="fix the port")
    learn(scheduler, 2)
    with terminal(place, REVERIE, "sessions", "delete", "s1", "-u", "ann") as person:
        person.reads("delete the session s1, 'fix the port', and 2 memories of ann?")
        person.types("n\n")
        assert person.ends() == 1
    assert "nothing was changed" in person.shown
    with terminal(place, REVERIE, "sessions", "delete", "s1", "-u", "ann") as person:
        person.reads("[y/N]")
        person.types("y\n")
        assert person.ends() == 0
    assert answer(place, "sessions", "list", "-u", "ann")["sessions"] == []
    note(scheduler, "s1", 1000)
    with terminal(place, REVERIE, "sessions", "delete", "s1", "-u", "ann", "--yes") as person:
        assert person.ends() == 0
    assert "y/N" not in person.shown


def test_a_timeline(place: Place, scheduler: Scheduler) -> None:
    folder = str(place.folder)
    tags = (f"file:{folder}/src/app.py", "file:app.py")
    learn(scheduler, 5, tags=tags)
    steps = [f"Step {number}" for number in range(5)]
    for options, expected in {
        ("--session", "s1"): steps,
        ("--session", "s1", "--before", "1", "--after", "0"): steps[3:],
        ("--around", "s1-2", "--before", "1", "--after", "1"): steps[1:4],
        ("--file", "app.py"): steps,
        ("--file", f"{folder}/src/app.py"): steps,
        ("--file", "app.py", "--cube", "site"): [],
        ("--file", "other.py"): [],
    }.items():
        assert titles(answer(place, "timeline", "-u", "ann", *options)) == expected, options
    shown = place.command("timeline", "-u", "ann", "--file", "src/app.py", "--json")
    assert titles(json.loads(shown.stdout)) == steps
    printed = run(place, "timeline", "-u", "ann", "--around", "s1-2")
    assert "observation (Edit)" in printed.stdout
    assert next(line for line in printed.stdout.splitlines() if "→" in line).split()[-2:] == ["Step", "2"]


def test_a_timeline_of_nothing(place: Place, scheduler: Scheduler) -> None:
    for options in ((), ("--session", "s1", "--file", "a")):
        refused = run(place, "timeline", "-u", "ann", *options)
        assert (refused.exit_code, "--session, --around and --file" in refused.stderr) == (2, True)
    unknown = run(place, "timeline", "-u", "ann", "--around", "x")
    assert (unknown.exit_code, "there is no memory 'x'" in unknown.stderr) == (1, True)
    empty = run(place, "timeline", "-u", "ann", "--session", "s1")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "there are no such memories of ann" in empty.stderr
