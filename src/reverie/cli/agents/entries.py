"""The entries of Reverie in an agent's settings: hooks and the MCP server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.cli.agents.errors import AgentFileError
from reverie.cli.agents.json_text import Place, appended, has, parsed, put, without

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = [
    "HOOK",
    "NO_IMPORTS",
    "SERVER",
    "JsonEntries",
    "check_shape",
    "is_own_hook",
    "is_own_server",
    "runs_hook",
    "runs_server",
]

HOOK = "reverie-hook"
SERVER = "reverie"
"""The name of the MCP server, and of the command that is it."""
NO_IMPORTS = "-EP"
"""The options by which Python imports nothing that the environment or the working folder names."""


def runs_hook(handler: Any, agent: str = "") -> bool:
    """Whether a handler of an agent's settings runs the hook of Reverie, for `agent` if one is given."""
    words = _program(handler)
    return Path(words[0]).name == HOOK and (not agent or words[1:2] == [agent])


def is_own_hook(handler: Any, agent: str) -> bool:
    """Whether `install` wrote this handler: it names the command by its absolute path."""
    return runs_hook(handler, agent) and Path(_program(handler)[0]).is_absolute()


def is_own_server(server: Any) -> bool:
    """Whether `install` wrote this MCP server: it names the command by its absolute path."""
    return runs_server(server) and Path(_program(server)[0]).is_absolute()


def runs_server(server: Any) -> bool:
    """Whether an MCP server is that of Reverie."""
    words = _program(server)
    return Path(words[0]).name == SERVER and words[1:2] == ["mcp"]


def _program(entry: Any) -> list[str]:
    """The words of a handler or server behind the Python that runs it, if one is named."""
    words = _words(entry)
    return words[2:] if words[1:2] == [NO_IMPORTS] and words[2:] else words


def _words(entry: Any) -> list[str]:
    """The command of a handler or server, word by word; one empty word if there is none."""
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
        return [""]
    command, more = entry["command"], entry.get("args")
    if isinstance(more, list):  # without a shell: the command is one word, whatever it contains
        return [command, *(str(word) for word in more)]
    try:
        return shlex.split(command) or [""]
    except ValueError:
        return [""]


def check_shape(value: dict[str, Any], place: Place, kind: type, where: str) -> None:
    """Refuse a file that has something else than an object, or a list, at a place that entries need."""
    for depth in range(1, len(place) + 1):
        wanted = dict if depth < len(place) else kind
        if has(value, place[:depth]):
            part: Any = value
            for key in place[:depth]:
                part = part[key]
            if not isinstance(part, wanted):
                name = ".".join(str(key) for key in place[:depth])
                what = "an object" if wanted is dict else "a list"
                raise AgentFileError(where, f"has something else than {what} at {name!r}: correct it")


class JsonEntries:
    """Hooks and, or, the MCP server in a JSON file."""

    def __init__(
        self, agent: str, hooks: Mapping[str, dict[str, Any]], server_place: Place, server: dict[str, Any]
    ) -> None:
        """`hooks` has a handler for each event; without a `server_place` the server is not in this file."""
        self._agent, self._hooks = agent, hooks
        self._server_place, self._server = server_place, server

    def are_in(self, text: str, where: str) -> bool:
        """See `Entries`. Other fields of an entry, such as the time-out, may have been changed by hand."""
        value = parsed(text, where)
        self._check(value, where)
        own = {(event, *_words(handler)) for event, _, _, handler in self._own_hooks(value)}
        wanted = {(event, *_words(handler)) for event, handler in self._hooks.items()}
        return own == wanted and self._has_server(value)

    def added(self, text: str, where: str) -> str:
        """See `Entries`."""
        for event, handler in self._hooks.items():
            text = appended(text, ("hooks", event), {"hooks": [handler]})
        if not self._has_server(parsed(text, where)):
            text = put(text, self._server_place, self._server)
        return text

    def removed(self, text: str, where: str, made: Collection[Place] | None) -> str:
        """See `Entries`."""
        value = parsed(text, where)
        emptied: list[Place] = []
        own = list(self._own_hooks(value)) if self._hooks else []
        for event, group, index, _ in reversed(own):
            handlers = value["hooks"][event][group]["hooks"]
            del handlers[index]
            place: Place = ("hooks", event, group)
            text = without(text, (*place, "hooks", index) if handlers else place)
            if not handlers:
                del value["hooks"][event][group]
            emptied.append(("hooks", event))
        if self._server_place and is_own_server(_get(value, self._server_place)):
            text = without(text, self._server_place)
            emptied.append(self._server_place[:-1])
        for place in emptied:
            text = _without_empty(text, place, where, made)
        return text

    def missing(self, text: str, where: str) -> list[Place]:
        """See `Entries`."""
        value = parsed(text, where)
        needed: list[Place] = []
        if self._hooks:
            needed = [("hooks",), *(("hooks", event) for event in self._hooks)]
        needed += [self._server_place[:depth] for depth in range(1, len(self._server_place))]
        return [place for place in needed if not has(value, place)]

    def nothing_else(self, text: str, where: str) -> bool:
        """See `Entries`."""
        return not parsed(text, where)

    def _check(self, value: dict[str, Any], where: str) -> None:
        for event in self._hooks:
            check_shape(value, ("hooks", event), list, where)
        if self._server_place:
            check_shape(value, self._server_place[:-1], dict, where)
            if has(value, self._server_place) and not runs_server(_get(value, self._server_place)):
                reason = f"has an MCP server {SERVER!r} that is not this one: give it another name"
                raise AgentFileError(where, reason)

    def _has_server(self, value: dict[str, Any]) -> bool:
        """Whether the file has the server, or one by hand that finds the command itself."""
        if not self._server_place:
            return True
        there = _get(value, self._server_place)
        if is_own_server(there):
            return _words(there) == _words(self._server)
        return runs_server(there)

    def _own_hooks(self, value: dict[str, Any]) -> Iterator[tuple[str, int, int, Any]]:
        """The event, the positions of group and handler, and the handler of each own hook, in their order."""
        events = value.get("hooks")
        for event, groups in events.items() if isinstance(events, dict) else ():
            for group, given in enumerate(groups if isinstance(groups, list) else ()):
                handlers = given.get("hooks") if isinstance(given, dict) else None
                for index, handler in enumerate(handlers if isinstance(handlers, list) else ()):
                    if is_own_hook(handler, self._agent):
                        yield event, group, index, handler


def _get(value: Any, place: Place) -> Any:
    """The part at a place; None if there is none."""
    if not has(value, place):
        return None
    for key in place:
        value = value[key]
    return value


def _without_empty(text: str, place: Place, where: str, made: Collection[Place] | None) -> str:
    """Remove the object or list at a place, and those above it, as long as they are empty and `made`."""
    value = parsed(text, where)
    while place and has(value, place) and not _get(value, place) and (made is None or place in made):
        text, place = without(text, place), place[:-1]
        value = parsed(text, where)
    return text
