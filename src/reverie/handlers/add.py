"""The handler of the label `add`: each turn of a chat becomes a memory, word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.effect import Remember, Source
from reverie.outcome import Done
from reverie.turn import memory_id_of, read_turns

if TYPE_CHECKING:
    from reverie.message import Message

__all__ = ["add"]


async def add(message: Message) -> Done:
    """Keep each turn as one memory, with its source."""
    return Done(
        effects=[
            Remember(
                memory_id=memory_id_of(message, index),
                text=turn.content,
                session_id=message.session_id,
                info=message.info,
                sources=(
                    Source(item_id=message.item_id, index=index, role=turn.role, chat_time=turn.chat_time),
                ),
            )
            for index, turn in enumerate(read_turns(message.content))
            if turn.content.strip()
        ]
    )
