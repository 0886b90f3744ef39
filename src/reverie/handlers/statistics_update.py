"""The handler of the timed task `statistics_update`: it counts what dashboards show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.clock import from_epoch_ms
from reverie.effect import KeepStatistics
from reverie.handlers.fan_out import fan_out_copies, is_for_many
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.housekeeping import Counted
    from reverie.message import Key, Message

__all__ = ["statistics_update"]


async def statistics_update(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Count the items of a tenant, by kind and tier. A message runs alone."""
    (message,) = messages
    if is_for_many(message):
        return {message.key: await fan_out_copies(message, ctx, "uncounted")}
    options: HandlerOptions = await ctx.options()
    changes: int = await ctx.memory.changes()  # before the count: what changes later is counted next time
    counts: list[Counted] = await ctx.memory.counts()
    day = from_epoch_ms(options.now).date().isoformat()
    kept = KeepStatistics(day=day, changes=changes, counts=tuple(sorted(counts)))
    return {message.key: Done(effects=[kept])}
