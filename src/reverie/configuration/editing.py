"""Change values in the text of a settings file, and keep all else of the text, comments too."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from reverie.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["with_values"]

PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
INDENT = "  "


def with_values(text: str, section: str, values: Mapping[str, str | None], where: str = "") -> str:
    """The text of a YAML file in which the section has these values; None removes a value or leaves null.

    `InvalidSettingError` if the file is written in a way in which that cannot be done safely.
    """
    before = yaml.safe_load(text)
    expected: dict[str, Any] = copy.deepcopy(before) if before else {}
    present = expected.get(section) or {}
    wanted = {name: value for name, value in values.items() if value is not None or name in present}
    if not wanted:
        return text
    expected[section] = {**present, **wanted}
    try:
        edited = _edited(text, section, wanted)
        same = yaml.safe_load(edited) == expected
    except (yaml.YAMLError, _TooHardError):
        same = False
    if not same:
        lines = "; ".join(f"{section}.{name}: {_written(value)}" for name, value in wanted.items())
        reason = f"is written in a way that cannot be changed safely: set by hand {lines}"
        raise InvalidSettingError("", None, reason, where)
    return edited


class _TooHardError(Exception):
    """The text is written in a way that we do not change."""


def _edited(text: str, section: str, values: Mapping[str, str | None]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return _with_section(text, section, values, end)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise _TooHardError
    found = next(((key, value) for key, value in root.value if key.value == section), None)
    if found is None:
        return _with_section(text, section, values, end)
    key, group = found
    if isinstance(group, yaml.MappingNode):
        return _with_entries(text, group, values, end)
    if text[group.start_mark.index : group.end_mark.index]:
        raise _TooHardError  # null in words, or an alias
    after = _end_of_line(text, key.end_mark.index)
    lines = "".join(f"{end}{INDENT}{name}: {_written(value)}" for name, value in values.items())
    return text[:after] + lines + text[after:]


def _with_section(text: str, section: str, values: Mapping[str, str | None], end: str) -> str:
    lines = [f"{section}:", *(f"{INDENT}{name}: {_written(value)}" for name, value in values.items())]
    gap = "" if not text or text.endswith("\n") else end
    return text + gap + end.join(lines) + end


def _with_entries(text: str, group: yaml.MappingNode, values: Mapping[str, str | None], end: str) -> str:
    """Replace the values that the group has, the last first, and put new ones before its first entry."""
    nodes = {key.value: value for key, value in group.value}
    changes = [(nodes[name], value) for name, value in values.items() if name in nodes]
    for node, value in sorted(changes, key=lambda change: -change[0].start_mark.index):
        start, stop = node.start_mark.index, node.end_mark.index
        if not isinstance(node, yaml.ScalarNode) or node.style in {"|", ">"}:
            raise _TooHardError
        gap = " " if text[start - 1] == ":" else ""  # an empty value has no space before it
        text = text[:start] + gap + _written(value) + text[stop:]
    new = [f"{name}: {_written(value)}" for name, value in values.items() if name not in nodes]
    first = group.start_mark.index
    if group.flow_style:
        inside = ", ".join(new) + (", " if new and nodes else "")
        return text[: first + 1] + inside + text[first + 1 :]
    indent = " " * group.start_mark.column
    return text[:first] + "".join(f"{line}{end}{indent}" for line in new) + text[first:]


def _end_of_line(text: str, index: int) -> int:
    """Where the line of `index` ends, before its line end."""
    found = re.compile(r"\r?\n|\Z").search(text, index)
    assert found is not None
    return found.start()


def _written(value: str | None) -> str:
    """A value as it is written in YAML."""
    if value is None:
        return "null"
    plain = PLAIN.fullmatch(value) and yaml.safe_load(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)
