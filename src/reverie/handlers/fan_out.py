"""Fanning out: one message of the system sends every tenant a message, page by page.

A handler of a `_system` message cannot write into the memory of other tenants, because effects go to the
tenant of their own message. It sends each tenant a message instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.message import SYSTEM_USER, Message
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.dispatch.context import Context
    from reverie.memory.housekeeping import Which
    from reverie.memory.interface import Tenant

__all__ = ["fan_out", "fan_out_cubes"]

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
