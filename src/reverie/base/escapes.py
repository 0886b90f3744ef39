"""Escapes of control characters, for text that leaves the program: logs, metrics, events, health, terminals.

Ids, labels, contents and errors may come from anyone. A control character in them would move a cursor, fake
a line of a log, or turn the direction of writing.
"""

from __future__ import annotations

import re

__all__ = ["escape", "escape_json"]

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change colours, ring, end a line, or turn the direction of writing."""


def escape(text: str, keep: str = "") -> str:
    r"""Escape control characters, as `\x1b`, except those in `keep`."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def escape_json(document: bytes) -> bytes:
    r"""Escape the control characters of a JSON document that JSON itself allows, as `\u2028`."""
    if document.isascii() and b"\x7f" not in document:
        return document
    escaped = _CONTROLS.sub(
        lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", document.decode()
    )
    return escaped.encode()
