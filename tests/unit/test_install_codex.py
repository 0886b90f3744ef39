"""`reverie install codex` changes what it must, and `uninstall` changes it back."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.capture.hook import KEPT_EVENTS
from reverie.cli.agents import codex
from support.agent_home import AgentHome, agent_home

BIN = Path(sys.executable).parent
CONFIG = ".codex/config.toml"
HOOKS = ".codex/hooks.json"
OLD = """# my settings
model = "o4"  # the good one

[mcp_servers.docs]
command = "docs"

# ---- profiles ----
[profiles.fast]
model_reasoning_effort = "low"
"""
OLD_HOOKS = """
[[hooks.Stop]]
matcher = "x"

[[hooks.Stop.hooks]]
type = "command"
command = "say done"
"""


@pytest.fixture
def home(tmp_path: Path) -> AgentHome:
    return AgentHome(tmp_path.resolve())


def config(home: AgentHome) -> dict[str, Any]:
    return tomllib.loads((home.folder / CONFIG).read_text())


def test_a_person_gets_hooks_and_the_server(home: AgentHome) -> None:
    home.write(CONFIG, OLD)
    shown = home.does("install", "codex")
    text = (home.folder / CONFIG).read_text()
    assert text.startswith(OLD)
    server = {"command": sys.executable, "args": ["-EP", str(BIN / "reverie"), "mcp"]}
    assert config(home)["mcp_servers"]["reverie"] == server
    hooks = json.loads((home.folder / HOOKS).read_text())
    assert hooks == {
        "hooks": {
            event: [{"hooks": [handler]}]
            for event, handler in codex.handlers(sys.executable, "-EP", str(BIN / "reverie-hook")).items()
        }
    }
    assert "/hooks" in shown.stderr


def test_every_hook_is_an_event_of_codex_and_survives_a_shell() -> None:
    handlers = codex.handlers("/a b/reverie-hook")
    assert set(handlers) < set(KEPT_EVENTS)
    assert handlers["SessionEnd"]["timeout"] <= 3
    for event, handler in handlers.items():
        assert shlex.split(handler["command"]) == ["/a b/reverie-hook", "codex", event]
        assert not handler.get("async")


@pytest.mark.parametrize(
    "content",
    [
        OLD,
        OLD + OLD_HOOKS,
        OLD.replace("\n", "\r\n"),
        OLD.rstrip(),
        "",
        "# only a comment",
        'mcp_servers = {a = {command = "x"}}\n',
        'hooks = {Stop = [{hooks = [{type = "command", command = "x"}]}]}\n',
        None,
    ],
)
def test_uninstall_leaves_what_was_there(home: AgentHome, content: str | None) -> None:
    home.write(CONFIG, content)
    before = home.files()
    home.does("install", "codex")
    assert config(home)["mcp_servers"]["reverie"]
    installed = home.files()
    home.does("install", "codex")
    assert home.files() == installed
    home.does("uninstall", "codex")
    assert home.files() == before


def test_hooks_are_where_hooks_are(home: AgentHome) -> None:
    home.write(CONFIG, OLD + OLD_HOOKS)
    home.does("install", "codex")
    assert not (home.folder / HOOKS).exists()
    groups = config(home)["hooks"]["Stop"]
    assert groups[0]["matcher"] == "x"
    assert groups[1]["hooks"][0]["command"].endswith("reverie-hook codex Stop")


def test_the_state_of_hooks_is_no_hook(home: AgentHome) -> None:
    home.write(CONFIG, '[hooks.state."x"]\ntrusted_hash = "sha256:1"\n')
    home.does("install", "codex")
    assert (home.folder / HOOKS).exists()


def test_a_file_of_hooks_keeps_what_it_has(home: AgentHome) -> None:
    theirs = {"description": "mine", "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}}
    path = home.write(HOOKS, json.dumps(theirs))
    before = home.files()
    home.does("install", "codex")
    assert json.loads(path.read_text())["hooks"]["Stop"][0] == theirs["hooks"]["Stop"][0]
    home.does("uninstall", "codex")
    assert home.files() == before


@pytest.mark.parametrize("hooks", ["", OLD_HOOKS])
def test_comments_and_changes_of_others_stay(home: AgentHome, hooks: str) -> None:
    home.write(CONFIG, OLD + hooks)
    home.does("install", "codex")
    path = home.folder / CONFIG
    theirs = '\n# trusted by me\n[projects."/work"]\ntrust_level = "trusted"\n'
    path.write_text(path.read_text().replace("the good one", "the best one") + theirs)
    home.does("uninstall", "codex")
    assert path.read_text() == OLD.replace("the good one", "the best one") + hooks + theirs


def test_an_entry_that_was_written_in_another_way_is_removed_too(home: AgentHome) -> None:
    path = home.write(CONFIG, OLD)
    home.does("install", "codex")
    entry = f'{{command = "{BIN}/reverie", args = ["mcp"], startup_timeout_sec = 30}}'
    path.write_text(f'mcp_servers = {{reverie = {entry}, docs = {{command = "docs"}}}} # mine\n')
    home.does("uninstall", "codex")
    assert config(home) == {"mcp_servers": {"docs": {"command": "docs"}}}
    assert "# mine" in path.read_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('model = "x"\nmodel = "y"\n', "line 2"),
        ("model = \n", "line 1, column 9"),
        (b"\xff", "UTF-8 (byte 0)"),
        ("mcp_servers = 1\n", "something else than an object at 'mcp_servers'"),
        ('[mcp_servers.reverie]\ncommand = "other"\n', "is not this one"),
    ],
)
def test_a_broken_file_is_left_alone(home: AgentHome, content: str | bytes, words: str) -> None:
    home.write(CONFIG, content)
    before = home.files()
    refused = home.run("install", "codex")
    assert refused.exit_code == 1
    assert words in refused.stderr
    assert home.files() == before


def test_the_folder_of_the_variable_is_used(home: AgentHome) -> None:
    home.extra["CODEX_HOME"] = str(home.folder / "other")
    home.does("install", "codex")
    assert set(home.files()) == {"other/config.toml", "other/hooks.json"}


def test_a_project_has_its_own_folder(home: AgentHome, monkeypatch: pytest.MonkeyPatch) -> None:
    project = home.folder / "app"
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    monkeypatch.chdir(project)
    shown = home.does("install", "codex", "--project")
    assert (project / ".codex/config.toml").exists()
    assert (project / ".codex/hooks.json").exists()
    assert not (home.folder / ".codex").exists()
    assert "that you trust" in shown.stderr
    assert "git does not ignore config.toml" in shown.stderr
    home.does("uninstall", "codex", "--project")
    assert not (project / ".codex").exists()


def test_hooks_that_are_switched_off_are_mentioned(home: AgentHome) -> None:
    home.write(CONFIG, "[features]\nhooks = false\n")
    assert "features.hooks = false" in home.does("install", "codex").stderr


def test_a_plug_in_that_does_the_same_is_noticed(home: AgentHome) -> None:
    home.write(CONFIG, '[plugins."reverie@here"]\nenabled = true\n')
    hook = {"type": "command", "command": "reverie-hook codex Stop"}
    name = ".codex/plugins/cache/here/reverie/1.0/hooks/hooks.json"
    home.write(name, json.dumps({"hooks": {"Stop": [{"hooks": [hook]}]}}))
    before = home.files()
    refused = home.run("install", "codex")
    assert "the plug-in reverie@here" in refused.stderr
    assert home.files() == before


# -- any file ---------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=6)
names = st.sampled_from(["a", "b", "dotted.key", "ключ", "x y"])
values = st.one_of(
    words,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False),
    st.lists(words, max_size=2),
)
tables = st.dictionaries(names, values, max_size=3)
documents = st.fixed_dictionaries(
    {},
    optional={
        "model": words,
        "mcp_servers": st.dictionaries(names, tables, max_size=2),
        "profiles": st.dictionaries(names, tables, max_size=2),
        "hooks": st.fixed_dictionaries(
            {},
            optional={
                "Stop": st.lists(
                    st.fixed_dictionaries(
                        {"hooks": st.lists(st.fixed_dictionaries({"command": words}), min_size=1, max_size=2)}
                    ),
                    min_size=1,
                    max_size=2,
                ),
                "state": tables,
            },
        ),
    },
)
line_ends = st.sampled_from(["\n", "\r\n"])
comments = st.sampled_from(["", "# a comment\n", "\n\n# [mcp_servers.reverie]\n"])


def written(value: dict[str, Any], comment: str, line_end: str) -> bytes:
    text = comment + tomlkit.dumps(value).replace("\n[", f"\n{comment}[")
    return text.replace("\n", line_end).encode()


@settings(max_examples=150)
@given(documents, comments, line_ends)
def test_install_and_uninstall_leave_any_file_as_it_was(
    value: dict[str, Any], comment: str, line_end: str
) -> None:
    with agent_home() as home:
        path = home.write(CONFIG, written(value, comment, line_end))
        old, before = tomllib.loads(path.read_bytes().decode()), home.files()
        home.change(codex)
        now = config(home)
        assert now["mcp_servers"].pop("reverie")["args"][-1] == "mcp"
        assert {name: now.get(name) for name in old.keys() - {"hooks", "mcp_servers"}} == {
            name: old[name] for name in old.keys() - {"hooks", "mcp_servers"}
        }
        home.change(codex, removes=True)
        assert home.files() == before


@settings(max_examples=150)
@given(documents, comments, tables, tables)
def test_exactly_the_changes_of_others_stay(
    value: dict[str, Any], comment: str, server: dict[str, Any], table: dict[str, Any]
) -> None:
    with agent_home() as home:
        path = home.write(CONFIG, written(value, comment, "\n"))
        added = tomlkit.dumps({"mcp_servers": {"theirs": server}, "another": {"table": table}})
        expected = tomllib.loads(path.read_bytes().decode() + "\n" + added) if value else None
        home.change(codex)
        path.write_bytes(path.read_bytes() + f"\n# theirs\n{added}".encode())
        home.change(codex, removes=True)
        text = path.read_bytes().decode()
        if expected is not None:
            assert without_empty(tomllib.loads(text)) == without_empty(expected)
        assert text.count("# theirs") == 1
        assert text.count("# a comment") == written(value, comment, "\n").count(b"# a comment")


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part != {}}
