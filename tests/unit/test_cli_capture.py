"""`reverie capture`, and what `reverie doctor` says about hooks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reverie.capture import hook_log
from reverie.capture.hook_input import BadCallError
from reverie.capture.project import project_of
from support.agent_home import AgentHome


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentHome:
    (tmp_path / "home").mkdir()
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    return AgentHome(tmp_path / "home")


@pytest.fixture
def data(home: AgentHome) -> Path:
    folder = home.folder / "data"
    folder.mkdir(mode=0o700)
    return folder


def status(home: AgentHome, *words: str) -> dict[str, Any]:
    return home.answer("capture", "status", *words)


def findings(home: AgentHome, check: str) -> list[tuple[str, str, str]]:
    """The level, the words and the remedy of each finding of a check of `reverie doctor`."""
    rows = json.loads(home.run("doctor", "--json").stdout)
    return [(row["level"], row["what"], row.get("remedy", "")) for row in rows if row["check"] == check]


def test_capture_is_switched_off_and_on(home: AgentHome) -> None:
    assert status(home)["enabled"] is True
    assert "from the next hook on" in home.does("capture", "off").stdout
    assert (status(home)["enabled"], json.loads(home.hook_file.read_text())["enabled"]) == (False, False)
    home.does("install", "claude-code")
    assert status(home)["enabled"] is False, "another install does not switch it on"
    home.does("capture", "on")
    assert status(home)["enabled"] is True


def test_one_project_is_off_in_its_clones_too(home: AgentHome, tmp_path: Path) -> None:
    for name in ("one", "two"):
        subprocess.run(["git", "init", "--quiet", name], cwd=tmp_path, check=True)
        url = "https://ann:secret@host/app.git"
        subprocess.run(["git", "remote", "add", "origin", url], cwd=tmp_path / name, check=True)
    home.does("capture", "off", "--project", str(tmp_path / "one"))
    assert status(home)["enabled"] is True
    for name, captured in (("one", False), ("two", False), ("app", True)):
        assert status(home, str(tmp_path / name))["captured"] is captured
    assert "secret" not in home.hook_file.read_text()
    assert status(home, "--project")["project"] == "app"
    home.does("capture", "on", str(tmp_path / "two"))
    assert status(home, str(tmp_path / "two"))["captured"] is True
    left = json.loads(home.hook_file.read_text())["off_projects"]
    assert "remote:host/app" not in left


def test_status_tells_what_waits_and_what_was_lost(home: AgentHome, data: Path) -> None:
    spool = data / "spool"
    spool.mkdir()
    (spool / f"{1:020d}-{'a' * 16}.json").write_text("{}")
    (spool / "foreign").write_text("")
    for _ in range(3):
        hook_log.count_loss(str(data))
    about = status(home)
    assert (about["waiting_files"], about["lost_events"], about["worker"]) == (1, 3, False)
    home.config.mkdir(parents=True)
    home.hook_file.write_text("{")
    about = status(home)
    assert about["enabled"] is False
    assert "nothing is captured" in about["problem"]


def test_a_folder_that_is_none_is_refused(home: AgentHome, tmp_path: Path) -> None:
    assert "is no folder" in home.run("capture", "off", str(tmp_path / "gone")).stderr
    assert not home.hook_file.exists()


# -- doctor -----------------------------------------------------------------------------------------------


def test_doctor_is_content_with_hooks_that_work(home: AgentHome, data: Path) -> None:
    home.does("install", "claude-code")
    for check in ("hooks", "hook_losses", "hook_errors", "hook_spool"):
        assert [level for level, _, _ in findings(home, check) if level not in {"ok", "note"}] == []


def test_doctor_tells_of_losses_and_errors_of_hooks(home: AgentHome, data: Path) -> None:
    home.does("install", "claude-code")
    hook_log.count_loss(str(data))
    hook_log.log_error(
        str(data), "Stop", BadCallError("the input is empty"), "the hook could not do its work"
    )
    ((level, lost, remedy),) = findings(home, "hook_losses")
    assert (level, lost.startswith("1 event of an agent was lost")) == ("warning", True)
    assert str(data / "hook-losses") in remedy
    ((level, failed, _),) = findings(home, "hook_errors")
    assert (level, "the input is empty" in failed) == ("warning", True)


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (None, "error", "hooks capture nothing"),
        ({"exclude_tools": "Bash"}, "error", "hooks capture nothing"),
        ({"data_dir": "/gone"}, "warning", "hooks use the data folder /gone"),
        ({"python": "/gone/python"}, "warning", "there is no program /gone/python"),
    ],
)
def test_doctor_tells_of_settings_of_hooks_that_do_not_fit(
    home: AgentHome, data: Path, change: dict[str, Any] | None, level: str, words: str
) -> None:
    home.does("install", "claude-code")
    fields = json.loads(home.hook_file.read_text())
    home.hook_file.write_text("{" if change is None else json.dumps(fields | change))
    found = findings(home, "hooks")
    assert [one[0] for one in found] == [level]
    assert words in found[0][1]


def test_doctor_finds_events_where_no_worker_looks(home: AgentHome, data: Path) -> None:
    home.does("install", "claude-code")
    other = home.folder / "other"
    other.mkdir()
    (other / f"{1:020d}-{'a' * 16}.json").write_text("{}")
    fields = json.loads(home.hook_file.read_text())
    home.hook_file.write_text(json.dumps(fields | {"spool_dir": str(other)}))
    ((level, words, _),) = findings(home, "hook_spool")
    assert (level, f"1 event of an agent waits in {other}" in words) == ("warning", True)


def test_the_project_of_the_folder_is_meant_by_default(home: AgentHome) -> None:
    home.does("capture", "off", "--project")
    assert json.loads(home.hook_file.read_text())["off_projects"] == project_of(str(Path.cwd())).keys
