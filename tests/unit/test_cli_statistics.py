"""`reverie statistics`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from reverie import Scheduler
from reverie.cli.main import cli
from reverie.settings import load_settings
from reverie.testing import drain

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REVERIE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    url = f"sqlite:///{tmp_path / 'r.db'}"
    settings = load_settings(queue={"url": url}, memory={"embedding": "none"})
    with Scheduler(settings=settings).used() as scheduler:
        for user in ("ann", "ann", "bob"):
            scheduler.memory.add("I like tea", user_id=user)
        drain(scheduler)
        for user in ("ann", "bob"):
            scheduler.submit("statistics_update", user_id=user)
        drain(scheduler)
    return url


def test_people_see_a_table_and_programs_json(url: str) -> None:
    shown = CliRunner().invoke(cli, ["statistics", "--url", url]).output
    lines = [line.split() for line in shown.splitlines() if "long_term" in line]
    assert [line[:4] for line in lines] == [
        ["ann", "ann", "2", "+2"],
        ["bob", "bob", "1", "+1"],
        ["together", "2", "tenants", "3"],
    ]
    found = json.loads(
        CliRunner().invoke(cli, ["statistics", "--json", "--user", "bob", "--url", url]).output
    )
    assert [(one["user_id"], one["kinds"]) for one in found["tenants"]] == [("bob", {"turn": 1})]
    assert (found["total"]["items"], found["tenants_with_memories"]) == (3, 2)
