"""Fanning out: work for every tenant, from one message of the system, page by page.

A handler of `_system` cannot write into the memory of a tenant: effects go to the tenant of their own
message. It sends each tenant a message instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.message import SYSTEM_USER, Message
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.dispatch.context import Context
    from reverie.memory.interface import Tenant

__all__ = ["fan_out"]

PAGE = 100
"""Tenants of one page."""


async def fan_out(
    message: Message, ctx: Context, make: Callable[[Tenant], Message], *, page: int = PAGE
) -> Done:
    """Send what `make` makes to each tenant that has memories: one page, and a message for the next page.

    The message for the next page waits in the lane of this one, so it runs when this one has ended. The ids
    of all derive from this message: a repeated run sends nobody a second message.
    """
    after = tuple(msgspec.json.decode(message.content)) if message.content else None
    tenants: list[Tenant] = await ctx.memory.tenants(after, limit=page)
    follow_ups = [make(tenant) for tenant in tenants]
    if len(tenants) == page:
        content = msgspec.json.encode(tenants[-1]).decode()
        follow_ups.append(Message(user_id=SYSTEM_USER, label=message.label, content=content))
    return Done(follow_ups=follow_ups)
