"""Fanning out: one message of the system sends every tenant a message, page by page.

A handler of a `_system` message cannot write into the memory of other tenants, because effects go to the
tenant of their own message. It sends each tenant a message instead. So does one that a user's activity has
triggered: it names a user, but no cube.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from reverie.message import SYSTEM_USER, Message
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.dispatch.context import Context
    from reverie.memory.housekeeping import Which
    from reverie.memory.interface import Tenant

__all__ = ["copy_for", "fan_out", "fan_out_copies", "fan_out_cubes", "is_for_many"]

PAGE = 100
"""How many tenants one page has."""


async def fan_out(
    message: Message,
    ctx: Context,
    make: Callable[[Tenant], Message],
    *,
    page: int = PAGE,
    which: Which | None = None,
) -> Done:
    """Send the message that `make` builds to each tenant of one page, and a message for the next page.

    Only tenants that have memories are visited, and with `which` only those for which there is something to
    do. The message for the next page waits in the lane of this one, and runs when this one has ended. The ids
    of all these messages derive from this message, so that a repeated run sends nobody a second message.
    """
    after = tuple(msgspec.json.decode(message.content)) if message.content else None
    tenants: list[Tenant] = await ctx.memory.tenants(after, limit=page, which=which)
    follow_ups = [make(tenant) for tenant in tenants]
    if len(tenants) == page:
        content = msgspec.json.encode(tenants[-1]).decode()
        follow_ups.append(Message(user_id=SYSTEM_USER, label=message.label, content=content))
    return Done(follow_ups=follow_ups)


async def fan_out_cubes(
    ctx: Context, make: Callable[[Tenant], Message], changed_for: str | None = None
) -> Done:
    """Send the message that `make` builds to each cube of the user: a trigger names a user, but no cube.

    With `changed_for`, only to cubes that have changed since upkeep of that label has looked at them.
    """
    (claim,) = ctx.claims
    cubes: list[str] = await ctx.memory.cubes(changed_for)
    return Done(follow_ups=[make((claim.message.user_id, cube)) for cube in cubes])


def is_for_many(message: Message) -> bool:
    """Whether a message of a timed task is for all tenants, or for all cubes of a user."""
    return message.user_id == SYSTEM_USER or bool(message.user_key)


async def fan_out_copies(message: Message, ctx: Context, which: Which | None) -> Done:
    """Send a message that is for many to each tenant that needs one, or to each cube of its user."""
    make = partial(copy_for, message)
    if message.user_id != SYSTEM_USER:
        return await fan_out_cubes(ctx, make)
    return await fan_out(message, ctx, make, which=which)


def copy_for(message: Message, tenant: Tenant) -> Message:
    """A message like this one, without content, for a tenant."""
    user_id, cube = tenant
    return Message(user_id=user_id, mem_cube_id=cube, label=message.label, task_id=message.task_id)
