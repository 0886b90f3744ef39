"""Titles, narratives and facts of observations by rule, from a tool's name, input and response.

The title comes from the name and the input alone, never from the response: it may stand in the context of a
later session, where a web page must not speak.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.observation import ToolCall

__all__ = ["Described", "describe"]

LONGEST_TITLE = 160
LONGEST_EXCERPT = 600
"""Characters of a tool's response that an observation quotes."""
LONGEST_FACT = 300
MOST_FILES = 50
READERS = frozenset({"Read", "NotebookRead", "LS", "read_file", "list_dir", "view_image"})
WRITERS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit", "apply_patch", "write_file", "replace"})
SHELLS = frozenset({"Bash", "shell", "local_shell", "exec_command", "unified_exec", "run_shell_command"})
SEARCHES = frozenset({"Grep", "Glob", "WebSearch", "web_search", "grep_files"})
VERBS = {"Write": "Wrote", "write_file": "Wrote", "LS": "Listed", "list_dir": "Listed", "WebFetch": "Fetched"}
PATHS = ("file_path", "path", "notebook_path", "filename")
PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
"""The lines of a Codex patch that name files."""


class Described(NamedTuple):
    """What the rules say of one call of a tool."""

    title: str
    narrative: str = ""
    facts: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    files_read: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()


def describe(tool: ToolCall) -> Described:
    """Describe a call: what was done, to which files, with which result."""
    given = tool.input if isinstance(tool.input, dict) else {}
    files = tuple(dict.fromkeys(_files(given, tool)))[:MOST_FILES]
    title = _title(tool, given, files)
    if tool.error is not None:
        title = f"Failed: {title}"
    excerpt = _excerpt(tool.response)
    said = [_text(given.get("description")), _text(given.get("prompt"))]
    narrative = " ".join(part for part in (*said, f"Result: {excerpt}" if excerpt else "") if part)
    writes = tool.name in WRITERS
    return Described(
        title=_short(title, LONGEST_TITLE),
        narrative=narrative,
        facts=tuple(_facts(tool, given)),
        concepts=_concepts(tool),
        files_read=() if writes else files,
        files_modified=files if writes else (),
    )


def _title(tool: ToolCall, given: dict[str, Any], files: tuple[str, ...]) -> str:
    name = tool.name
    first = files[0] if files else ""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    if first and name in READERS | WRITERS:
        verb = VERBS.get(name, "Read" if name in READERS else "Edited")
        return f"{verb} {first}{more}"
    if name in SHELLS:
        return f"Ran: {_one_line(_command(given))}"
    if name in SEARCHES:
        where = _text(given.get("path"))
        searched = _text(given.get("pattern")) or _text(given.get("query"))
        return f"Searched for {_one_line(searched)}" + (f" in {where}" if where else "")
    if name == "WebFetch":
        return f"Fetched {_one_line(_text(given.get('url')))}"
    if name in {"Task", "Agent"}:
        return f"Subagent: {_one_line(_text(given.get('description')) or _text(given.get('prompt')))}"
    about = next((value for value in given.values() if isinstance(value, str) and value.strip()), "")
    return f"{name}: {_one_line(about)}" if about else f"Used {name}"


def _files(given: dict[str, Any], tool: ToolCall) -> Iterator[str]:
    if tool.name in SEARCHES:
        return
    for name in PATHS:
        if path := _text(given.get(name)):
            yield path
    if tool.name in WRITERS:
        for value in (given.get("input"), given.get("patch"), given.get("command")):
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                if isinstance(part, str):
                    yield from (path.strip() for path in PATCHED.findall(part))


def _command(given: dict[str, Any]) -> str:
    command = given.get("command", given.get("cmd"))
    if isinstance(command, list):
        words = [word for word in command if isinstance(word, str)]
        return words[-1] if len(words) == 3 and words[1] in {"-c", "-lc"} else " ".join(words)
    return _text(command)


def _facts(tool: ToolCall, given: dict[str, Any]) -> Iterator[str]:
    if tool.error is not None:
        yield _short(f"The call failed: {_one_line(tool.error)}", LONGEST_FACT)
    old, new = _text(given.get("old_string")), _text(given.get("new_string"))
    if new:
        change = f"Replaced {_one_line(old)!r} by {_one_line(new)!r}" if old else f"Wrote {_one_line(new)!r}"
        yield _short(change, LONGEST_FACT)
    response = tool.response
    if isinstance(response, dict):
        code = response.get("exit_code", response.get("exitCode"))
        if isinstance(code, int) and code != 0:
            yield f"The command ended with exit code {code}"
        if response.get("interrupted") is True:
            yield "The call was interrupted"


def _concepts(tool: ToolCall) -> tuple[str, ...]:
    if tool.error is not None:
        return ("failure",)
    if tool.name in WRITERS:
        return ("change",)
    if tool.name in SHELLS:
        return ("command",)
    return ("discovery",)


def _excerpt(response: Any) -> str:
    """The beginning and the end of a response."""
    if response is None:
        return ""
    if isinstance(response, dict):
        parts = [_text(response.get(name)) for name in ("stdout", "stderr", "content", "result", "output")]
        text = "\n".join(part for part in parts if part)
    else:
        text = _text(response)
    if not text:
        text = msgspec.json.encode(response).decode()
    text = " ".join(text.split())
    if len(text) <= LONGEST_EXCERPT:
        return text
    half = LONGEST_EXCERPT // 2
    return f"{text[:half]} … {text[-half:]}"


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _one_line(text: str) -> str:
    return _short(" ".join(text.split()), LONGEST_TITLE)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
