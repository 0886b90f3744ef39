"""What a `mem_feedback` message carries, and the id of what it may bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.turn import Turn

if TYPE_CHECKING:
    from reverie.message import Message

__all__ = ["FeedbackInput", "correction_id"]


class FeedbackInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a `mem_feedback` message; any other text is the feedback itself."""

    feedback_content: str
    history: tuple[Turn, ...] = ()
    """The conversation that the feedback is about."""
    retrieved_memory_ids: tuple[str, ...] = ()
    """The memories that the answer was made with."""
    feedback_time: str | None = None
    """When the feedback was given, in words or as a date."""
    corrected_answer: bool = False
    """Whether the feedback says what the answer should have been."""


def correction_id(message: Message) -> str:
    """The id of the memory that a correction becomes."""
    return f"{message.item_id}.0"
