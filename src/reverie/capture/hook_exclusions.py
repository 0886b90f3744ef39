"""What is not kept: projects and tools that the person has excluded; only the standard library.

Hooks ask here before they write anything, and the worker asks once more, by its own settings.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class Rules(Protocol):
        """The patterns of what is not kept."""

        @property
        def off_projects(self) -> Sequence[str]: ...
        @property
        def exclude_projects(self) -> Sequence[str]: ...
        @property
        def exclude_tools(self) -> Sequence[str]: ...


__all__ = ["Exclusions", "is_excluded", "is_excluded_tool", "without_excluded_calls"]


class Exclusions:
    """The patterns of the worker's own settings."""

    __slots__ = ("exclude_projects", "exclude_tools", "off_projects")

    def __init__(self, exclude_tools: Sequence[str] = (), exclude_projects: Sequence[str] = ()) -> None:
        self.exclude_tools = exclude_tools
        self.exclude_projects = exclude_projects
        self.off_projects: Sequence[str] = ()


def is_excluded(rules: Rules, keys: Sequence[str], cwd: str, given: dict[str, Any]) -> bool:
    """Whether this event must leave no trace: its project is switched off or excluded, or its tool is.

    `keys` are those of the project, and `cwd` is the folder, if it is known.
    """
    if any(key in rules.off_projects for key in keys):
        return True
    if rules.exclude_projects and _is_in(rules.exclude_projects, keys, cwd):
        return True
    return is_excluded_tool(rules.exclude_tools, given.get("tool_name"))


def is_excluded_tool(patterns: Sequence[str], name: object) -> bool:
    """Whether one of these patterns means the tool of this name."""
    return isinstance(name, str) and any(matches(name, pattern) for pattern in patterns)


def without_excluded_calls(given: dict[str, Any], patterns: Sequence[str]) -> dict[str, Any] | None:
    """The input of a batch without the calls of excluded tools; None if no call is left."""
    calls = given.get("tool_calls")
    if not patterns or not isinstance(calls, list):
        return given
    kept = [
        call
        for call in calls
        if not (isinstance(call, dict) and is_excluded_tool(patterns, call.get("tool_name")))
    ]
    return {**given, "tool_calls": kept} if kept or not calls else None


def matches(name: str, pattern: str) -> bool:
    """Whether a name is that of a pattern, in which `*` stands for any letters, and `?` for one."""
    at = place = begin = 0
    star = -1
    while at < len(name):
        wanted = pattern[place : place + 1]
        if wanted == "*":
            star, begin = place, at
            place += 1
        elif wanted in {"?", name[at]}:
            at += 1
            place += 1
        elif star >= 0:  # the last star stands for one letter more
            begin += 1
            at, place = begin, star + 1
        else:
            return False
    return not pattern[place:].strip("*")


def _is_in(patterns: Sequence[str], keys: Sequence[str], cwd: str) -> bool:
    """Whether the project lies in one of these folders, or its remote is one of these."""
    folders = {cwd, os.path.realpath(cwd)} if cwd else set()
    remotes = []
    for key in keys:
        kind, _, name = key.partition(":")
        if kind == "remote":
            remotes.append(name)
        elif kind in {"folder", "common"}:
            folders.add(name)
    for pattern in patterns:
        if pattern.startswith(("/", "~")):
            place = os.path.realpath(os.path.expanduser(pattern))
            if any(folder == place or folder.startswith(place.rstrip("/") + "/") for folder in folders):
                return True
        elif any(matches(remote, pattern) for remote in remotes):
            return True
    return False
