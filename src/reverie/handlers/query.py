"""The handlers of the labels `query` and `answer`: what was asked, what was found, what was answered.

They count accesses, keep the last queries of the tenant, and let working memory be ranked anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from reverie.effect import NoteAnswer, NoteQuery, Touch
from reverie.failures import InvalidWorkError
from reverie.message import Message
from reverie.outcome import Done

__all__ = ["AnswerInput", "QueryInput", "answer", "query"]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.effect import Effect

Input = TypeVar("Input")
MOST_IDS = 1000
"""How many memories one query or answer may name."""
LONGEST = 8000
"""How many characters of a query or an answer are kept."""


class QueryInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a `query` message; any other text is the query itself."""

    query: str
    session_id: str | None = None
    found: tuple[str, ...] = ()
    """The ids of the memories that were found, best first."""


class AnswerInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of an `answer` message; any other text is the answer itself."""

    answer: str
    query_item_id: str | None = None
    """The item_id of the `query` message; without it, the last query of the session without an answer."""
    used: tuple[str, ...] = ()
    """The ids of the memories that the answer has used."""


async def query(message: Message) -> Done:
    """Count an access to each memory that was found, keep the query, and rank working memory anew."""
    asked = _read(message, QueryInput, "query")
    session_id = asked.session_id or message.session_id
    noted = NoteQuery(
        query_id=message.item_id, query=asked.query[:LONGEST], session_id=session_id, found=asked.found
    )
    update = Message(
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        label="mem_update",
        content=msgspec.json.encode({"memory_ids": asked.found}).decode(),
        unique_key="working",
        unique_policy="sooner",
    )
    return Done(effects=[noted, *_touches(asked.found)], follow_ups=[update])


async def answer(message: Message) -> Done:
    """Keep the answer with its query, and count an access to each memory that it has used."""
    given = _read(message, AnswerInput, "answer")
    noted = NoteAnswer(
        answer=given.answer[:LONGEST],
        query_id=given.query_item_id,
        session_id=message.session_id,
        used=given.used,
    )
    return Done(effects=[noted, *_touches(given.used)])


def _touches(memory_ids: Iterable[str]) -> list[Effect]:
    return [Touch(memory_id=memory_id) for memory_id in dict.fromkeys(memory_ids)]


def _read(message: Message, kind: type[Input], field: str) -> Input:
    """The content of a message; a text that is no JSON object is its main field."""
    content = message.content
    try:
        value: Any = msgspec.json.decode(content)
    except msgspec.DecodeError:
        value = content
    if not isinstance(value, dict):
        value = {field: content}
    try:
        read = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidWorkError(f"the content of the message is wrong: {error}") from error
    named: tuple[str, ...] = getattr(read, "found", ()) or getattr(read, "used", ())
    if len(named) > MOST_IDS:
        raise InvalidWorkError(f"the message names {len(named)} memories: at most {MOST_IDS} are allowed")
    if any(not memory_id or "\0" in memory_id for memory_id in named):
        raise InvalidWorkError("the id of a memory must not be empty or contain a NUL character")
    return read
