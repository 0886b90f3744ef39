"""One SQLite file is one file however its URL is spelled, also while processes are killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from reverie import Scheduler
from reverie.settings import load_settings
from reverie.storage.location import sqlite_path
from support.living import wait_until
from support.places import Place, sqlite

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

APP = """
import os, uuid
from reverie import Done, Remember, Scheduler
scheduler = Scheduler()

@scheduler.handler("note")
def note(message):
    if "HOLD" in os.environ:
        open("go").close()  # waits until the test opens the pipe, too
    memory_id = str(uuid.uuid4()) if message.content == "random" else "note-1"
    return Done(effects=[Remember(memory_id=memory_id, text="green tea")])
"""
SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.3"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder with the file, a link to it, and a link to the folder itself."""
    with sqlite(tmp_path) as opened:
        (tmp_path / "app.py").write_text(APP)
        os.mkfifo(tmp_path / "go")
        (tmp_path / "link.db").symlink_to(tmp_path / "reverie.db")
        (tmp_path / "around").symlink_to(tmp_path, target_is_directory=True)
        yield opened


SPELLINGS = {
    "relative": lambda folder: "sqlite:///reverie.db",
    "absolute": lambda folder: f"sqlite:///{folder / 'reverie.db'}",
    "upper case": lambda folder: "SQLITE:///reverie.db",
    "link": lambda folder: "sqlite:///link.db",
    "folder": lambda folder: f"sqlite:///{folder}/around/around/reverie.db",
}


@pytest.mark.parametrize("memory", SPELLINGS)
@pytest.mark.parametrize("queue", ["absolute", "link"])
def test_a_spelling_does_not_part_queue_and_memory(
    place: Place, queue: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    urls = {"queue": SPELLINGS[queue](place.folder), "memory": SPELLINGS[memory](place.folder)}
    assert {sqlite_path(url) for url in urls.values()} == {str(place.folder.resolve() / "reverie.db")}
    settings = load_settings(data_dir=place.folder, **{name: {"url": url} for name, url in urls.items()})
    with Scheduler(settings=settings).used() as scheduler:
        assert scheduler.runtime.backend.capabilities.applies_effects
        assert len(scheduler.runtime.databases.files) == 1


def mixed(memory: str, place: Place, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker with an absolute URL of the queue, and another spelling for the memory."""
    spelled = replace(place, memory_url=SPELLINGS[memory](place.folder))
    return spelled.worker("--app", "app:scheduler", **SHORT_LEASE, **environment)


def alone(place: Place, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker with a relative URL of the queue alone."""
    spelled = replace(place, queue_url=SPELLINGS["relative"](place.folder))
    return spelled.worker("--app", "app:scheduler", REVERIE_MEMORY__URL="null", **SHORT_LEASE, **environment)


PAIRS = {
    "mixed is killed": (partial(mixed, "relative"), alone),
    "alone is killed": (alone, partial(mixed, "relative")),
    "link is killed": (partial(mixed, "link"), alone),
}


@pytest.mark.parametrize("memory_id", ["random", "fixed"])
@pytest.mark.parametrize("pair", PAIRS)
def test_killed_between_effects_and_settlement_and_finished_by_another_spelling(
    place: Place, pair: str, memory_id: str
) -> None:
    """Both processes are there. Effects apart from the settlement would make two memories of random ids."""
    first, second = PAIRS[pair]
    with place.scheduler() as scheduler:
        scheduler.submit("note", user_id="ann", item_id="1", content=memory_id)
        with first(place, REVERIE_FAILPOINT="inside_settle", HOLD="1") as killed:
            wait_until(lambda: scheduler.status("ann", "1")[0].status == "in_progress")
            with second(place):
                wait_until(lambda: len(scheduler.control.workers()) == 2)
                os.close(os.open(place.folder / "go", os.O_WRONLY))
                assert killed.wait(60) == -signal.SIGKILL
                item = scheduler.wait("1", user_id="ann", timeout=60)
        assert (item.status, item.attempts, item.losses) == ("completed", 1, 1)
        assert len(scheduler.memory.search("tea", user_id="ann")) == 1


@pytest.mark.parametrize("spelling", [partial(mixed, "relative"), alone], ids=["mixed", "alone"])
def test_there_is_no_step_between_effects_and_settlement(place: Place, spelling) -> None:
    with place.scheduler() as scheduler, spelling(place, REVERIE_FAILPOINT="between_effects_and_settle"):
        scheduler.submit("note", user_id="ann", item_id="1", content="random")
        assert scheduler.wait("1", user_id="ann", timeout=60).losses == 0
        assert len(scheduler.memory.search("tea", user_id="ann")) == 1
