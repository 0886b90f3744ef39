"""The handlers of the timed tasks `data_cleanup`, `embedding_refresh` and `statistics_update`.

A run for nobody in particular, a message of `_system`, sends a message to each tenant for which there is
something to do. A run that a user's activity has triggered does so for each cube of the user.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reverie.base.clock import from_epoch_ms
from reverie.effect import Delete, KeepStatistics
from reverie.handlers.fan_out import fan_out, fan_out_cubes
from reverie.message import SYSTEM_USER, Message
from reverie.outcome import Done

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.housekeeping import Counted, Which
    from reverie.memory.interface import Tenant
    from reverie.message import Key

__all__ = ["CLEANED", "data_cleanup", "embedding_refresh", "statistics_update"]

CLEANED = 200
"""How many items one message removes; the next message removes the rest."""


async def data_cleanup(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Remove the items of a tenant whose time is over. A message runs alone."""
    (message,) = messages
    options: HandlerOptions = await ctx.options()
    if message.user_id == SYSTEM_USER or message.user_key:
        done = await _for_each(message, ctx, None if options.retention else "expired")
        return {message.key: done}
    expired: list[tuple[str, int]] = await ctx.memory.expired(options.retention, CLEANED)
    return {
        message.key: Done(
            effects=[Delete(memory_id=memory_id, version=version) for memory_id, version in expired],
            follow_ups=[_one_for(message, message.tenant)] if len(expired) == CLEANED else [],
        )
    }


async def embedding_refresh(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Ask the indexer for a pass: vectors that were late, or are of another model, are made now."""
    (message,) = messages
    await ctx.memory.refresh_index()
    return {message.key: Done()}


async def statistics_update(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Count the items of a tenant, by kind and tier. A message runs alone."""
    (message,) = messages
    if message.user_id == SYSTEM_USER or message.user_key:
        return {message.key: await _for_each(message, ctx, "uncounted")}
    options: HandlerOptions = await ctx.options()
    changes: int = await ctx.memory.changes()  # before the count: what changes later is counted next time
    counts: list[Counted] = await ctx.memory.counts()
    day = from_epoch_ms(options.now).date().isoformat()
    kept = KeepStatistics(day=day, changes=changes, counts=tuple(sorted(counts)))
    return {message.key: Done(effects=[kept])}


async def _for_each(message: Message, ctx: Context, which: Which | None) -> Done:
    """Send a message to each tenant that needs one, or to each cube of the user whose trigger has fired."""
    make = partial(_one_for, message)
    if message.user_id != SYSTEM_USER:
        return await fan_out_cubes(ctx, make)
    return await fan_out(message, ctx, make, which=which)


def _one_for(message: Message, tenant: Tenant) -> Message:
    user_id, cube = tenant
    return Message(user_id=user_id, mem_cube_id=cube, label=message.label, task_id=message.task_id)
