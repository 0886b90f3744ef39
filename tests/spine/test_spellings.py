"""One SQLite file is one file however its URL is spelled, also while processes are killed."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reverie import Scheduler
from reverie.settings import load_settings
from reverie.storage.location import sqlite_path
from support.places import Place, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = """
import uuid
from reverie import Done, Remember, Scheduler
scheduler = Scheduler()

@scheduler.handler("note")
def note(message):
    return Done(effects=[Remember(memory_id=str(uuid.uuid4()), text="green tea")])
"""
SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.3"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder with the file, a link to it, and a link to the folder itself."""
    with sqlite(tmp_path) as opened:
        (tmp_path / "app.py").write_text(APP)
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


@pytest.mark.parametrize("memory", ["relative", "link"])
def test_killed_inside_the_settlement_by_one_spelling_and_finished_by_another(
    place: Place, memory: str
) -> None:
    """Memory ids are random: effects that were applied apart from the settlement would make two."""
    first = replace(place, memory_url=SPELLINGS[memory](place.folder))
    second = replace(place, queue_url=SPELLINGS["relative"](place.folder), memory_url="")
    with place.scheduler() as scheduler:
        scheduler.submit("note", user_id="ann", item_id="1")
    with first.worker("--app", "app:scheduler", REVERIE_FAILPOINT="inside_settle", **SHORT_LEASE) as worker:
        assert worker.wait(60) == -signal.SIGKILL
    with (
        second.worker("--app", "app:scheduler", REVERIE_MEMORY__URL="null", **SHORT_LEASE),
        place.scheduler() as scheduler,
    ):
        item = scheduler.wait("1", user_id="ann")
        assert (item.status, item.losses) == ("completed", 1)
        assert len(scheduler.memory.search("tea", user_id="ann")) == 1
