"""The settings of Codex that have entries of Reverie.

The MCP server is in `config.toml`. Hooks are in `hooks.json` beside it, or in `config.toml` if that has hooks
already: Codex reads both, and warns of both in one folder.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from reverie.cli.agents.agent import (
    HOOK_TIMEOUT_S,
    Plan,
    command_words,
    folder_of,
    git_notes,
    mcp_notes,
    plugin_rivals,
    read_json,
    rivals_in,
)
from reverie.cli.agents.entries import HOOK, SERVER, JsonEntries
from reverie.cli.agents.toml_text import TomlEntries, parsed_toml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie.cli.agents.edits import Entries

__all__ = ["EVENTS", "NAME", "handlers", "plan"]

NAME = "codex"
EVENTS = {
    "SessionStart": HOOK_TIMEOUT_S,
    "UserPromptSubmit": HOOK_TIMEOUT_S,
    "PostToolUse": HOOK_TIMEOUT_S,
    "SubagentStart": HOOK_TIMEOUT_S,
    "SubagentStop": HOOK_TIMEOUT_S,
    "Stop": HOOK_TIMEOUT_S,
    "PreCompact": HOOK_TIMEOUT_S,
    "PostCompact": HOOK_TIMEOUT_S,
    "SessionEnd": 3,
}
"""Event → seconds after which Codex ends the hook; it warns of more than 3 at the end of a session."""
WITH_CONTEXT = {"SessionStart", "SubagentStart", "UserPromptSubmit"}
STATE = "state"
"""The key under which Codex keeps which hooks a person trusts: it is no event."""


def handlers(*command: str) -> dict[str, dict[str, Any]]:
    """The handler of each event. Codex gives commands to a shell, so paths are quoted."""
    given: dict[str, dict[str, Any]] = {}
    for event, seconds in EVENTS.items():
        line = shlex.join([*command, NAME, event])
        given[event] = {"type": "command", "command": line, "timeout": seconds}
        if event in WITH_CONTEXT:
            given[event]["additionalContextLimit"] = 0  # give it to the model whole, not as a file
    return given


def plan(project: Path | None, *, removes: bool = False) -> Plan:
    """The files for a project by its folder, or for a person."""
    home = folder_of("CODEX_HOME", ".codex")
    folder = home if project is None else project / ".codex"
    scope = "user" if project is None else f"project {project}"
    config_file, hooks_file = folder / "config.toml", folder / "hooks.json"
    config = _config(config_file)
    command, (server, *words) = ([""], [""]) if removes else (command_words(HOOK), command_words(SERVER))
    hooks = handlers(*command)
    inside = not hooks_file.exists() and _has_hooks(config)
    in_json: Entries = JsonEntries(NAME, hooks, (), {})
    in_toml: Entries = TomlEntries(
        NAME, hooks if inside else {}, {"command": server, "args": [*words, "mcp"]}
    )
    if removes:
        return Plan(scope, [(hooks_file, in_json), (config_file, in_toml)])
    notes = mcp_notes()
    if project is not None:
        notes += [note for path in (config_file, hooks_file) for note in git_notes(path)]
        notes.append("Codex reads .codex only in projects that you trust")
    notes += _off_notes(config_file, config)
    rivals = [
        *rivals_in(config_file, config, NAME, "a hook that install did not write"),
        *rivals_in(hooks_file, read_json(hooks_file), NAME, "a hook that install did not write"),
        *plugin_rivals(_plugins(home), NAME),
    ]
    steps = [
        "start Codex anew, type /hooks, and trust the hooks of Reverie: Codex runs no new hook before that"
    ]
    files = [(config_file, in_toml)] if inside else [(hooks_file, in_json), (config_file, in_toml)]
    return Plan(scope, files, rivals, notes, steps)


def _config(path: Path) -> dict[str, Any]:
    try:
        return parsed_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError):
        return {}  # the edit of the file says what is wrong with it


def _has_hooks(config: dict[str, Any]) -> bool:
    hooks = config.get("hooks")
    return isinstance(hooks, dict) and any(name != STATE for name in hooks)


def _off_notes(path: Path, config: dict[str, Any]) -> list[str]:
    features = config.get("features")
    given = features if isinstance(features, dict) else {}
    off = [name for name in ("hooks", "codex_hooks") if given.get(name) is False]
    return [f"{path} has features.{name} = false: no hook runs" for name in off]


def _plugins(home: Path) -> Iterator[tuple[str, Path]]:
    """The name and the folder of each plug-in that is enabled."""
    plugins = _config(home / "config.toml").get("plugins")
    for name, given in plugins.items() if isinstance(plugins, dict) else ():
        plugin, _, market = name.partition("@")
        if isinstance(given, dict) and given.get("enabled", True) is True:
            for folder in sorted((home / "plugins" / "cache" / market / plugin).glob("*")):
                yield name, folder
