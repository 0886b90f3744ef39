"""The principal: on whose behalf code runs, and what that caller may do."""

from __future__ import annotations

from contextvars import ContextVar
from enum import IntEnum
from typing import Any

import msgspec

__all__ = ["LOCAL_ADMIN", "Principal", "Role", "current_principal"]


class Role(IntEnum):
    """What a principal may do. Each role includes the ones below it."""

    READER = 1
    """Search memories and look at the queue."""
    WRITER = 2
    """Also hand over memories and messages, and run timed tasks."""
    ADMIN = 3
    """Also change how the system works for every user."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: the owner of an API key, or the local caller."""

    key: str
    """The name of the key; never the key itself."""
    role: Role
    users: frozenset[str] | None = None
    """The users whose data this principal may touch; None: every user."""
    attributes: dict[str, Any] = {}
    """Further facts about the caller, for governance."""


LOCAL_ADMIN = Principal(key="local", role=Role.ADMIN)
"""The principal of a caller on this machine, who needs no key."""

current_principal: ContextVar[Principal] = ContextVar("reverie_principal", default=LOCAL_ADMIN)
"""The principal of the running code. HTTP sets it for each request; Python callers have the default."""
