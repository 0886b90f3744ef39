"""The turns of a conversation, as a message of the label `add` carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Turn", "read_turns", "write_turns"]


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one speaker said."""

    content: str
    role: str = "user"
    chat_time: str | None = None


def write_turns(turns: Sequence[Turn]) -> str:
    """The content of a message that carries these turns."""
    return msgspec.json.encode(turns).decode()


def read_turns(content: str) -> list[Turn]:
    """The turns that a content carries; any other text is one turn of the user."""
    try:
        return msgspec.json.decode(content, type=list[Turn])
    except msgspec.DecodeError:
        return [Turn(content=content)]
