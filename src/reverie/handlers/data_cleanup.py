"""The handler of the timed task `data_cleanup`: it removes items whose time is over, by default no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.effect import Delete
from reverie.handlers.fan_out import copy_for, fan_out_copies, is_for_many
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.message import Key, Message

__all__ = ["CLEANED", "data_cleanup"]

CLEANED = 200
"""How many items one message removes; the next message removes the rest."""


async def data_cleanup(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Remove the items of a tenant whose time is over. A message runs alone."""
    (message,) = messages
    options: HandlerOptions = await ctx.options()
    if is_for_many(message):
        return {message.key: await fan_out_copies(message, ctx, None if options.retention else "expired")}
    expired: list[tuple[str, int]] = await ctx.memory.expired(options.retention, CLEANED)
    return {
        message.key: Done(
            effects=[Delete(memory_id=memory_id, version=version) for memory_id, version in expired],
            follow_ups=[copy_for(message, message.tenant)] if len(expired) == CLEANED else [],
        )
    }
