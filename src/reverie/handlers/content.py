"""The content of a message: JSON of a known shape, or any other text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.failures import InvalidWorkError

if TYPE_CHECKING:
    from reverie.message import Message

__all__ = ["read_json"]


def read_json(message: Message, kind: Any, opening: str = "{") -> Any:
    """The content of a message as JSON of this type; None if the content is any other text.

    `opening` has the characters with which such JSON begins: the text "2024" is no object.
    `InvalidWorkError` if the content is JSON that begins so, but has another shape.
    """
    if not message.content.lstrip().startswith(tuple(opening)):
        return None
    try:
        return msgspec.json.decode(message.content, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidWorkError(f"the content of the {message.label} message is wrong: {error}") from error
    except msgspec.DecodeError:
        return None
