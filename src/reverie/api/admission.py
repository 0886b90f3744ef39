"""Admission: whose request this is, by its API key, and whether the key may ask again already."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from reverie.access.keys import MOST_CACHED, KeyLimits
from reverie.errors import (
    BackendUnavailableError,
    ForwardedRequestError,
    KeyNeededError,
    TooManyRequestsError,
)
from reverie.principal import NOBODY

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from reverie.principal import Principal
    from reverie.runtime import Runtime

__all__ = ["Admission", "Admitted", "credential_of"]

BURST_S = 2.0
"""A key that was quiet may send the requests of this many seconds at once."""
FORWARDED = (b"forwarded", b"x-forwarded-", b"x-real-ip", b"via")
"""The beginnings of the headers that a proxy adds to a request of somebody else."""
NO_LIMITS = KeyLimits()


class Admitted(NamedTuple):
    """The caller of a request, and what limits the caller's key has."""

    principal: Principal
    limits: KeyLimits


class Admission:
    """Finds the caller of each request.

    Before the first key was made, every request is one of `caller`, unless a proxy has forwarded it: behind a
    proxy, the whole world would be `caller`. From the first key on, every request needs a key, but for those
    of `open_paths`.
    """

    def __init__(
        self, runtime: Runtime, *, caller: Principal, open_paths: Container[str], requests_per_s: float | None
    ) -> None:
        """`requests_per_s` is the limit of keys that have none of their own; None: no limit."""
        self._runtime = runtime
        self._keys = runtime.keys
        self._caller = caller
        self._open_paths = open_paths
        self._requests_per_s = requests_per_s
        self._buckets: dict[str, _Bucket] = {}

    async def admit(self, headers: Iterable[tuple[bytes, bytes]], path: str) -> Admitted:
        """The caller of a request, or an error that says why it is refused."""
        admitted = await self._find(headers, path)
        if admitted.principal is not self._caller and admitted.principal is not NOBODY:
            self._count(admitted.principal.key, admitted.limits.requests_per_s or self._requests_per_s)
        return admitted

    async def still_admits(self, headers: Iterable[tuple[bytes, bytes]], path: str) -> bool:
        """Whether a request that was admitted would be admitted now: not if its key was revoked meanwhile."""
        try:
            await self._find(headers, path)
        except KeyNeededError:
            return False
        except BackendUnavailableError:
            return True  # nobody can revoke a key now either
        return True

    async def _find(self, headers: Iterable[tuple[bytes, bytes]], path: str) -> Admitted:
        if not self._runtime.opened:
            await self._runtime.open()
        token = credential_of(headers)
        found = await self._keys.find(token) if token else None
        if found is not None:
            return Admitted(*found)
        if not await self._keys.ever_made():
            for name, _ in headers:
                if name.startswith(FORWARDED):
                    raise ForwardedRequestError(name.decode("latin-1"))
            return Admitted(self._caller, NO_LIMITS)
        if token or path not in self._open_paths:
            raise KeyNeededError
        return Admitted(NOBODY, NO_LIMITS)

    def _count(self, key_id: str, per_s: float | None) -> None:
        """Count a request of a key, and refuse it if the key has sent too many."""
        if per_s is None:
            return
        bucket = self._buckets.get(key_id)
        if bucket is None or bucket.per_s != per_s:
            if len(self._buckets) >= MOST_CACHED:
                self._buckets.clear()
            bucket = self._buckets[key_id] = _Bucket(per_s)
        wait_s = bucket.take()
        if wait_s > 0:
            raise TooManyRequestsError(per_s, wait_s)


class _Bucket:
    """Requests that a key may send now: they grow with time, up to a burst."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._left = self._most
        self._at = time.monotonic()

    def take(self) -> float:
        """Take one request; the answer is how many seconds are missing to the next one, 0 if it is taken."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self.per_s)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self.per_s
        self._left -= 1
        return 0.0


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key of a request: `Authorization: Bearer KEY`, `Token KEY` or the bare key; empty: none."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.decode("latin-1").strip().partition(" ")
            return rest.strip() if scheme.lower() in {"bearer", "token"} and rest else scheme
    return ""
