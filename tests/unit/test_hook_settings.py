"""The settings of hooks: the same folders as everywhere, and nothing from the agent's folder."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from reverie.capture import hook_settings
from reverie.capture.hook_exclusions import matches
from reverie.capture.hook_settings import HookSettings, config_folder, default_data_folder, login_name


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "REVERIE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


def write(**fields: Any) -> None:
    folder = Path(config_folder())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hook.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("value", [None, "", "relative", "/else/where", " "])
def test_the_folders_are_those_of_platformdirs(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        monkeypatch.setenv("XDG_DATA_HOME", value)
    if value == "relative":  # the specification says to ignore it; the agent's folder would decide
        assert config_folder().startswith("/")
        return
    assert config_folder() == platformdirs.user_config_dir("reverie")
    assert default_data_folder() == platformdirs.user_data_dir("reverie")


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME", None])
def test_the_login_name_is_that_of_getpass(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "ann")
    assert login_name() == getpass.getuser()


def test_defaults(tmp_path: Path) -> None:
    settings = hook_settings.load()
    data = f"{tmp_path}/.local/share/reverie"
    assert {name: getattr(settings, name) for name in HookSettings.__slots__} == {
        "data_dir": data,
        "spool_dir": f"{data}/spool",
        "enabled": True,
        "off_projects": [],
        "exclude_tools": [],
        "exclude_projects": [],
        "hook_max_bytes": 262_144,
        "context_budget_ms": 150,
        "start_worker": True,
        "python": sys.executable,
        "problem": "",
    }


def test_all_that_can_be_set(tmp_path: Path) -> None:
    given = {
        "data_dir": str(tmp_path / "data"),
        "spool_dir": str(tmp_path / "queue-spool"),
        "enabled": False,
        "off_projects": ["remote:example.org/a"],
        "exclude_tools": ["Bash"],
        "exclude_projects": ["/srv"],
        "hook_max_bytes": 1000,
        "context_budget_ms": 20,
        "start_worker": False,
        "python": "/usr/bin/python3",
    }
    write(version=1, worker_idle_exit_s=None, unknown="is ignored", **given)
    settings = hook_settings.load()
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.problem == ""


def test_the_environment_names_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data_dir=str(tmp_path / "one"), spool_dir=str(tmp_path / "two"))
    monkeypatch.setenv("REVERIE_DATA_DIR", "~/three")
    settings = hook_settings.load()
    assert (settings.data_dir, settings.spool_dir) == (f"{tmp_path}/three", f"{tmp_path}/three/spool")
    monkeypatch.setenv("REVERIE_DATA_DIR", "here")
    assert hook_settings.load().data_dir == f"{tmp_path}/one"
    monkeypatch.setenv("REVERIE_DATA_DIR", str(tmp_path / "one"))
    assert hook_settings.load().spool_dir == f"{tmp_path}/two"


@pytest.mark.parametrize(
    "bad",
    [
        {"enabled": "no"},
        {"exclude_tools": "Bash"},
        {"exclude_tools": [1]},
        {"exclude_projects": {}},
        {"off_projects": "x"},
        {"data_dir": "relative"},
        {"data_dir": 1},
    ],
)
def test_a_bad_field_that_decides_what_is_kept_switches_capture_off(bad: dict[str, Any]) -> None:
    write(**bad)
    settings = hook_settings.load()
    assert not settings.enabled
    assert next(iter(bad)) in settings.problem


@pytest.mark.parametrize(
    ("bad", "value"),
    [
        ({"hook_max_bytes": "many"}, 262_144),
        ({"hook_max_bytes": True}, 262_144),
        ({"context_budget_ms": -5}, 0),
        ({"context_budget_ms": 10**9}, 10_000),
        ({"start_worker": "yes"}, True),
        ({"python": "python3"}, sys.executable),
    ],
)
def test_another_bad_field_has_its_default(bad: dict[str, Any], value: object) -> None:
    write(**bad)
    settings = hook_settings.load()
    assert settings.enabled
    assert getattr(settings, next(iter(bad))) == value


@pytest.mark.parametrize(
    ("name", "pattern", "is_one"),
    [
        ("Bash", "Bash", True),
        ("Bash", "bash", False),
        ("mcp__a__b", "mcp__*", True),
        ("mcp__a__b", "*__b", True),
        ("mcp__a__b", "mcp__*__b", True),
        ("mcp__b", "mcp__*__b", False),
        ("abcabc", "*b*b*", True),
        ("abc", "*b*b*", False),
        ("", "*", True),
        ("aXb", "a*X*X*b", False),
        ("mcp__mail__x", "mcp__mai?__*", True),
        ("Read", "Rea?", True),
        ("Rea", "Rea?", False),
        ("Reads", "Rea?", False),
        ("", "?", False),
        ("a*c", "a*c", True),
        ("aaab", "*aab", True),
        ("github.com/ann/app", "github.com/ann/*", True),
        ("github.com/annabel/app", "github.com/ann/*", False),
    ],
)
def test_patterns(name: str, pattern: str, is_one: bool) -> None:
    assert matches(name, pattern) is is_one
