"""What a hook does not keep: projects and tools that the person has excluded; only the standard library."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from reverie.capture.hook_settings import HookSettings
    from reverie.capture.project import Project

__all__ = ["is_excluded", "matches", "without_excluded_calls"]


def is_excluded(settings: HookSettings, project: Project, cwd: str, given: dict[str, Any]) -> bool:
    """Whether this event must leave no trace: its project is switched off or excluded, or its tool is."""
    if any(key in settings.off_projects for key in project.keys):
        return True
    if settings.exclude_projects and _is_in(settings.exclude_projects, project, cwd):
        return True
    tool = given.get("tool_name")
    return isinstance(tool, str) and any(matches(tool, pattern) for pattern in settings.exclude_tools)


def without_excluded_calls(given: dict[str, Any], patterns: list[str]) -> dict[str, Any] | None:
    """The input of a batch without the calls of excluded tools; None if no call is left."""
    calls = given.get("tool_calls")
    if not patterns or not isinstance(calls, list):
        return given
    kept = [call for call in calls if not _is_call_of(call, patterns)]
    return {**given, "tool_calls": kept} if kept or not calls else None


def matches(name: str, pattern: str) -> bool:
    """Whether a name is that of a pattern, in which `*` stands for any letters."""
    first, *others = pattern.split("*")
    if not others:
        return name == pattern
    last = others.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in others:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _is_call_of(call: object, patterns: list[str]) -> bool:
    tool = call.get("tool_name") if isinstance(call, dict) else None
    return isinstance(tool, str) and any(matches(tool, pattern) for pattern in patterns)


def _is_in(patterns: list[str], project: Project, cwd: str) -> bool:
    """Whether the project lies in one of these folders, or its remote is one of these."""
    folders = {cwd, os.path.realpath(cwd)}
    remotes = []
    for key in project.keys:
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
