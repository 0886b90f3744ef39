"""A memory whose message is accepted and not settled yet, as it will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.views import StatusQuery
from reverie.handlers.add import memories_of
from reverie.memory.item import MemoryItem

if TYPE_CHECKING:
    from reverie.backends.interface import QueueViews
    from reverie.effect import Remember
    from reverie.message import Message

__all__ = ["unwritten_item"]


async def unwritten_item(views: QueueViews, user_id: str, memory_id: str) -> MemoryItem | None:
    """The memory that a waiting message will become; None if no message will become one with this id."""
    item_id, _, index = memory_id.rpartition(".")
    if not item_id or not index.isascii() or not index.isdigit() or (index[0] == "0" and index != "0"):
        return None
    rows = (await views.read(StatusQuery(user_id=user_id, item_id=item_id, with_message=True))).rows
    message = rows[0].message if rows and not rows[0].status.ended else None
    if message is None or message.label != "add":
        return None
    for memory in memories_of(message):
        if memory.memory_id == memory_id:
            return _item_of(memory, message, rows[0].submitted_at)
    return None


def _item_of(memory: Remember, message: Message, submitted_at: int) -> MemoryItem:
    """The item that an effect of a message will write, with all that governance may ask for."""
    return MemoryItem(
        id=memory.memory_id,
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        text=memory.text,
        kind=memory.kind,
        tier=memory.tier,
        session_id=memory.session_id,
        device_id=memory.device_id,
        agent_id=memory.agent_id,
        domain=memory.domain,
        tags=memory.tags,
        info=memory.info,
        sources=memory.sources,
        valid_from=memory.valid_from,
        created_at=submitted_at,
        updated_at=submitted_at,
        version=0,
        status="resolving",
    )
