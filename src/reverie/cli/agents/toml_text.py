"""Add and remove tables of a TOML text; everything else of the text stays as it is, comments too."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.cli.agents.entries import HOOK, SERVER, check_shape, is_own_hook, is_own_server, runs_server
from reverie.cli.agents.errors import AgentFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from reverie.cli.agents.json_text import Place

__all__ = ["TomlEntries", "parsed_toml"]

SERVERS = "mcp_servers"
HEADER = re.compile(r"[ \t]*\[")
SAYS_NOTHING = re.compile(r"[ \t]*(#.*)?\r?\n?\Z")


def parsed_toml(text: str, where: str) -> dict[str, Any]:
    """What a TOML text says; `AgentFileError` names the line and the column if it is not TOML."""
    try:
        return tomllib.loads(text, parse_float=str)  # as it is written: not a number equals not itself
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = f"is not TOML: {error}; correct it, nothing was changed"
        raise AgentFileError(where, reason) from error


class TomlEntries:
    """The MCP server, and hooks if there are any, in the configuration of Codex."""

    def __init__(self, agent: str, hooks: Mapping[str, dict[str, Any]], server: dict[str, Any]) -> None:
        """`hooks` has a handler for each event."""
        self._agent, self._hooks, self._server = agent, hooks, server

    def are_in(self, text: str, where: str) -> bool:
        """See `Entries`."""
        value = parsed_toml(text, where)
        self._check(value, where)
        own = {(event, handler["command"]) for event, handler in self._own_hooks(value)}
        wanted = {(event, handler["command"]) for event, handler in self._hooks.items()}
        there = value.get(SERVERS, {}).get(SERVER, {})
        same = all(there.get(name) == given for name, given in self._server.items())
        return own == wanted and (same or (bool(there) and not is_own_server(there)))

    def added(self, text: str, where: str) -> str:
        """See `Entries`."""
        expected = parsed_toml(text, where)
        servers = expected.setdefault(SERVERS, {})
        new: dict[str, Any] = {} if SERVER in servers else {SERVERS: {SERVER: self._server}}
        servers.setdefault(SERVER, self._server)
        for event, handler in self._hooks.items():
            group = {"hooks": [handler]}
            expected.setdefault("hooks", {}).setdefault(event, []).append(group)
            new.setdefault("hooks", {})[event] = [group]
        if not new:
            return text
        return _first_equal(
            expected,
            [lambda: _with_tables(text, new), lambda: _merged(text, expected, new)],
            f"{where} is written in a way that cannot be changed safely: add by hand\n{_tables(new)}",
        )

    def removed(self, text: str, where: str, made: Collection[Place] | None) -> str:
        """See `Entries`; `made` is not needed, because a header makes the tables that it names."""
        del made
        value = parsed_toml(text, where)
        expected = self._without_own(value)
        if expected == value:
            return text
        return _first_equal(
            expected,
            [lambda: self._without_sections(text), lambda: _merged(text, expected)],
            f"{where} is written in a way that cannot be changed safely: remove by hand the MCP server "
            f"{SERVER!r} and the hooks that run {HOOK}",
        )

    def missing(self, text: str, where: str) -> list[Place]:
        """See `Entries`."""
        del text, where
        return []

    def nothing_else(self, text: str, where: str) -> bool:
        """See `Entries`."""
        del where
        return not text.strip()

    def _check(self, value: dict[str, Any], where: str) -> None:
        check_shape(value, (SERVERS, SERVER), dict, where)
        for event in self._hooks:
            check_shape(value, ("hooks", event), list, where)
        there = value.get(SERVERS, {}).get(SERVER)
        if there is not None and not runs_server(there):
            reason = f"has an MCP server {SERVER!r} that is not this one: give it another name"
            raise AgentFileError(where, reason)

    def _own_hooks(self, value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for event, groups in _hook_events(value):
            for group in groups:
                for handler in group.get("hooks", []):
                    if is_own_hook(handler, self._agent):
                        yield event, handler

    def _without_own(self, value: dict[str, Any]) -> dict[str, Any]:
        """What the text is to say without the own entries."""
        expected = dict(value)
        if is_own_server(value.get(SERVERS, {}).get(SERVER)):
            expected[SERVERS] = {name: one for name, one in value[SERVERS].items() if name != SERVER}
        for event, groups in _hook_events(value):
            kept = []
            for group in groups:
                handlers = [one for one in group.get("hooks", []) if not is_own_hook(one, self._agent)]
                if handlers or handlers == group.get("hooks", []):
                    kept.append({**group, "hooks": handlers} if "hooks" in group else group)
            expected["hooks"] = {**expected["hooks"], event: kept}
        return _without_empty(expected)

    def _without_sections(self, text: str) -> str:
        """The text without the sections of the own entries; comments behind them stay."""
        sections = list(_sections(text))
        has_server = is_own_server(tomllib.loads(text).get(SERVERS, {}).get(SERVER))
        dropped = {
            index
            for index, section in enumerate(sections)
            if (has_server and section.key[:2] == (SERVERS, SERVER))
            or (section.is_handler and is_own_hook(section.value, self._agent))
        }
        for index, section in enumerate(sections):
            if section.is_group and not section.value:
                handlers = _handlers_of(sections, index)
                if handlers and handlers <= dropped:
                    dropped.add(index)
        return "".join(
            section.tail if index in dropped else section.text for index, section in enumerate(sections)
        )


class _Section(NamedTuple):
    """A header with the lines below it, up to the next header."""

    text: str
    tail: str
    """The comments and empty lines at the end, which belong to what follows."""
    key: tuple[str, ...]
    value: dict[str, Any]

    @property
    def is_group(self) -> bool:
        return len(self.key) == 2 and self.key[0] == "hooks"

    @property
    def is_handler(self) -> bool:
        return len(self.key) == 3 and self.key[0] == "hooks" and self.key[2] == "hooks"


def _sections(text: str) -> Iterator[_Section]:
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if HEADER.match(line) and lines:
            yield _section(lines)
            lines = []
        lines.append(line)
    if lines:
        yield _section(lines)


def _section(lines: list[str]) -> _Section:
    end = len(lines)
    while end > 1 and SAYS_NOTHING.match(lines[end - 1]):
        end -= 1
    tail = lines[end:]
    if tail and not tail[0].strip():
        tail = tail[1:]  # the line that parts the section from the next one
    text = "".join(lines)
    try:
        value: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # a line of a long list or text that looks like a header
        return _Section(text, "", (), {})
    key: list[str] = []
    if HEADER.match(lines[0]):
        header = tomllib.loads(lines[0])
        while header:
            name = next(iter(header))
            key.append(name)
            header, value = header[name], value[name]
            if isinstance(header, list):
                header, value = header[0], value[0]
    return _Section(text, "".join(tail), tuple(key), value)


def _handlers_of(sections: list[_Section], group: int) -> set[int]:
    """The positions of the handlers that directly follow a group."""
    found = set()
    for index in range(group + 1, len(sections)):
        if not sections[index].is_handler or sections[index].key[:2] != sections[group].key:
            break
        found.add(index)
    return found


def _hook_events(value: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The events of hooks, each with its groups."""
    hooks = value.get("hooks")
    return [
        (event, groups)
        for event, groups in (hooks.items() if isinstance(hooks, dict) else ())
        if isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    ]


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """What a text says, without servers, events and hooks that have nothing in them."""
    hooks = value.get("hooks")
    if isinstance(hooks, dict):
        value = {**value, "hooks": {name: part for name, part in hooks.items() if part not in ([], {})}}
    return {name: part for name, part in value.items() if name not in {SERVERS, "hooks"} or part != {}}


def _first_equal(expected: dict[str, Any], ways: list[Callable[[], str]], reason: str) -> str:
    """The first text that says what is expected; `AgentFileError` if there is none."""
    for way in ways:
        try:
            text = way()
            if _without_empty(tomllib.loads(text, parse_float=str)) == _without_empty(expected):
                return text
        except Exception:  # noqa: BLE001, S112  the library has many errors, and each means: try another way
            continue
    where, _, rest = reason.partition(" ")
    raise AgentFileError(where, rest)


def _with_tables(text: str, new: dict[str, Any]) -> str:
    """The text with new tables at its end."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + (gap + _tables(new)).replace("\n", line_end)


def _tables(new: dict[str, Any]) -> str:
    """The text of new tables."""
    import tomlkit

    lines: list[str] = []
    for name, server in new.get(SERVERS, {}).items():
        lines += [f"[{SERVERS}.{name}]\n{tomlkit.dumps(server)}"]
    for event, groups in new.get("hooks", {}).items():
        for group in groups:
            for handler in group["hooks"]:
                lines += [f"[[hooks.{event}]]\n[[hooks.{event}.hooks]]\n{tomlkit.dumps(handler)}"]
    return "\n".join(lines)


def _merged(text: str, expected: dict[str, Any], new: dict[str, Any] | None = None) -> str:
    """The text changed by the library, where servers or hooks are written in one line.

    What of `new` has no place in the text yet becomes tables at its end.
    """
    import tomlkit

    document = tomlkit.parse(text)
    for name in (SERVERS, "hooks"):
        if name in document and document.unwrap()[name] != expected.get(name):
            _match(document[name], expected.get(name, {}))
    missing = {name: part for name, part in (new or {}).items() if name not in document}
    return _with_tables(tomlkit.dumps(document), missing) if missing else tomlkit.dumps(document)


def _match(there: Any, expected: dict[str, Any]) -> None:
    """Make a table of the library equal to what is expected."""
    for key in [key for key in there if key not in expected]:
        del there[key]
    for key, value in expected.items():
        if key not in there or there[key].unwrap() != value:
            there[key] = value
