"""Add and remove parts of a JSON text; every other letter of the text stays as it is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.cli.agents.errors import AgentFileError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Place", "appended", "has", "parsed", "put", "without"]

Place = tuple[str | int, ...]
"""Where a part is: the keys and positions that lead to it."""

DECODER = json.JSONDecoder()
SPACE = re.compile(r"[ \t\r\n]*")
FIRST_INDENT = re.compile(r"\{[ \t\r]*\n([ \t]+)")
BYTE_ORDER_MARK = "\ufeff"


def parsed(text: str, where: str) -> dict[str, Any]:
    """The object that a text contains; an empty text is an empty object.

    `AgentFileError` names the line and the column if the text is not JSON.
    """
    if not text.strip(BYTE_ORDER_MARK + " \t\r\n"):
        return {}
    try:
        value = json.loads(text.removeprefix(BYTE_ORDER_MARK), parse_constant=_refused)
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg}; correct it, nothing was changed"
        raise AgentFileError(f"{where}:{error.lineno}:{error.colno}", reason) from error
    except (ValueError, RecursionError) as error:
        raise AgentFileError(where, f"is not JSON: {error}; correct it, nothing was changed") from error
    if not isinstance(value, dict):
        raise AgentFileError(where, "must be a JSON object; correct it, nothing was changed")
    return value


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


def has(value: Any, place: Place) -> bool:
    """Whether a value has a part at this place."""
    for key in place:
        in_list = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if not in_list and not (isinstance(value, dict) and key in value):
            return False
        value = value[key]
    return True


def put(text: str, place: Place, value: Any) -> str:
    """Set the member at a place; objects that lead to it are made if they are missing."""
    text = _with_object(text)
    start, known = _deepest(text, place)
    if known == len(place):
        part = _part(text, place)
        inside = _style(text).written(value, _line_indent(text, part.start))
        return text[: part.value] + inside + text[part.end :]
    for key in reversed(place[known + 1 :]):
        value = {key: value}
    return _added(text, start, json.dumps(place[known], ensure_ascii=False) + ": ", value)


def appended(text: str, place: Place, value: Any) -> str:
    """Append an element to the list at a place; the list and objects that lead to it are made if missing."""
    text = _with_object(text)
    start, known = _deepest(text, place)
    if known == len(place):
        return _added(text, start, "", value)
    return put(text, place, [value])


def without(text: str, place: Place) -> str:
    """Remove the member or the element at a place."""
    container = _start(text) if len(place) == 1 else _part(text, place[:-1]).value
    parts, end = _parts(text, container)
    index = max(number for number, part in enumerate(parts) if part.key == place[-1])
    if len(parts) == 1:
        return text[: container + 1] + text[end:]
    if index == len(parts) - 1:
        return text[: parts[index - 1].end] + text[parts[index].end :]
    return text[: parts[index].start] + text[parts[index + 1].start :]


class _Part(NamedTuple):
    """A member of an object or an element of a list, and where it is in the text."""

    key: str | int
    start: int
    value: int
    end: int


class _Style(NamedTuple):
    """How a text is written."""

    line_end: str
    indent: str
    """What each level adds to the margin; empty if the text is written in one line."""

    def written(self, value: Any, margin: str) -> str:
        if not self.indent:
            return json.dumps(value, ensure_ascii=False)
        lines = json.dumps(value, ensure_ascii=False, indent=self.indent).split("\n")
        return (self.line_end + margin).join(lines)


def _style(text: str) -> _Style:
    line_end = "\r\n" if "\r\n" in text else "\n"
    found = FIRST_INDENT.search(text)
    is_one_line = "\n" not in text.strip() and len(_parts(text, _start(text))[0]) > 0
    return _Style(line_end, found[1] if found else "" if is_one_line else "  ")


def _with_object(text: str) -> str:
    """The text, or an empty object if it has none."""
    return text if text.strip(BYTE_ORDER_MARK + " \t\r\n") else "{}\n"


def _start(text: str) -> int:
    """Where the object of the whole text begins."""
    return _skip(text, 1 if text.startswith(BYTE_ORDER_MARK) else 0)


def _skip(text: str, index: int) -> int:
    found = SPACE.match(text, index)
    assert found is not None
    return found.end()


def _parts(text: str, start: int) -> tuple[list[_Part], int]:
    """The parts of the object or list that begins at `start`, and where its closing bracket is."""
    parts: list[_Part] = []
    index = _skip(text, start + 1)
    while text[index] not in "}]":
        begin, key = index, len(parts)
        if text[start] == "{":
            key, index = DECODER.raw_decode(text, index)
            index = _skip(text, _skip(text, index) + 1)
        _, end = DECODER.raw_decode(text, index)
        parts.append(_Part(key, begin, index, end))
        index = _skip(text, end)
        if text[index] == ",":
            index = _skip(text, index + 1)
    return parts, index


def _part(text: str, place: Place) -> _Part:
    """The part at a place that the text has. Of members with the same key the last one counts, as in JSON."""
    start, part = _start(text), None
    for key in place:
        part = _last(_parts(text, start)[0], key)
        assert part is not None
        start = part.value
    assert part is not None
    return part


def _last(parts: Iterable[_Part], key: str | int) -> _Part | None:
    found = None
    for part in parts:
        if part.key == key:
            found = part
    return found


def _deepest(text: str, place: Place) -> tuple[int, int]:
    """Where the deepest container on the way to a place begins, and how many keys lead to it."""
    start = _start(text)
    for known, key in enumerate(place):
        part = _last(_parts(text, start)[0], key)
        if part is None:
            return start, known
        start = part.value
    return start, len(place)


def _added(text: str, start: int, name: str, value: Any) -> str:
    """Add a part at the end of the object or list that begins at `start`."""
    style = _style(text)
    parts, end = _parts(text, start)
    if not parts:
        if not style.indent:
            return text[: start + 1] + name + style.written(value, "") + text[end:]
        outside = _line_indent(text, start)
        margin = outside + style.indent
        inside = f"{style.line_end}{margin}{name}{style.written(value, margin)}{style.line_end}{outside}"
        return text[: start + 1] + inside + text[end:]
    last = parts[-1]
    before = text[parts[-2].end : last.start] if len(parts) > 1 else text[start + 1 : last.start]
    if "\n" in before:
        margin = before.rpartition("\n")[2].rpartition(",")[2]
        inside = f",{style.line_end}{margin}{name}{style.written(value, margin)}"
    else:
        inside = f", {name}{style._replace(indent='').written(value, '')}"
    return text[: last.end] + inside + text[last.end :]


def _line_indent(text: str, index: int) -> str:
    """The margin of the line in which `index` is."""
    line = text[text.rfind("\n", 0, index) + 1 : index]
    return line[: len(line) - len(line.lstrip(" \t"))]
