"""The file of conversations and questions that an evaluation reads: its format and its checks."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.errors import InvalidDataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Conversation", "Question", "Utterance", "read_conversations"]

STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
"""One step of a place such as `$.conversations[0].turns[3].text`."""


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation, as the file has it."""

    id: str
    session: int | str = 1
    date: str | None = None
    """When it was said, in words or as a date."""
    speaker: str | None = None
    text: str
    caption: str | None = None
    """What a picture that was sent with the text shows."""

    @property
    def content(self) -> str:
        """The text, and the caption of its picture if there is one."""
        return f"{self.text} {self.caption}" if self.caption else self.text


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the turns that answer it."""

    question: str
    kind: str = "question"
    evidence: tuple[str, ...]
    """The ids of the turns that a search should find."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one conversation in their order, and the questions about it."""

    id: str
    turns: tuple[Utterance, ...]
    questions: tuple[Question, ...] = ()

    def sessions(self) -> dict[str, list[Utterance]]:
        """Name of a session → its turns, both in the order of the file."""
        found: dict[str, list[Utterance]] = {}
        for turn in self.turns:
            found.setdefault(f"session-{turn.session}", []).append(turn)
        return found


class _File(msgspec.Struct, frozen=True):
    conversations: tuple[Conversation, ...]


def read_conversations(path: Path) -> tuple[Conversation, ...]:
    """Read and check a file. Unknown fields are ignored; an error names the place and the value."""
    try:
        content = json.loads(path.read_bytes())
        msgspec.json.encode(content)  # refuses half a surrogate pair, which no storage can keep
    except OSError as error:
        raise InvalidDataError(path, "", f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        reason = f"is no JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise InvalidDataError(path, "", reason) from error
    except UnicodeEncodeError as error:
        raise InvalidDataError(path, "", "is not valid Unicode text") from error
    except (ValueError, RecursionError) as error:
        raise InvalidDataError(path, "", f"is no JSON: {error}") from error
    try:
        conversations = msgspec.convert(content, _File).conversations
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$")
        raise InvalidDataError(path, place.lstrip("."), reason, _value_at(content, place)) from error
    for place, value, reason in _problems(conversations):
        raise InvalidDataError(path, place, reason, value)
    return conversations


def _problems(conversations: tuple[Conversation, ...]) -> Iterator[tuple[str, object, str]]:
    """Each problem that the types of the fields do not show: place, value and reason."""
    if not any(conversation.questions for conversation in conversations):
        yield "conversations", len(conversations), "no conversation has a question"
    for repeated in _repeated(conversation.id for conversation in conversations):
        yield "conversations", repeated, "two conversations have this id"
    for number, conversation in enumerate(conversations):
        place = f"conversations[{number}]"
        known = {turn.id for turn in conversation.turns if turn.content.strip()}
        for repeated in _repeated(turn.id for turn in conversation.turns):
            yield f"{place}.turns", repeated, "two turns of this conversation have this id"
        for index, question in enumerate(conversation.questions):
            here = f"{place}.questions[{index}]"
            if not question.question.strip():
                yield f"{here}.question", question.question, "must not be empty"
            if not question.evidence:
                yield f"{here}.evidence", [], "must name at least one turn"
            for missing in sorted({*question.evidence} - known):
                yield f"{here}.evidence", missing, "no turn of this conversation with a text has this id"


def _repeated(ids: Iterable[str]) -> list[str]:
    return [each for each, count in Counter(ids).items() if count > 1]


def _value_at(content: Any, place: str) -> Any:
    """The value at a place such as `.conversations[0].id`; for a missing field, the object that lacks it."""
    for name, index in STEP.findall(place):
        content = content[name] if name else content[int(index)]
    return content
