"""What a `mem_feedback` message carries, what it may be about, and the id of what it may bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.turn import Turn

if TYPE_CHECKING:
    from reverie.message import Message

__all__ = ["CANDIDATES", "FAIR", "FeedbackInput", "correction_id", "cut", "search_text"]

FAIR = 0.45
"""The score from which a memory that feedback does not name counts as meant."""
CANDIDATES = 5
"""How many memories are looked for if feedback names none."""
LONGEST = 2000
"""How many characters of a text count."""


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
    candidates: tuple[str, ...] | None = None
    """The memories that feedback which names none may be about; None: the handler looks for them.

    If it is given, even empty, no memory is changed that the message does not name.
    """


def search_text(given: FeedbackInput) -> str:
    """What to search for to find the memories that feedback is about."""
    return cut(" ".join([given.feedback_content, *(turn.content for turn in given.history[-2:])]))


def cut(text: str) -> str:
    """The beginning of a text, on one line."""
    return " ".join(text.split())[:LONGEST]


def correction_id(message: Message) -> str:
    """The id of the memory that a correction becomes."""
    return f"{message.item_id}.0"
