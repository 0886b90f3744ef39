"""The settings of Claude Code that have entries of Reverie.

| | for a person | for a project |
|---|---|---|
| hooks | `settings.json` in the configuration folder | `.claude/settings.local.json` in the project |
| MCP server | `mcpServers` of `.claude.json` | the project's own part of `.claude.json` |

None of these files is tracked by git: `settings.local.json` is personal by its purpose.
"""

from __future__ import annotations

import os
from pathlib import Path
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.cli.agents.json_text import Place

__all__ = ["EVENTS", "NAME", "handlers", "plan"]

NAME = "claude-code"
EVENTS = {
    "SessionStart": HOOK_TIMEOUT_S,
    "UserPromptSubmit": HOOK_TIMEOUT_S,
    "PostToolUse": HOOK_TIMEOUT_S,
    "PostToolUseFailure": HOOK_TIMEOUT_S,
    "SubagentStart": HOOK_TIMEOUT_S,
    "SubagentStop": HOOK_TIMEOUT_S,
    "Stop": HOOK_TIMEOUT_S,
    "StopFailure": HOOK_TIMEOUT_S,
    "PreCompact": HOOK_TIMEOUT_S,
    "PostCompact": HOOK_TIMEOUT_S,
    "CwdChanged": HOOK_TIMEOUT_S,
    "SessionEnd": 5,
}
"""Event → seconds after which the agent ends the hook.

`PostToolBatch` is not among them: the agent would wait for one more hook after each batch of tool calls, to
be told again what `PostToolUse` has told.
"""


def handlers(command: str, *words: str) -> dict[str, dict[str, Any]]:
    """The handler of each event: without a shell; synchronous, so that none is lost when the agent ends."""
    return {
        event: {"type": "command", "command": command, "args": [*words, NAME, event], "timeout": seconds}
        for event, seconds in EVENTS.items()
    }


def plan(project: Path | None, *, removes: bool = False) -> Plan:
    """The files for a project by its folder, or for a person."""
    home = folder_of("CLAUDE_CONFIG_DIR", ".claude")
    if project is None:
        hooks_file, scope = home / "settings.json", "user"
        server_place: Place = ("mcpServers", SERVER)
    else:
        hooks_file, scope = project / ".claude" / "settings.local.json", f"project {project}"
        server_place = ("projects", _main_folder(project), "mcpServers", SERVER)
    command, (server, *words) = ([""], [""]) if removes else (command_words(HOOK), command_words(SERVER))
    files = [
        (hooks_file, JsonEntries(NAME, handlers(*command), (), {})),
        (
            _global_file(home),
            JsonEntries(
                NAME, {}, server_place, {"type": "stdio", "command": server, "args": [*words, "mcp"]}
            ),
        ),
    ]
    if removes:
        return Plan(scope, list(files))
    settings = [home / "settings.json"]
    if project is not None:
        settings += [project / ".claude" / name for name in ("settings.json", "settings.local.json")]
    notes = [*(git_notes(hooks_file) if project else ()), *mcp_notes()]
    notes += [
        f"{path} has disableAllHooks: no hook runs"
        for path in settings
        if read_json(path).get("disableAllHooks") is True
    ]
    return Plan(
        scope,
        list(files),
        list(_rivals(home, settings)),
        notes,
        ["start Claude Code anew, or in a new session; /hooks and /mcp there show the entries"],
    )


def _rivals(home: Path, settings: list[Path]) -> Iterator[str]:
    """What runs the same hooks already: enabled plug-ins, and hooks that were written by hand."""
    enabled: dict[str, Any] = {}
    for path in settings:
        value = read_json(path)
        yield from rivals_in(path, value, NAME, "a hook that install did not write")
        given = value.get("enabledPlugins")
        enabled |= given if isinstance(given, dict) else {}
    for name, on in enabled.items():
        if on is True and name.partition("@")[0] == SERVER:
            yield f"the plug-in {name} is enabled, and brings the same hooks"
            return
    yield from plugin_rivals(_plugins(home / "plugins", enabled), NAME)


def _plugins(folder: Path, enabled: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """The name and the folder of each plug-in that is installed and not disabled."""
    installed = read_json(folder / "installed_plugins.json").get("plugins")
    for name, places in installed.items() if isinstance(installed, dict) else ():
        for place in places if isinstance(places, list) else [places]:
            path = place.get("installPath") if isinstance(place, dict) else None
            if isinstance(path, str) and enabled.get(name) is not False:
                yield name, Path(path)
    for manifest in folder.glob("*/.claude-plugin/plugin.json"):
        if enabled.get(manifest.parents[1].name) is not False:
            yield manifest.parents[1].name, manifest.parents[1]


def _global_file(home: Path) -> Path:
    """The file in which Claude Code keeps MCP servers."""
    old = home / ".config.json"
    if old.exists():
        return old
    return (home if os.environ.get("CLAUDE_CONFIG_DIR") else Path.home()) / ".claude.json"


def _main_folder(project: Path) -> str:
    """The folder by which Claude Code knows a project: that of the repository, for its worktrees too."""
    from reverie.capture.project import project_of

    keys = dict(key.partition(":")[::2] for key in project_of(str(project)).keys)
    common = Path(keys.get("common", ""))
    return str(common.parent) if common.name == ".git" else keys.get("folder", str(project))
