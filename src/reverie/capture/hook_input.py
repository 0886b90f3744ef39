"""The input of a hook: read it, clean it, and cut it so that its record fits; only the standard library."""

from __future__ import annotations

import os

from reverie.capture.plain_json import decode, encode
from reverie.capture.privacy import Cleaner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["BadCallError", "clean_input", "fit", "read_input"]

LARGEST_INPUT = 256 * 1024 * 1024
"""Bytes of standard input that are read; more is no input of an agent."""
READ_S = 5
"""Seconds in which the agent must have written the input."""
MOST_FIELDS = 200
CUT_FIRST = frozenset({"tool_response", "tool_input"})
"""The fields that are cut before larger ones, if that makes room enough."""
SHORTEST = 16
"""Texts are not cut shorter than this while the structure around them is kept."""


class BadCallError(ValueError):
    """A hook was called in a way that cannot be right."""


def read_input() -> dict[str, Any]:
    """Read the object on standard input; raises `BadCallError` if there is none.

    The input is read to its end, whatever it is: an agent may take a closed pipe for a failed hook.
    """
    parts, size = [], 0
    _limit_time(READ_S)
    try:
        while part := os.read(0, 1024 * 1024):
            size += len(part)
            if size <= LARGEST_INPUT:
                parts.append(part)
            else:
                parts.clear()
    finally:
        _limit_time(0)
    if size > LARGEST_INPUT:
        raise BadCallError(f"the input has {size} bytes")
    if not size:
        raise BadCallError("the input is empty")
    try:
        given = decode(b"".join(parts).decode(errors="replace"))
    except (ValueError, RecursionError):
        raise BadCallError(f"the input is no JSON; it has {size} bytes") from None
    if not isinstance(given, dict):
        raise BadCallError("the input is no JSON object")
    return given


def clean_input(given: dict[str, Any], max_bytes: int) -> tuple[dict[str, Any], list[str]]:
    """The input without private parts and secrets, and the names of fields that were too large."""
    cleaned: dict[str, Any] = {}
    cut: list[str] = []
    for name, value in given.items():
        if len(cleaned) == MOST_FIELDS:
            cut.append("input")
            break
        cleaner = Cleaner(max_bytes)
        # an object of one entry, so that the name of the field counts, too
        ((key, part),) = cleaner.clean({name[:256]: value}).items()
        cleaned[key] = part
        if cleaner.has_cut:
            cut.append(key)
    return cleaned, cut


def fit(record: dict[str, Any], max_bytes: int) -> None:
    """Cut fields of the input until the record has at most `max_bytes` bytes, and note which in `cut`."""
    excess = _size(record) - max_bytes
    if excess <= 0:
        return
    fields = record["input"]
    sizes = {name: _size(value) for name, value in fields.items()}
    order = sorted(sizes, key=lambda name: (not (name in CUT_FIRST and sizes[name] > excess), -sizes[name]))
    for name in order:
        if excess <= 0:
            return
        if name not in record.setdefault("cut", []):
            record["cut"].append(name)
            excess += len(name) + 16
        fields[name] = _cut(fields[name], max(0, sizes[name] - excess))
        excess -= sizes[name] - _size(fields[name])


def _cut(value: Any, most: int) -> Any:
    """A value that takes at most `most` bytes as JSON. Its structure stays if long texts can make room."""
    if not isinstance(value, str):
        longest = most // 2
        while longest >= SHORTEST:
            shortened = _shortened(value, longest)
            if _size(shortened) <= most:
                return shortened
            longest //= 2
        value = encode(value)
    while (size := _size(value)) > most and value:
        value = value[: len(value) * most // size] if most > 2 else ""
    return value


def _shortened(value: Any, longest: int) -> Any:
    """The same value, no text of it longer than `longest`."""
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, dict):
        return {name: _shortened(part, longest) for name, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part, longest) for part in value]
    return value


def _size(value: object) -> int:
    return len(encode(value).encode(errors="replace"))


def _limit_time(seconds: int) -> None:
    """Give up reading after a time: a pipe that nobody closes must not hold the agent up."""
    import _signal  # type: ignore[import-not-found]  # `signal` would take longer to import than all this

    def give_up(*_: object) -> None:
        raise BadCallError(f"the input did not end within {READ_S} s")

    _signal.signal(_signal.SIGALRM, give_up if seconds else _signal.SIG_DFL)
    _signal.alarm(seconds)
