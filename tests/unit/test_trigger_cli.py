"""Timed tasks from the shell: looking, running, cancelling, switching, and cron expressions in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reverie import Scheduler
from reverie.settings import load_settings
from reverie.testing import drain
from support.commands import answer, run
from support.living import wait_until
from support.places import REVERIE, SHARED, Place
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
TASKS = {
    "digest": {"enabled": True, "interval": 90},
    "late": {"enabled": True, "interval": 60, "mode": "debounce"},
    "sweep": {
        "enabled": True,
        "trigger_mode": "periodic",
        "interval": 7200,
        "description": "sweeps the floor",
    },
    "night": {"enabled": False, "trigger_mode": "cron", "cron": "0 3 * * *", "timezone": "Europe/Berlin"},
}
APP = """
from reverie import Scheduler

scheduler = Scheduler()

@scheduler.trigger("sweep", mode="periodic", interval=3600, enabled=False)
def sweep(user_id, device_id, agent_id):
    print("swept", flush=True)
"""


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    """An instance with types of its own, which the command line does not know from its settings."""
    settings = load_settings(
        data_dir=place.folder,
        queue={"url": place.queue_url},
        memory={"url": place.memory_url},
        scheduler={"tasks": TASKS},
    )
    with Scheduler(settings=settings).used() as scheduler:
        scheduler.triggers.types()
        yield scheduler


@SQLITE
def test_looking_at_an_empty_queue_brings_nothing_into_force(place: Place) -> None:
    listed = run(place, "triggers", "list")
    assert "memory_compression" in listed.stdout
    assert "none is in force yet" in listed.stderr
    assert {one["task_type"] for one in answer(place, "triggers", "list")} >= {"data_cleanup"}
    assert "30 min after the first activity" in run(place, "triggers", "show", "memory_compression").stdout
    with place.scheduler() as scheduler:
        scheduler.triggers.only_look()
        assert scheduler.triggers.types() == []


@SQLITE
def test_the_types_that_are_in_force_are_those_of_the_workers(place: Place, scheduler: Scheduler) -> None:
    scheduler.schedule_user_task("digest", "ann")
    shown = run(place, "triggers", "list")
    assert shown.exit_code == 0, shown.output
    for words in (
        "90 s after the first activity",
        "1 min after the last activity",
        "every 2 h",
        "disabled",
        "nobody",
    ):
        assert words in shown.stdout
    assert "memory_compression" not in shown.stdout
    types = {one["task_type"]: one for one in answer(place, "triggers", "list")}
    assert list(types) == ["digest", "late", "night", "sweep"]
    assert types["digest"]["statistics"]["pending"] == 1
    assert types["sweep"]["next_due"] is not None
    assert len(scheduler.triggers.types()) == 4


@SQLITE
def test_one_type_and_its_tasks(place: Place, scheduler: Scheduler) -> None:
    @scheduler.trigger("digest")
    def digest(user_id, device_id, agent_id):
        return user_id != "bob"

    for user in ("ann", "bob", "eve"):
        scheduler.triggers.run("digest", user_id=user, device_id="phone")
    drain(scheduler)
    shown = run(place, "triggers", "show", "digest").stdout
    assert "2, 0 failed, 0 missed" in shown
    assert [line.split()[:4] for line in shown.splitlines() if "phone" in line] == [
        ["ann", "phone", "default", "completed"],
        ["bob", "phone", "default", "running"],
        ["eve", "phone", "default", "completed"],
    ]
    page = answer(place, "triggers", "show", "digest", "--limit", "2")
    assert [task["user_id"] for task in page["tasks"]] == ["ann", "bob"]
    rest = answer(place, "triggers", "show", "digest", "--after", page["next"])
    assert ([task["user_id"] for task in rest["tasks"]], rest["next"]) == (["eve"], None)
    assert "there are more: --after" in run(place, "triggers", "show", "digest", "--limit", "2").stderr
    about = run(place, "triggers", "show", "sweep").stdout
    assert "sweeps the floor" in about
    assert "every 2 h" in about


@SQLITE
def test_an_unknown_type(place: Place, scheduler: Scheduler) -> None:
    for command in ("show", "run", "cancel", "enable", "disable"):
        refused = run(place, "triggers", command, "nothing")
        assert refused.exit_code == 1
        assert "there is no task type 'nothing'" in refused.stderr
        assert "digest" in refused.stderr


@SQLITE
def test_running_now(place: Place, scheduler: Scheduler) -> None:
    ran = run(place, "triggers", "run", "digest", "-u", "ann", "--device", "phone", "--agent", "tutor")
    assert (ran.exit_code, ran.stdout) == (0, "digest of ann is due now\n")
    assert "no live worker handles digest" in ran.stderr
    task = scheduler.triggers.task("digest", user_id="ann", device_id="phone", agent_id="tutor")
    assert task.scheduled_at is not None
    assert answer(place, "triggers", "run", "sweep") == {"task_type": "sweep", "run": True, "workers": 0}
    refused = run(place, "triggers", "run", "night")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "reverie triggers enable night" in refused.stderr
    for words, options in {"with --user": ("digest",), "belong to a user": ("sweep", "--agent", "x")}.items():
        refused = run(place, "triggers", "run", *options)
        assert refused.exit_code == 2
        assert words in refused.stderr


@SQLITE
def test_cancelling(place: Place, scheduler: Scheduler) -> None:
    for user in ("ann", "bob", "eve"):
        scheduler.schedule_user_task("digest", user, "phone")
    one = ("triggers", "cancel", "digest", "--user", "ann", "--device", "phone")
    assert run(place, *one).stdout == "cancelled digest of ann\n"
    nothing = run(place, *one)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert "no run of digest of ann is scheduled or under way" in nothing.stderr
    assert run(place, "triggers", "cancel", "digest").exit_code == 2
    assert run(place, "triggers", "cancel", "digest", "--all", "--user", "ann").exit_code == 2
    assert answer(place, "triggers", "cancel", "digest", "--all") == {"task_type": "digest", "cancelled": 2}
    assert scheduler.triggers.tasks("digest") == []


@SQLITE
def test_all_can_be_cancelled_whatever_ids_their_keys_are_made_of(place: Place, scheduler: Scheduler) -> None:
    scheduler.schedule_user_task("digest", "ann", "phone", "tutor")
    place.extra["REVERIE_SCHEDULER__USER_KEY_CONFIG__USE_AGENT_ID"] = "false"
    assert run(place, "triggers", "cancel", "digest", "--all").stdout == "cancelled 1 task of digest\n"
    assert scheduler.triggers.tasks("digest") == []


@SQLITE
def test_a_person_is_asked_before_many_are_cancelled(place: Place, scheduler: Scheduler) -> None:
    for user in ("ann", "bob"):
        scheduler.schedule_user_task("digest", user)
    with terminal(place, REVERIE, "triggers", "cancel", "digest", "--all") as person:
        person.reads("cancel up to 2 tasks of digest?")
        person.types("n\n")
        person.reads("nothing was changed")
        assert person.ends() == 1
    assert len(scheduler.triggers.tasks("digest")) == 2


@SQLITE
def test_switching(place: Place, scheduler: Scheduler) -> None:
    assert run(place, "triggers", "enable", "night").stdout == "enabled night\n"
    assert answer(place, "triggers", "disable", "sweep") == {"task_type": "sweep", "enabled": False}
    assert {one.name: one.enabled for one in scheduler.triggers.types()} == {
        "digest": True,
        "late": True,
        "night": True,
        "sweep": False,
    }


@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_type_that_is_enabled_from_the_shell_runs_in_a_worker_that_lives(place: Place) -> None:
    (place.folder / "app.py").write_text(APP)
    started = place.command("worker", "start", "--app", "app:scheduler")
    assert started.returncode == 0, started.stderr
    try:
        assert run(place, "triggers", "run", "sweep").exit_code == 1
        assert run(place, "triggers", "enable", "sweep").exit_code == 0
        assert answer(place, "triggers", "run", "sweep")["workers"] == 1
        wait_until(lambda: answer(place, "triggers", "show", "sweep")["statistics"]["runs"] == 1)
        assert "swept" in place.command("worker", "logs").stdout
    finally:
        assert place.command("worker", "stop").returncode == 0


@SQLITE
def test_tab_offers_the_types(place: Place, scheduler: Scheduler) -> None:
    shown = place.command(
        _REVERIE_COMPLETE="complete_bash", COMP_WORDS="reverie triggers run s", COMP_CWORD="3"
    )
    assert shown.stdout.split() == ["sweep"]


# -- cron expressions in words -----------------------------------------------------------------------


def explained(place: Place, *arguments: str) -> dict[str, object]:
    return answer(place, "triggers", "explain", *arguments)


@SQLITE
@pytest.mark.parametrize(
    ("start", "times"),
    [
        (
            "2030-03-30T00:00",  # at two on the 31st clocks go to three: half past two does not come
            ["2030-03-30T02:30:00+01:00", "2030-03-31T03:00:00+02:00", "2030-04-01T02:30:00+02:00"],
        ),
        (
            "2030-10-26T00:00",  # at three on the 27th clocks go back to two: half past two comes twice
            ["2030-10-26T02:30:00+02:00", "2030-10-27T02:30:00+02:00", "2030-10-28T02:30:00+01:00"],
        ),
    ],
)
def test_the_next_times_where_clocks_change(place: Place, start: str, times: list[str]) -> None:
    told = explained(place, "30 2 * * *", "--timezone", "Europe/Berlin", "--from", start)
    assert (told["words"], told["timezone"]) == ("At 02:30 every day", "Europe/Berlin")
    assert [one["local"] for one in told["next"]][:3] == times
    assert len(told["next"]) == 5


@SQLITE
def test_an_expression_for_people(place: Place) -> None:
    shown = run(place, "triggers", "explain", "30 2 * * 1-5", "--from", "2030-01-01")
    assert shown.stdout.splitlines()[:2] == [
        "At 02:30 on Monday through Friday, UTC",
        "  Tue 2030-01-01 02:30 +00:00",
    ]
    assert json.loads(run(place, "triggers", "explain", "* * * * *", "--json").stdout)["next"]


@SQLITE
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("61 * * * *",), "cron = '61 * * * *': is no cron expression that ever comes"),
        (("0 0 30 2 *",), "is no cron expression that ever comes"),
        (("nonsense",), "is no cron expression"),
        (("0 0 * * *", "--timezone", "Mars/Base"), "must be the name of a time zone"),
        (("0 0 * * *", "--from", "soon"), "must be a date and time such as"),
    ],
)
def test_what_cannot_be_explained_is_refused(place: Place, arguments: tuple[str, ...], words: str) -> None:
    refused = run(place, "triggers", "explain", *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert words in refused.stderr
