"""The principal: on whose behalf code runs, and what that caller may do."""

from __future__ import annotations

from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from reverie.errors import ForeignDataError, RoleError
from reverie.failures import without_traceback

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LOCAL_ADMIN", "NOBODY", "OfTenant", "Principal", "Role", "current_principal"]


class OfTenant(Protocol):
    """A row that belongs to a user and a cube."""

    @property
    def user_id(self) -> str:
        """The user."""
        ...

    @property
    def mem_cube_id(self) -> str:
        """The cube of the user."""
        ...


T = TypeVar("T", bound=OfTenant)


class Role(IntEnum):
    """What a principal may do. Each role includes the ones below it."""

    READ_ONLY = 1
    """Search memories and look at the queue."""
    USER = 2
    """Also hand over memories and messages, and run timed tasks."""
    SERVICE = 3
    """Also submit work that cleans up or changes memories without being asked by their user."""
    ADMIN = 4
    """Also change how the system works for every user."""

    @property
    def title(self) -> str:
        """The name of the role for people: `read-only`, `user`, `service` or `admin`."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of_title(cls, title: str) -> Role:
        """The role with this name; `ValueError` if there is none."""
        for role in cls:
            if role.title == title:
                return role
        raise ValueError(f"must be one of {', '.join(role.title for role in cls)}")


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: the owner of an API key, or the local caller."""

    key: str
    """The id of the key; never the key itself."""
    role: Role
    users: frozenset[str] | None = None
    """The users whose data this principal may touch; None: every user."""
    cubes: frozenset[str] | None = None
    """The cubes of these users that this principal may touch; None: every cube."""
    attributes: dict[str, Any] = {}
    """Further facts about the caller, for governance."""

    @property
    def is_bound(self) -> bool:
        """Whether the principal may touch only some users or cubes."""
        return self.users is not None or self.cubes is not None

    def may_touch(self, user_id: str, mem_cube_id: str | None = None) -> bool:
        """Whether the principal may touch a user's data, or one of the user's cubes."""
        if self.users is not None and user_id not in self.users:
            return False
        return self.cubes is None or mem_cube_id is None or (mem_cube_id or user_id) in self.cubes

    def cubes_among(self, named: Sequence[str]) -> Sequence[str]:
        """The cubes that a question is about: those it names, else all that the principal may touch.

        Empty: every cube. The caller has checked the named ones.
        """
        return named if named or self.cubes is None else sorted(self.cubes)

    def own(self, rows: Iterable[T]) -> list[T]:
        """Those of the rows that the principal may touch."""
        if not self.is_bound:
            return list(rows)
        return [row for row in rows if self.may_touch(row.user_id, row.mem_cube_id)]

    def error_shown(self, error: str | None) -> str | None:
        """The error of a run as this principal may see it: without its traceback, unless for admins."""
        return error if error is None or self.role >= Role.ADMIN else without_traceback(error)

    def check_role(self, needed: Role, what: str = "this") -> None:
        """Refuse a principal with a weaker role; `what` is what needs the role, in words."""
        if self.role < needed:
            raise RoleError(self.role.title, needed.title, what)

    def check_touch(self, user_id: str, cubes: Iterable[str] = ()) -> None:
        """Refuse data of a user or a cube that this principal may not touch, whether or not it exists."""
        if not self.may_touch(user_id):
            raise ForeignDataError("user", user_id)
        for cube in cubes:
            if not self.may_touch(user_id, cube):
                raise ForeignDataError("cube", cube)


LOCAL_ADMIN = Principal(key="local", role=Role.ADMIN)
"""The principal of a caller on this machine, who needs no key."""

NOBODY = Principal(key="nobody", role=Role.READ_ONLY, users=frozenset(), cubes=frozenset())
"""The principal of a request without a key on a server that has keys. It reaches only what is open to all."""

current_principal: ContextVar[Principal] = ContextVar("reverie_principal", default=LOCAL_ADMIN)
"""The principal of the running code. HTTP sets it for each request; Python callers have the default."""
