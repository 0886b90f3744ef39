"""The turns of a conversation, which a message of the label `add` carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Message

__all__ = ["DEFAULT_SESSION", "Turn", "memory_id_of", "read_turns", "write_turns"]


DEFAULT_SESSION = "default_session"
"""The session of turns whose client names none. It is no conversation: its turns are no neighbours."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One utterance of a speaker."""

    content: str
    role: str = "user"
    name: str | None = None
    """The name of the speaker: a search that names the speaker raises their turns."""
    chat_time: str | None = None
    """When it was said, in words or as a date."""
    message_id: str | None = None
    """The id of the utterance in the client's own system."""
    type: str = "chat"
    """chat, or doc for a part of a document."""


def write_turns(turns: Sequence[Turn]) -> str:
    """Encode turns as the content of a message."""
    return msgspec.json.encode(turns).decode()


def read_turns(content: str) -> list[Turn]:
    """Decode the turns in the content of a message; any other text is one turn of the user."""
    try:
        return msgspec.json.decode(content, type=list[Turn])
    except msgspec.DecodeError:
        return [Turn(content=content)]


def memory_id_of(message: Message, index: int) -> str:
    """The id of the memory that turn `index` of a message becomes; known before the memory is written."""
    return f"{message.item_id}.{index}"
