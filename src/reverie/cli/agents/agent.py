"""What `reverie install` and `reverie uninstall` need to know of an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.cli.agents.entries import HOOK, NO_IMPORTS, SERVER, is_own_hook, runs_hook
from reverie.cli.agents.errors import AgentFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.cli.agents.edits import Entries

__all__ = [
    "HOOK_TIMEOUT_S",
    "Plan",
    "command_words",
    "folder_of",
    "git_notes",
    "mcp_notes",
    "plugin_rivals",
    "read_json",
    "rivals_in",
]

HOOK_TIMEOUT_S = 10
"""Seconds after which an agent ends a hook; it takes far less, and never fails by itself."""
GIT_TIMEOUT_S = 10


@dataclass(frozen=True)
class Plan:
    """The files of an agent that have entries of Reverie, and what a person has to know."""

    scope: str
    """Whose entries they are: `user`, or a project by its folder."""
    files: list[tuple[Path, Entries]]
    rivals: list[str] = field(default_factory=list)
    """What runs the hooks already, each as a sentence."""
    notes: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)


def command_words(name: str) -> list[str]:
    """How agents start a command of this installation: by absolute paths, and by Python itself.

    An agent runs in its own folder, and with `PYTHONPATH=.`, which many set, Python would import from there.
    """
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    for folder in folders:
        path = folder / name
        if os.access(path, os.X_OK):
            words = [str(path.absolute())]
            return [sys.executable, NO_IMPORTS, *words] if _is_python(path) else words
    raise AgentFileError(folders[0] / name, "is missing: install Reverie again")


def _is_python(path: Path) -> bool:
    """Whether a command is a program in Python; some systems put one of their shell in its place."""
    with path.open("rb") as file:
        first, second = file.readline(4096), file.readline(4096)
    return first.startswith(b"#!") and (b"python" in first or second.startswith(b"'''exec'"))


def folder_of(variable: str, default: str) -> Path:
    """The folder that a variable names, else the default below the home folder."""
    given = os.environ.get(variable)
    return Path(given).expanduser().absolute() if given else Path.home() / default


def rivals_in(hooks_file: Path, value: dict[str, Any], agent: str, what: str) -> Iterator[str]:
    """Say which hooks of a file run the same command, and were not written by `install`."""
    events = value.get("hooks")
    for event, groups in events.items() if isinstance(events, dict) else ():
        handlers = [
            handler
            for group in (groups if isinstance(groups, list) else ())
            for handler in (group.get("hooks") if isinstance(group, dict) else None) or ()
        ]
        if any(runs_hook(one) and not is_own_hook(one, agent) for one in handlers):
            yield f"{what} ({hooks_file}) runs {HOOK} already, for {event} and perhaps more"
            return


def plugin_rivals(folders: Iterator[tuple[str, Path]], agent: str) -> Iterator[str]:
    """Say which plug-ins run the same hooks; `folders` has the name and the folder of each."""
    seen = set()
    for name, folder in folders:
        path = folder / "hooks" / "hooks.json"
        if name in seen:
            continue
        found = list(rivals_in(path, read_json(path), agent, f"the plug-in {name}"))
        if found:
            seen.add(name)
            yield found[0]


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file that is only looked at; empty if it cannot be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def git_notes(path: Path) -> list[str]:
    """Refuse a file that git tracks, and say so if git does not ignore it: it names paths of this machine."""
    if _git(path, "ls-files", "--error-unmatch") == 0:
        reason = (
            "is tracked by git, and the entries name paths of this machine: install with --user, or take "
            "the file out of git (git rm --cached)"
        )
        raise AgentFileError(path, reason)
    if _git(path, "check-ignore", "--quiet") == 1:
        return [f"git does not ignore {path.name}: add it to .git/info/exclude, or do not commit it"]
    return []


def _git(path: Path, *command: str) -> int | None:
    """The exit code of git about a file; None if there is no git."""
    folder = next((above for above in path.parents if above.is_dir()), path.parent)
    try:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *command, "--", str(path)],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=GIT_TIMEOUT_S,
            check=False,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None


def mcp_notes() -> list[str]:
    """Say so if the library of the MCP server is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is not None:
        return []
    return [f"the MCP server ({SERVER} mcp) needs its library: pip install 'reverie[mcp]'"]
