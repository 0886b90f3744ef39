"""Read one place where settings are set: a file, the environment, arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import yaml

from reverie.configuration.fields import PREFIX, Field, Place, all_fields, find
from reverie.errors import InvalidSettingError, is_secret, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic import BaseModel

__all__ = ["Source", "from_arguments", "from_environment", "from_file", "from_names"]

DEPTH = 6
"""The levels of a file whose lines are remembered; no setting is deeper."""
SERVICE = ("tcp://", "udp://", "sctp://")
"""How values begin that Kubernetes sets for a service called reverie-server, as in REVERIE_SERVER_PORT."""


@dataclass
class Source:
    """The values that one place sets, and the line or variable of each."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, str] = field(default_factory=dict)
    problems: list[InvalidSettingError] = field(default_factory=list)

    def where(self, place: Place) -> str:
        """The file and line, or the variable, that sets this setting or a group that contains it."""
        heads = (place[:length] for length in range(len(place), 0, -1))
        return next((self.lines[head] for head in heads if head in self.lines), self.name)

    def sets(self, place: Place) -> bool:
        """Whether this source has a value at the place."""
        value: Any = self.values
        for part in place:
            parts = {str(name): below for name, below in value.items()} if isinstance(value, dict) else {}
            if part not in parts:
                return False
            value = parts[part]
        return True

    def put(self, place: Place, value: Any, line: str) -> None:
        """Set one value; a group must be set before the values in it."""
        group = self.values
        for part in place[:-1]:
            if not isinstance(group.get(part), dict):
                group[part] = {}
            group = group[part]
        group[place[-1]] = value
        self.lines[place] = line


def from_arguments(given: Mapping[str, Any]) -> Source:
    """The settings that a program passes as arguments."""
    return Source("argument", dict(given))


def from_file(path: Path) -> Source:
    """The settings in a YAML file."""
    source = Source(str(path))
    try:
        node, source.values, twice = _parsed(_text(path), str(path))
    except InvalidSettingError as problem:
        source.problems.append(problem)
        return source
    source.lines = {place: f"{path}:{line}" for place, line in _lines(node)}
    source.problems.extend(
        _broken(f"{'.'.join(place)} is set twice: leave one out", f"{path}:{line}") for place, line in twice
    )
    return source


def from_environment(model: type[BaseModel], environment: Mapping[str, str]) -> Source:
    """The settings in `REVERIE_*` variables; `__` leads into a group, a whole group is JSON."""
    source = Source("environment")
    ours = {name: text for name, text in environment.items() if name.upper().startswith(PREFIX)}
    for name in sorted(ours, key=lambda name: (name.count("__"), name)):
        place = tuple(name[len(PREFIX) :].lower().split("__"))
        found = find(model, place)
        if found is None:
            problem = _unknown_variable(model, name, ours[name])
            source.problems.extend([problem] if problem else [])
        else:
            _put_text(source, place, found, name, ours[name])
    return source


def from_names(model: type[BaseModel], environment: Mapping[str, str], names: Mapping[str, Place]) -> Source:
    """The settings in variables without the prefix `REVERIE_`; the later name wins."""
    source = Source("environment")
    for name, place in names.items():
        found = find(model, place)
        if name in environment and found is not None:
            _put_text(source, place, found, name, environment[name])
    return source


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not text in UTF-8 (byte {error.start}): save it in that encoding"
        raise _broken(reason, str(path)) from error
    except (OSError, ValueError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise _broken(reason, str(path)) from error


def _parsed(text: str, path: str) -> tuple[yaml.Node | None, dict[Any, Any], list[tuple[Place, int]]]:
    """The nodes of a YAML text, its values, and the places that are set twice."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        twice = list(_twice(node))
        values = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise _broken(f"is not YAML: {reason}", f"{path}:{mark.line + 1}" if mark else path) from error
    except RecursionError as error:
        raise _broken("is not YAML: too many levels inside each other", path) from error
    except Exception as error:  # the library raises errors of any kind for an impossible date or number
        raise _broken(f"is not YAML: {' '.join(str(error).split())}", path) from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        reason = f"must be a mapping of settings, such as 'server: {{port: 8000}}', not {shown(values)}"
        raise _broken(reason, path)
    return node, values, twice


def _broken(reason: str, where: str) -> InvalidSettingError:
    return InvalidSettingError("", None, reason, where)


def _put_text(source: Source, place: Place, found: Field | type[BaseModel], name: str, text: str) -> None:
    value: Any = text
    if not isinstance(found, Field) or found.structured:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = f'is not JSON ({error}): must be such as {{"name": value}}'
            source.problems.append(InvalidSettingError(".".join(place), text, reason, name))
            return
    elif found.nullable and text == "null":
        value = None
    source.put(place, value, name)


def _unknown_variable(model: type[BaseModel], name: str, text: str) -> InvalidSettingError | None:
    """The error about an unknown variable; None if it may belong to another program.

    A variable that is nearly one of ours, or contains `__`, was meant for Reverie.
    """
    known = [setting.variable.removeprefix(PREFIX) for setting in all_fields(model)]
    rest = name.upper().removeprefix(PREFIX)
    nested = "__" in rest
    near = get_close_matches(rest, known, 1, 0.6 if nested else 0.9)
    if not nested and (not near or text.startswith(SERVICE)):
        return None
    hint = f"; did you mean {PREFIX}{near[0]}?" if near else ": see docs/settings.md"
    value = "(hidden)" if is_secret(rest) else text
    return InvalidSettingError(rest.lower().replace("__", "."), value, f"no such setting{hint}", name)


def _pairs(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key, value


def _lines(node: yaml.Node | None, above: Place = ()) -> Iterator[tuple[Place, int]]:
    for name, key, value in _pairs(node):
        place = (*above, name)
        yield place, key.start_mark.line + 1
        if len(place) < DEPTH:
            yield from _lines(value, place)


def _twice(node: yaml.Node | None, above: Place = ()) -> Iterator[tuple[Place, int]]:
    seen: set[str] = set()
    for name, key, value in _pairs(node):
        place = (*above, name)
        if name in seen:
            yield place, key.start_mark.line + 1
        seen.add(name)
        if len(place) < DEPTH:
            yield from _twice(value, place)
