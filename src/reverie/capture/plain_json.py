"""JSON by the C parts of the standard library's `json`, without its regular expressions.

A hook starts a new interpreter for each event, and `json` would be a fourth of its start. If another version
of Python has no such parts, or others, `json` itself does the work.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["decode", "encode"]

SPACE = " \t\n\r"


def decode(text: str) -> Any:
    """Read one JSON value; numbers that JSON does not have (NaN, 1e999) become None.

    Raises `ValueError` if the text is something else, and `RecursionError` if it is nested too deeply.
    """
    text = text.lstrip("\ufeff").strip(SPACE)
    try:
        value, end = _scanner()(text, 0)
    except (StopIteration, SystemError) as error:  # a scanner without `json` cannot name its own error
        raise ValueError("no JSON value") from error
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def encode(value: object, *, ascii_only: bool = False) -> str:
    """Write a value as JSON in one line; its letters stay as they are unless `ascii_only`."""
    try:
        import _json

        quoted = _json.encode_basestring_ascii if ascii_only else _json.encode_basestring
        chunks = _json.make_encoder(None, _refuse, quoted, None, ":", ",", False, False, False)  # noqa: FBT003
        return "".join(chunks(value, 0))
    except (ImportError, AttributeError, TypeError):
        import json

        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))


class _Rules:
    """What the scanner asks its caller."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_int = int

    @staticmethod
    def parse_float(text: str) -> float | None:
        number = float(text)
        return number if number - number == 0 else None

    @staticmethod
    def parse_constant(name: str) -> None:
        """NaN and Infinity."""


def _scanner() -> Callable[[str, int], tuple[Any, int]]:
    try:
        from _json import make_scanner

        scanner: Callable[[str, int], tuple[Any, int]] = make_scanner(_Rules)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        rules = json.JSONDecoder(
            strict=False, parse_float=_Rules.parse_float, parse_constant=_Rules.parse_constant
        )
        return rules.raw_decode
    return scanner


def _refuse(value: object) -> object:
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
