"""`scheduler.keys` and `scheduler.audit`: API keys and the audit log, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.base.bridge import Bridge, blocking
from reverie.errors import InvalidSelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.access.keys import ApiKey, KeyLimits, NewKey
    from reverie.backends.records import AuditEntry
    from reverie.runtime import Runtime

__all__ = ["AsyncAudit", "AsyncKeys", "AuditLog", "Keys"]

MOST_LISTED = 1000
"""The most keys, or entries of the audit log, on one page."""


class AsyncKeys:
    """Makes, lists, rotates and revokes API keys."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create(
        self,
        name: str,
        role: str = "user",
        *,
        users: Sequence[str] | None = None,
        cubes: Sequence[str] | None = None,
        attributes: dict[str, Any] | None = None,
        limits: KeyLimits | None = None,
        expires_at: int | None = None,
    ) -> NewKey:
        """Make a key; `token` of the answer is what its owner sends, and cannot be read again.

        The role is `read-only`, `user`, `service` or `admin`. A key touches only the `users` and `cubes` that
        it names; None means all. From the first key on, every request over HTTP needs one.
        """
        await self._runtime.open()
        return await self._runtime.keys.create(
            name,
            role,
            users=users,
            cubes=cubes,
            attributes=attributes,
            limits=limits,
            expires_at=expires_at,
        )

    async def page(self, *, after: str = "", limit: int = 100) -> list[ApiKey]:
        """The keys after the id `after`, by id, without their secrets."""
        _check_limit(limit)
        await self._runtime.open()
        return await self._runtime.keys.page(after=after, limit=limit)

    async def rotate(self, key_id: str, *, overlap_s: float = 0) -> NewKey:
        """Give a key a new secret; the old one stays valid for `overlap_s` seconds more."""
        await self._runtime.open()
        return await self._runtime.keys.rotate(key_id, overlap_s=overlap_s)

    async def revoke(self, key_id: str) -> ApiKey:
        """Refuse a key from now on. Other processes follow within a second."""
        await self._runtime.open()
        return await self._runtime.keys.revoke(key_id)

    async def ever_made(self) -> bool:
        """Whether a key was made once, so that every request over HTTP needs one."""
        await self._runtime.open()
        return await self._runtime.keys.ever_made()


class AsyncAudit:
    """Reads the audit log."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def page(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """Who changed what, newest first; `before` is the number of the last entry of the page before."""
        _check_limit(limit)
        await self._runtime.open()
        return await self._runtime.audit.page(before=before, limit=limit, user_id=user_id)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST_LISTED:
        raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_LISTED}")


class Keys:
    """`AsyncKeys` for code that blocks."""

    def __init__(self, inner: AsyncKeys, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    create = blocking(AsyncKeys.create)
    page = blocking(AsyncKeys.page)
    rotate = blocking(AsyncKeys.rotate)
    revoke = blocking(AsyncKeys.revoke)
    ever_made = blocking(AsyncKeys.ever_made)


class AuditLog:
    """`AsyncAudit` for code that blocks."""

    def __init__(self, inner: AsyncAudit, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    page = blocking(AsyncAudit.page)
