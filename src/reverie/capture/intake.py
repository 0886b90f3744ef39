"""Turning what an agent hands over into the message that will be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.errors import InvalidMessageError
from reverie.message import Message
from reverie.turn import Turn, write_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_message"]


def add_message(turns: str | Sequence[Turn], **fields: Any) -> Message:
    """The message that asks to remember `turns`; a plain text is one turn of the user.

    `fields` are those of `Message`: `user_id` is needed, the rest may be left out.
    """
    turns = [Turn(content=turns)] if isinstance(turns, str) else list(turns)
    if not any(turn.content.strip() for turn in turns):
        raise InvalidMessageError("messages", [turn.content for turn in turns], "has nothing to remember")
    try:
        content = write_turns(turns)
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            "messages", [turn.content for turn in turns], "is not valid Unicode text"
        ) from error
    return Message(label="add", content=content, **fields)
