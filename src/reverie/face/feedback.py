"""Feedback under governance: it changes only memories that its caller may read.

The handler of `mem_feedback` works for the system, and reads everything. So the memories that feedback may be
about are chosen here, as its caller sees them, and the message names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.backends.views import StatusQuery
from reverie.errors import InvalidMessageError, MemoryDeletedError
from reverie.memory.feedback import CANDIDATES, FAIR, FeedbackInput, search_text
from reverie.memory.query import SearchQuery
from reverie.message import Message, check_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.face.scheduler import AsyncScheduler

__all__ = ["governed_feedback"]


async def governed_feedback(scheduler: AsyncScheduler, messages: Sequence[Message]) -> list[Message]:
    """The `mem_feedback` messages of a caller, each about memories that the caller may read.

    Without governance they stay as they are. One that was accepted before keeps the memories that it names.
    """
    if not scheduler.runtime.reads.is_governed:
        return list(messages)
    await scheduler.open()
    return [await _governed(scheduler, message) for message in messages]


async def _governed(scheduler: AsyncScheduler, message: Message) -> Message:
    check_message(message, scheduler.runtime.limits)
    given = msgspec.json.decode(message.content, type=FeedbackInput)
    chosen = await _chosen_before(scheduler, message, given)
    if chosen is None and given.retrieved_memory_ids:
        ids = await _readable(scheduler, message.user_id, given.retrieved_memory_ids)
        chosen = msgspec.structs.replace(given, retrieved_memory_ids=ids, candidates=())
    elif chosen is None:
        chosen = msgspec.structs.replace(given, candidates=await _candidates(scheduler, message, given))
    return msgspec.structs.replace(message, content=msgspec.json.encode(chosen).decode())


async def _chosen_before(
    scheduler: AsyncScheduler, message: Message, given: FeedbackInput
) -> FeedbackInput | None:
    """The content of the same feedback if it was accepted before: a repeat must be the same message."""
    query = StatusQuery(user_id=message.user_id, item_id=message.item_id, with_message=True)
    rows = (await scheduler.runtime.backend.views.read(query)).rows
    known = rows[0].message if rows else None
    if known is None or known.lane != message.lane:
        return None
    try:
        chosen = msgspec.json.decode(known.content, type=FeedbackInput)
    except msgspec.MsgspecError:
        return None
    return chosen if _words(chosen) == _words(given) else None


def _words(given: FeedbackInput) -> FeedbackInput:
    """Feedback without the memories that it is about."""
    return msgspec.structs.replace(given, retrieved_memory_ids=(), candidates=None)


async def _readable(scheduler: AsyncScheduler, user_id: str, memory_ids: Sequence[str]) -> tuple[str, ...]:
    """The ids that the caller may read; an id that was superseded becomes that of its successor."""
    found: dict[str, None] = {}
    for memory_id in memory_ids:
        try:
            item = await scheduler.memory.get(memory_id, user_id=user_id)
        except (MemoryDeletedError, InvalidMessageError):
            continue
        if item is not None:
            found[item.id] = None
    return tuple(found)


async def _candidates(scheduler: AsyncScheduler, message: Message, given: FeedbackInput) -> tuple[str, ...]:
    """The memories that fit feedback well, among those that the caller may read."""
    found = await scheduler.runtime.reads.search(
        SearchQuery(
            text=search_text(given),
            user_id=message.user_id,
            mem_cube_ids=(message.mem_cube_id,),
            limit=CANDIDATES,
        )
    )
    return tuple(hit.item.id for hit in found.hits if hit.score >= FAIR)
