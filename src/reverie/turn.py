"""The turns of a conversation, as a message of the label `add` carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.message import derived_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Message

__all__ = ["Turn", "memory_id_of", "read_turns", "write_turns"]


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


def memory_id_of(message: Message, index: int) -> str:
    """The id of the memory that turn `index` of this message becomes; known before it is written."""
    return derived_id(message.user_id, message.item_id, index)
