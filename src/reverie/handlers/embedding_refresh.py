"""The handler of the timed task `embedding_refresh`: it asks the indexer for a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.message import Key, Message

__all__ = ["embedding_refresh"]


async def embedding_refresh(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Ask the indexer for a pass: vectors that were late, or are of another model, are made now."""
    (message,) = messages
    await ctx.memory.refresh_index()
    return {message.key: Done()}
