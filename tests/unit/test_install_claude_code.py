"""`reverie install claude-code` changes what it must, and `uninstall` changes it back."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.capture.hook import KEPT_EVENTS
from reverie.cli.agents import claude_code, edits
from reverie.cli.agents.agent import command_words
from reverie.cli.agents.errors import AgentFileError
from reverie.cli.agents.json_text import appended, parsed, put, without
from support.agent_home import AgentHome, agent_home

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SETTINGS = ".claude/settings.json"
SERVERS = ".claude.json"
OLD = """{
    "model": "opus",
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "Stop": [
            {"hooks": [{"type": "command", "command": "say done"}]}
        ]
    }
}
"""


@pytest.fixture
def home(tmp_path: Path) -> AgentHome:
    return AgentHome(tmp_path.resolve())


@pytest.fixture
def project(home: AgentHome, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home.folder / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def value_of(path: Path) -> Any:
    return json.loads(path.read_bytes())


def own(value: Any) -> dict[str, Any]:
    """The own handler of each event."""
    return {
        event: handler
        for event, groups in value["hooks"].items()
        for group in groups
        for handler in group["hooks"]
        if any(str(word).endswith("reverie-hook") for word in [handler["command"], *handler.get("args", [])])
    }


def test_a_person_gets_hooks_and_the_server(home: AgentHome) -> None:
    shown = home.does("install", "claude-code")
    value = value_of(home.folder / SETTINGS)
    assert own(value) == claude_code.handlers(sys.executable, "-EP", str(BIN / "reverie-hook"))
    server = {"type": "stdio", "command": sys.executable, "args": ["-EP", str(BIN / "reverie"), "mcp"]}
    assert value_of(home.folder / SERVERS) == {"mcpServers": {"reverie": server}}
    assert f"created {home.folder / SETTINGS}" in shown.stdout
    assert "next: " in shown.stderr


def test_every_hook_is_synchronous_and_takes_no_shell() -> None:
    handlers = claude_code.handlers("/x/python", "-EP", "/x/reverie-hook")
    assert set(handlers) == set(KEPT_EVENTS) - {"PostToolBatch"}
    for event, handler in handlers.items():
        assert handler["args"] == ["-EP", "/x/reverie-hook", "claude-code", event]
        assert set(handler) == {"type", "command", "args", "timeout"}
        assert 1 < handler["timeout"] <= 30


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_what_was_installed_imports_nothing_from_the_folder_of_the_agent(
    home: AgentHome, tmp_path: Path, agent: str
) -> None:
    (tmp_path / "reverie").mkdir()
    for name in ("reverie/__init__.py", "sitecustomize.py", "typer.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    home.does("install", agent)
    if agent == "codex":
        hooks = json.loads((home.folder / ".codex/hooks.json").read_text())["hooks"]
        hook = shlex.split(hooks["Stop"][0]["hooks"][0]["command"])
        server = tomllib.loads((home.folder / ".codex/config.toml").read_text())["mcp_servers"]["reverie"]
    else:
        handler = own(value_of(home.folder / SETTINGS))["Stop"]
        hook = [handler["command"], *handler["args"]]
        server = value_of(home.folder / SERVERS)["mcpServers"]["reverie"]
    environment = home.environment | {"PYTHONPATH": "."}
    given = json.dumps({"session_id": "s", "cwd": str(tmp_path), "last_assistant_message": "Done."})
    fields = value_of(home.hook_file) | {"start_worker": False}
    (home.hook_file).write_text(json.dumps(fields))
    ran = subprocess.run(
        hook, input=given, cwd=tmp_path, env=environment, text=True, capture_output=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("", "")
    assert len(list(Path(fields["spool_dir"]).glob("*.json"))) == 1
    words = [server["command"], *server["args"], "--help"]
    subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("content", "is_python"),
    [
        ("#!/opt/venv/bin/python3\nimport sys\n", True),
        ("#!/bin/sh\n'''exec' \"/a long/path/python\" \"$0\" \"$@\"\n' '''\n", True),
        ('#!/bin/sh\nexec /nix/store/x/.reverie-hook-wrapped "$@"\n', False),
    ],
)
def test_a_command_that_is_no_python_is_started_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, is_python: bool
) -> None:
    path = tmp_path / "reverie-hook"
    path.write_text(content)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    words = [str(path)]
    assert command_words("reverie-hook") == ([sys.executable, "-EP", *words] if is_python else words)


def test_what_was_there_stays_as_it_is_written(home: AgentHome) -> None:
    path = home.write(SETTINGS, OLD)
    home.does("install", "claude-code")
    text = path.read_text()
    for line in OLD.splitlines()[:5]:
        assert line in text
    value = value_of(path)
    assert value["hooks"]["Stop"][0] == json.loads(OLD)["hooks"]["Stop"][0]
    assert '    "hooks": {\n        "Stop": [\n            {"hooks"' in text


def test_a_second_install_changes_nothing(home: AgentHome) -> None:
    home.write(SETTINGS, OLD)
    home.does("install", "claude-code")
    before = home.files()
    rows = home.answer("install", "claude-code")["files"]
    assert {row["status"] for row in rows} == {"unchanged"}
    assert home.files() == before


def test_an_install_of_another_place_is_replaced(home: AgentHome, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.write(SETTINGS, OLD).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(claude_code, "command_words", lambda name: [f"/old/bin/{name}"])
        home.does("install", "claude-code")
        assert own(value_of(home.folder / SETTINGS))["Stop"]["command"] == "/old/bin/reverie-hook"
    home.does("install", "claude-code")
    text = (home.folder / SETTINGS).read_text() + (home.folder / SERVERS).read_text()
    assert "/old/bin" not in text
    assert len(value_of(home.folder / SETTINGS)["hooks"]["Stop"]) == 2
    home.does("uninstall", "claude-code")
    assert home.files() == {SETTINGS: before}


@pytest.mark.parametrize("content", [OLD, "{}", '{"a":1}', "", " \n", "\ufeff{}\r\n", None])
def test_uninstall_leaves_what_was_there(home: AgentHome, content: str | None) -> None:
    home.write(SETTINGS, content)
    before = home.files()
    home.does("install", "claude-code")
    assert home.files() != before
    shown = home.does("uninstall", "claude-code")
    assert home.files() == before
    assert ("deleted" in shown.stdout) or content is not None
    assert not (home.config / "installed").exists()


def test_uninstall_without_an_install_changes_nothing(home: AgentHome) -> None:
    path = home.write(SETTINGS, OLD)
    rows = home.answer("uninstall", "claude-code")["files"]
    assert [row["status"] for row in rows] == ["unchanged", "absent"]
    assert path.read_text() == OLD


def test_a_lost_record_does_not_keep_uninstall_from_its_work(home: AgentHome) -> None:
    path = home.write(SETTINGS, OLD)
    home.does("install", "claude-code")
    for record in (home.config / "installed").iterdir():
        record.unlink()
    home.does("uninstall", "claude-code")
    assert value_of(path) == json.loads(OLD)


def test_changes_by_hand_stay_as_they_are_written(home: AgentHome) -> None:
    path = home.write(SETTINGS, OLD)
    home.does("install", "claude-code")
    path.write_text(path.read_text().replace('"model": "opus"', '"model":   "sonnet",\n    "tui": true'))
    home.does("uninstall", "claude-code")
    assert path.read_text() == OLD.replace('"model": "opus"', '"model":   "sonnet",\n    "tui": true')


def test_an_own_hook_whose_timeout_was_changed_is_removed_and_a_foreign_one_beside_it_stays(
    home: AgentHome,
) -> None:
    path = home.write(SETTINGS, "{}")
    home.does("install", "claude-code")
    value = value_of(path)
    value["hooks"]["Stop"][0]["hooks"][0]["timeout"] = 99
    value["hooks"]["PreCompact"][0]["hooks"].append({"type": "command", "command": "mine"})
    path.write_text(json.dumps(value))
    assert home.answer("install", "claude-code")["files"][1]["status"] == "unchanged"
    home.does("uninstall", "claude-code")
    mine = {"hooks": [{"type": "command", "command": "mine"}]}
    assert value_of(path) == {"hooks": {"PreCompact": [mine]}}


# -- one file, several scopes -----------------------------------------------------------------------------


def test_a_project_has_files_that_git_does_not_track(home: AgentHome, project: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    shown = home.does("install", "claude-code", "--project")
    assert set(own(value_of(project / ".claude/settings.local.json"))) == set(claude_code.EVENTS)
    assert not (home.folder / SETTINGS).exists()
    servers = value_of(home.folder / SERVERS)["projects"][str(project)]["mcpServers"]
    assert servers["reverie"]["args"] == ["-EP", str(BIN / "reverie"), "mcp"]
    assert "git does not ignore settings.local.json" in shown.stderr
    (project / ".git/info/exclude").write_text(".claude/settings.local.json\n")
    assert "git does not ignore" not in home.does("install", "claude-code", "--project").stderr


def test_a_file_that_git_tracks_is_refused(home: AgentHome, project: Path) -> None:
    path = home.write("app/.claude/settings.local.json", "{}")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", "-C", str(project), *command], check=True)
    refused = home.run("install", "claude-code", "--project")
    assert refused.exit_code == 1
    assert "is tracked by git" in refused.stderr
    assert path.read_text() == "{}"


def test_a_worktree_is_known_by_the_folder_of_its_repository(
    home: AgentHome, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    for command in (
        ["init", "--quiet"],
        [*name, "commit", "--quiet", "--allow-empty", "-m", "first"],
        ["worktree", "add", "--quiet", str(home.folder / "tree")],
    ):
        subprocess.run(["git", "-C", str(project), *command], check=True)
    monkeypatch.chdir(home.folder / "tree")
    home.does("install", "claude-code", "--project")
    assert (home.folder / "tree/.claude/settings.local.json").exists()
    assert list(value_of(home.folder / SERVERS)["projects"]) == [str(project)]


@pytest.mark.parametrize("first", ["--user", "--project"])
@pytest.mark.parametrize("content", [None, '{"numStartups": 3}'])
def test_scopes_are_removed_in_any_order(
    home: AgentHome, project: Path, first: str, content: str | None
) -> None:
    home.write(SERVERS, content)
    before = home.files()
    home.does("install", "claude-code", "--user")
    home.does("install", "claude-code", "--project")
    home.does("uninstall", "claude-code", first)
    rest = value_of(home.folder / SERVERS)
    assert ("mcpServers" in rest, "projects" in rest) == (first == "--project", first == "--user")
    home.does("uninstall", "claude-code", "--project" if first == "--user" else "--user")
    after = home.files()
    assert after.keys() == before.keys()
    assert all(json.loads(after[name]) == json.loads(before[name]) for name in after if name.endswith("n"))


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{\n  "a" 1\n}', "settings.json:2:7 is not JSON"),
        ('{\n  "a": 1,\n}', "is not JSON"),
        ('{\n  // a comment\n  "a": 1\n}', "settings.json:2:3 is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"a": NaN}', "NaN"),
        (b"\xff{}", "UTF-8 (byte 0)"),
        ('{"hooks": []}', "something else than an object at 'hooks'"),
        ('{"hooks": {"Stop": {}}}', "something else than a list at 'hooks.Stop'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_file_is_left_alone(home: AgentHome, content: str | bytes, words: str) -> None:
    home.write(SETTINGS, content)
    before = home.files()
    refused = home.run("install", "claude-code")
    assert refused.exit_code == 1
    assert words in refused.stderr
    assert home.files() == before


def test_a_foreign_server_of_this_name_is_left_alone(home: AgentHome) -> None:
    home.write(SERVERS, '{"mcpServers": {"reverie": {"command": "other"}}}')
    before = home.files()
    refused = home.run("install", "claude-code")
    assert "is not this one" in refused.stderr
    assert home.files() == before
    home.does("uninstall", "claude-code")
    assert home.files() == before


def test_a_server_by_hand_stays(home: AgentHome) -> None:
    path = home.write(SERVERS, '{"mcpServers": {"reverie": {"command": "reverie", "args": ["mcp"]}}}')
    before = path.read_bytes()
    home.does("install", "claude-code")
    home.does("uninstall", "claude-code")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (SETTINGS, {"enabledPlugins": {"reverie@anywhere": True}}),
        (SETTINGS, {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "reverie-hook x Stop"}]}]}}),
        (".claude/plugins/installed_plugins.json", {"plugins": {"mem@x": [{"installPath": "PLUGIN"}]}}),
        (".claude/plugins/installed_plugins.json", {"plugins": {"mem@x": {"installPath": "PLUGIN"}}}),
    ],
)
def test_a_plug_in_that_does_the_same_is_noticed(home: AgentHome, name: str, content: Any) -> None:
    home.write(name, json.dumps(content).replace("PLUGIN", str(ROOT / "plugin")))
    before = home.files()
    refused = home.run("install", "claude-code")
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert home.files() == before
    home.does("install", "claude-code", "--force")
    assert home.files() != before


def test_a_plug_in_that_is_disabled_does_not_count(home: AgentHome) -> None:
    home.write(SETTINGS, '{"enabledPlugins": {"reverie@anywhere": false, "mem@x": false}}')
    installed = {"plugins": {"mem@x": [{"installPath": str(ROOT / "plugin")}]}}
    home.write(".claude/plugins/installed_plugins.json", json.dumps(installed))
    home.does("install", "claude-code")


def test_a_change_between_reading_and_writing_is_noticed(
    home: AgentHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home.write(SETTINGS, OLD)
    write_record = edits.Edit._write_record

    def changed_meanwhile(edit: edits.Edit) -> None:
        write_record(edit)
        path.write_text('{"another": "program"}')

    monkeypatch.setattr(edits.Edit, "_write_record", changed_meanwhile)
    refused = home.run("install", "claude-code")
    assert refused.exit_code == 1
    assert "changed by another program" in refused.stderr
    assert path.read_text() == '{"another": "program"}'
    monkeypatch.undo()
    home.does("uninstall", "claude-code")
    assert path.read_text() == '{"another": "program"}'
    assert list(path.parent.iterdir()) == [path]


def test_links_and_permissions_stay(home: AgentHome) -> None:
    target = home.write("dotfiles/claude.json", OLD)
    target.chmod(0o640)
    link = home.folder / SETTINGS
    link.parent.mkdir()
    link.symlink_to(target)
    for command in ("install", "uninstall"):
        home.does(command, "claude-code")
        assert link.is_symlink()
        assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_text() == OLD


def test_a_file_that_nobody_may_write_is_left_alone(home: AgentHome) -> None:
    home.write(SETTINGS, OLD).chmod(0o444)
    refused = home.run("install", "claude-code")
    assert "read-only" in refused.stderr
    assert (home.folder / SETTINGS).read_text() == OLD


def test_new_files_and_copies_are_private(home: AgentHome) -> None:
    home.write(SETTINGS, OLD)
    shown = home.answer("install", "claude-code")
    copy_of = Path(shown["files"][1]["backup"])
    assert copy_of.read_text() == OLD
    for path in (copy_of, home.folder / SERVERS, home.hook_file):
        assert path.stat().st_mode & 0o777 == 0o600
    assert copy_of.parent.stat().st_mode & 0o777 == 0o700


def test_a_dry_run_shows_the_change_and_makes_none(home: AgentHome) -> None:
    home.write(SETTINGS, OLD)
    before = home.files()
    shown = home.does("install", "claude-code", "--dry-run")
    assert '+        "SessionStart": [' in shown.stdout
    assert "-" not in {line[:1] for line in shown.stdout.splitlines() if not line.startswith("---")} - {"-"}
    assert home.files() == before
    assert not home.config.exists()
    home.does("install", "claude-code")
    installed = home.files()
    rows = home.answer("uninstall", "claude-code", "--dry-run")["files"]
    assert '-        "SessionStart": [' in rows[0]["diff"]
    assert home.files() == installed


def test_the_folder_of_the_variable_is_used(home: AgentHome) -> None:
    home.extra["CLAUDE_CONFIG_DIR"] = str(home.folder / "other")
    home.does("install", "claude-code")
    assert set(home.files()) == {"other/settings.json", "other/.claude.json"}


def test_an_old_installation_keeps_its_servers_in_another_file(home: AgentHome) -> None:
    path = home.write(".claude/.config.json", "{}")
    home.does("install", "claude-code")
    assert "reverie" in value_of(path)["mcpServers"]
    assert not (home.folder / SERVERS).exists()


def test_hooks_that_are_switched_off_are_mentioned(home: AgentHome) -> None:
    home.write(SETTINGS, '{"disableAllHooks": true}')
    assert "disableAllHooks" in home.does("install", "claude-code").stderr


# -- hook.json --------------------------------------------------------------------------------------------


def test_hooks_get_the_settings_of_the_configuration_folder_only(home: AgentHome, project: Path) -> None:
    (project / "reverie.yaml").write_text("capture: {exclude_tools: [Evil], hook_max_bytes: 5000}\n")
    home.config.mkdir(parents=True)
    (home.config / "reverie.yaml").write_text(
        "capture: {exclude_tools: [WebFetch], exclude_projects: [~/private]}\n"
    )
    home.extra["REVERIE_CAPTURE__CONTEXT_BUDGET_MS"] = "70"
    home.does("install", "claude-code")
    assert value_of(home.hook_file) == {
        "version": 1,
        "data_dir": str(home.folder / "data"),
        "spool_dir": str(home.folder / "data/spool"),
        "exclude_tools": ["WebFetch"],
        "exclude_projects": [str(home.folder / "private")],
        "hook_max_bytes": 262_144,
        "context_budget_ms": 70,
        "start_worker": True,
        "python": sys.executable,
        "worker_idle_exit_s": None,
    }


def test_hooks_write_nothing_that_the_queue_would_refuse(home: AgentHome) -> None:
    home.config.mkdir(parents=True)
    settings = "capture: {hook_max_bytes: 4000000}\nlimits: {max_content_bytes: 50000}\n"
    (home.config / "reverie.yaml").write_text(settings)
    home.does("install", "claude-code")
    assert value_of(home.hook_file)["hook_max_bytes"] == 50_000


def test_bad_settings_are_refused_before_anything_is_written(home: AgentHome) -> None:
    home.config.mkdir(parents=True)
    (home.config / "reverie.yaml").write_text("capture: {hook_max_bytes: -1}\n")
    assert "hook_max_bytes" in home.run("install", "claude-code").stderr
    assert home.files() == {}


def test_a_broken_file_of_hooks_is_refused(home: AgentHome) -> None:
    home.config.mkdir(parents=True)
    home.hook_file.write_text('{"off_projects": ')
    assert "hook.json is broken" in home.run("install", "claude-code").stderr
    assert home.files() == {}


# -- the plug-in ------------------------------------------------------------------------------------------


def test_the_plug_in_has_the_same_hooks_and_server() -> None:
    manifest = value_of(ROOT / "plugin/.claude-plugin/plugin.json")
    assert manifest["name"] == "reverie"
    assert "hooks" not in manifest, "hooks/hooks.json is read by itself: naming it is an error"
    hooks = value_of(ROOT / "plugin/hooks/hooks.json")["hooks"]
    wanted = claude_code.handlers("reverie-hook")
    assert hooks == {event: [{"hooks": [handler]}] for event, handler in wanted.items()}
    assert value_of(ROOT / "plugin/.mcp.json") == {
        "mcpServers": {"reverie": {"command": "reverie", "args": ["mcp"]}}
    }
    (entry,) = value_of(ROOT / ".claude-plugin/marketplace.json")["plugins"]
    assert (ROOT / entry["source"]).resolve() == ROOT / "plugin"


# -- any file ---------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
anything = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
commands = st.builds(lambda word: {"type": "command", "command": word}, texts)
groups = st.fixed_dictionaries({"hooks": st.lists(commands, max_size=2)}, optional={"matcher": texts})
events = st.sampled_from(["Stop", "SessionStart", "PreToolUse"])
hook_tables = st.dictionaries(events, st.lists(groups, max_size=2), max_size=3)
settings_values = st.builds(
    lambda others, known: {**others, **known},
    st.dictionaries(texts.filter(lambda key: key not in {"hooks", "mcpServers"}), anything, max_size=4),
    st.fixed_dictionaries(
        {}, optional={"hooks": hook_tables, "mcpServers": st.dictionaries(texts, anything, max_size=2)}
    ),
)
margins = st.sampled_from([None, 0, 1, 2, 4, "\t"])
WRITTEN = st.fixed_dictionaries(
    {
        "indent": margins,
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (", ", ": "), (" , ", " : ")]),
        "end": st.sampled_from(["", "\n", "\r\n", "\n\n"]),
        "start": st.sampled_from(["", "\ufeff", "\n "]),
        "line_end": st.sampled_from(["\n", "\r\n"]),
    }
)


def written(value: Any, form: dict[str, Any]) -> bytes:
    options = {name: form[name] for name in ("indent", "ensure_ascii", "separators")}
    text = json.dumps(value, **options).replace("\n", form["line_end"])
    return (form["start"] + text + form["end"]).encode()


def decoded(content: bytes) -> Any:
    return json.loads(content.decode("utf-8-sig"))


@given(st.none() | st.tuples(settings_values, WRITTEN), st.none() | st.tuples(settings_values, WRITTEN))
def test_install_and_uninstall_leave_any_file_as_it_was(hooks: Any, servers: Any) -> None:
    with agent_home() as home:
        home.write(SETTINGS, hooks and written(*hooks))
        home.write(SERVERS, servers and written(*servers))
        before = home.files()
        with suppress(AgentFileError):  # a server with our name is there
            home.change(claude_code)
            value = decoded((home.folder / SETTINGS).read_bytes())
            old = {name: part for name, part in (hooks or ({},))[0].items() if name != "hooks"}
            assert {name: part for name, part in value.items() if name != "hooks"} == old
            assert set(own(value)) == set(claude_code.EVENTS)
            home.change(claude_code, removes=True)
        assert home.files() == before


def add_key(value: Any) -> None:
    value["added by another"] = [1]


def remove_key(value: Any) -> None:
    for name in sorted(value.keys() - {"hooks", "mcpServers"})[:1]:
        del value[name]


def add_hook(value: Any) -> None:
    group = {"hooks": [{"type": "command", "command": "theirs"}]}
    value.setdefault("hooks", {}).setdefault("SessionStart", []).append(group)


def add_event(value: Any) -> None:
    value.setdefault("hooks", {})["Notification"] = []


def remove_hooks(value: Any) -> None:
    """Remove all groups that are not Reverie's from one event."""
    groups = value.get("hooks", {}).get("Stop", [])
    groups[:] = [group for group in groups if own({"hooks": {"Stop": [group]}})]


def add_server(value: Any) -> None:
    value.setdefault("mcpServers", {})["theirs"] = {"command": "x"}


CHANGES = [add_key, remove_key, add_hook, remove_hooks, add_event, add_server]


@settings(max_examples=200)
@given(
    st.none() | st.tuples(settings_values, WRITTEN),
    st.lists(st.sampled_from(CHANGES), min_size=1, unique=True),
    WRITTEN,
)
def test_exactly_the_changes_of_others_stay(old: Any, changes: list[Any], form: dict[str, Any]) -> None:
    with agent_home() as home:
        path = home.write(SETTINGS, old and written(*old))
        home.change(claude_code)
        expected, now = copy.deepcopy(old[0]) if old else {}, decoded(path.read_bytes())
        for change in changes:
            change(expected)
            change(now)
        path.write_bytes(written(now, form))
        home.change(claude_code, removes=True)
        if old is None and not expected:
            assert not path.exists()
        else:
            assert decoded(path.read_bytes()) == expected


@given(settings_values, WRITTEN, st.lists(texts, min_size=1, max_size=3), anything)
def test_a_text_has_what_was_put_into_it_and_is_the_same_without_it(
    value: Any, form: dict[str, Any], place: list[str], new: Any
) -> None:
    text = written(value, form).decode()
    key = f"new {place[0]}"
    inside = put(text, (key, *place[1:]), new)
    part: Any = new
    for name in reversed([key, *place[1:]]):
        part = {name: part}
    assert parsed(inside, "file") == {**value, **part}
    listed = appended(inside, ("a list",), new)
    assert parsed(listed, "file") == {**value, **part, "a list": [new]}
    taken = without(without(listed, ("a list",)), (key,))
    if value:
        assert taken == text
    assert parsed(taken, "file") == value
