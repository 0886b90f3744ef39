"""The handler of the label `mem_archive`: what nobody has asked for in a long time moves to the archive.

Archived memories are found when a search finds too few others, and come back when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.effect import InPass, Move
from reverie.handlers.grouping import TIERS
from reverie.handlers.upkeep import UpkeepInput, follow_up, read_input
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message

__all__ = ["MOST_ARCHIVED", "mem_archive"]

MOST_ARCHIVED = 500
"""How many memories one message archives; another message does the rest."""


async def mem_archive(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Archive what nobody has asked for since `upkeep.archive_after_days`. A message runs alone."""
    (message,) = messages
    asked = read_input(message)
    options: HandlerOptions = await ctx.options()
    before = options.now - options.archive_after_ms
    cold: list[MemoryItem] = []
    for tier in sorted(TIERS):
        cold += await ctx.upkeep.coldest(tier, before, MOST_ARCHIVED - len(cold))
    effects: list[Effect] = [InPass(pass_id=asked.pass_id or message.item_id, label=message.label)]
    effects += [Move(memory_id=item.id, version=item.version, tier="archive") for item in cold]
    full = len(cold) == MOST_ARCHIVED
    rest = [follow_up(message, UpkeepInput(pass_id=asked.pass_id))] if full else []
    return {message.key: Done(effects=effects, follow_ups=rest)}
