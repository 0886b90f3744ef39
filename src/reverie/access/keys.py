"""API keys: made, shown once, kept as hashes, looked up for each request, rotated and revoked.

A key is `rv_{id}_{secret}`. The id is public, and names the key in lists and in the audit log. The secret has
256 random bits; the records of the backend have only its SHA-256. That is enough, because nobody can try out
all secrets of that length.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.backends.records import Record
from reverie.errors import BackendUnavailableError, InvalidSelectionError, UnknownKeyError
from reverie.principal import Principal, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.access.audit import Audit
    from reverie.backends.interface import Records
    from reverie.base.clock import Clock

__all__ = ["CACHE_S", "MOST_CACHED", "ApiKey", "ApiKeys", "KeyLimits", "NewKey"]

KIND = "key"
REVOKED = "revoked_key"
"""The kind of the records that say that a key is revoked. Nothing removes them: no other change of the key
that is made at the same time can take a revocation back."""
META = "meta"
EVER_MADE = "keys"
"""The record that says that a key was made once. It is never removed."""
CACHE_S = 1.0
"""For how many seconds a process believes what it has read of a key: a revoked key may work that long."""
MOST_CACHED = 10_000
"""Keys that a process remembers; then it forgets all and reads them anew."""
TOKEN = re.compile(r"rv_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
NO_HASH = hashlib.sha256(b"").hexdigest()


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a key may do at most; None: what the server allows everybody."""

    requests_per_s: float | None = None
    """Requests a second, on average, in each server process; bursts of up to two seconds are let through."""
    max_body_bytes: int | None = None
    """Bytes of one request; never more than `server.max_body_bytes`."""
    max_json_depth: int | None = None
    """Levels of objects and lists inside each other, in the body of a request."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    """What people call the key."""
    role: str
    """`read-only`, `user`, `service` or `admin`."""
    users: tuple[str, ...] | None = None
    """The users that the key may touch; None: every user."""
    cubes: tuple[str, ...] | None = None
    """The cubes of these users that the key may touch; None: every cube."""
    attributes: dict[str, Any] = {}
    """Further facts about the owner, for governance."""
    limits: KeyLimits = KeyLimits()
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    rotated_at: int | None = None


class _Kept(ApiKey, frozen=True, kw_only=True):
    """A key as its record keeps it."""

    hash: str
    """SHA-256 of the secret."""
    old_hash: str | None = None
    """The hash before the last rotation, which is valid until `old_until`."""
    old_until: int = 0


class NewKey(NamedTuple):
    """A key that was just made, with the text that its owner sends. The text cannot be read again."""

    key: ApiKey
    token: str


class _Cached(NamedTuple):
    kept: _Kept | None
    read_at: float


class ApiKeys:
    """The keys of one queue, as one process sees them."""

    def __init__(self, records: Records, audit: Audit, clock: Clock) -> None:
        self._records = records
        self._audit = audit
        self._clock = clock
        self._cache: dict[str, _Cached] = {}
        self._ever_made = False
        self._looked_at = 0.0
        """When the record was read, by the monotonic clock; 0: never."""

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
        """Make a key. From the first one on, every request over HTTP needs a key."""
        key = ApiKey(
            id=secrets.token_hex(6),
            name=name,
            role=role,
            users=None if users is None else tuple(dict.fromkeys(users)),
            cubes=None if cubes is None else tuple(dict.fromkeys(cubes)),
            attributes=attributes or {},
            limits=limits or KeyLimits(),
            created_at=self._clock.now(),
            expires_at=expires_at,
        )
        _check(key, self._clock.now())
        secret = secrets.token_urlsafe(32)
        kept = _Kept(**msgspec.structs.asdict(key), hash=_hash(secret))
        await self._write(kept, "key.create", Record(kind=META, id=EVER_MADE, value={"made": True}))
        self._ever_made = True
        return NewKey(key, f"rv_{key.id}_{secret}")

    async def page(self, *, after: str = "", limit: int = 100) -> list[ApiKey]:
        """The keys after the id `after`, by id; revoked and expired ones, too."""
        found = await self._records.page(KIND, after=after, limit=limit)
        return [_without_hashes(_kept(record)) for record in found]

    async def rotate(self, key_id: str, *, overlap_s: float = 0) -> NewKey:
        """Give a key a new secret. The old one stays valid for `overlap_s` seconds more."""
        kept = await self._get(key_id)
        if kept.revoked_at is not None:
            raise InvalidSelectionError(f"the key {key_id!r} is revoked: create another one")
        if not 0 <= overlap_s <= MOST_OVERLAP_S:
            raise InvalidSelectionError(f"overlap_s={overlap_s}: must be 0 to {MOST_OVERLAP_S}")
        now = self._clock.now()
        secret = secrets.token_urlsafe(32)
        changed = msgspec.structs.replace(
            kept,
            hash=_hash(secret),
            old_hash=kept.hash if overlap_s else None,
            old_until=now + round(overlap_s * 1000),
            rotated_at=now,
        )
        await self._write(changed, "key.rotate")
        revoked_at = await self._revoked_at(key_id)
        if revoked_at is not None:  # meanwhile
            await self._write(msgspec.structs.replace(changed, revoked_at=revoked_at), "key.revoke")
            raise InvalidSelectionError(f"the key {key_id!r} is revoked: create another one")
        return NewKey(_without_hashes(changed), f"rv_{key_id}_{secret}")

    async def revoke(self, key_id: str) -> ApiKey:
        """Refuse a key from now on, everywhere within `CACHE_S` seconds. Idempotent."""
        kept = await self._get(key_id)
        if kept.revoked_at is None:
            kept = msgspec.structs.replace(kept, revoked_at=self._clock.now())
            gone = Record(kind=REVOKED, id=key_id, value={"at": kept.revoked_at})
            await self._write(kept, "key.revoke", gone)
        return _without_hashes(kept)

    async def ever_made(self) -> bool:
        """Whether a key was made once, so that every request needs one."""
        if not self._ever_made and time.monotonic() - self._looked_at >= CACHE_S:
            try:
                self._ever_made = await self._records.get(META, EVER_MADE) is not None
            except BackendUnavailableError:
                if not self._looked_at:
                    raise
            else:
                self._looked_at = time.monotonic()
        return self._ever_made

    async def find(self, token: str) -> tuple[Principal, KeyLimits] | None:
        """Whose key this is, and its limits; None if it is unknown, revoked or expired."""
        match = TOKEN.fullmatch(token)
        kept = await self._look_up(match[1]) if match else None
        secret = _hash(match[2]) if match else NO_HASH
        now = self._clock.now()
        is_right = hmac.compare_digest(secret, kept.hash if kept else NO_HASH)
        if kept and kept.old_hash and now < kept.old_until:
            is_right |= hmac.compare_digest(secret, kept.old_hash)
        if not is_right or kept is None or kept.revoked_at is not None:
            return None
        if kept.expires_at is not None and kept.expires_at <= now:
            return None
        return _principal(kept), kept.limits

    async def _look_up(self, key_id: str) -> _Kept | None:
        """The key with this id, as it was at most `CACHE_S` seconds ago."""
        cached = self._cache.get(key_id)
        now = time.monotonic()
        if cached is None or now - cached.read_at >= CACHE_S:
            try:
                kept = await self._read(key_id)
            except BackendUnavailableError:
                if cached is None:
                    raise
                return cached.kept  # nobody can revoke it now either: that is written to the same backend
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            cached = self._cache[key_id] = _Cached(kept, now)
        return cached.kept

    async def _get(self, key_id: str) -> _Kept:
        kept = await self._read(key_id)
        if kept is None:
            raise UnknownKeyError(key_id)
        return kept

    async def _read(self, key_id: str) -> _Kept | None:
        record = await self._records.get(KIND, key_id)
        if record is None:
            return None
        kept = _kept(record)
        if kept.revoked_at is None:
            kept = msgspec.structs.replace(kept, revoked_at=await self._revoked_at(key_id))
        return kept

    async def _revoked_at(self, key_id: str) -> int | None:
        record = await self._records.get(REVOKED, key_id)
        return None if record is None else int(record.value["at"])

    async def _write(self, kept: _Kept, action: str, *others: Record) -> None:
        record = Record(kind=KIND, id=kept.id, value=msgspec.to_builtins(kept))
        await self._records.change([record, *others], [self._audit.entry(action, kept.id)])
        self._cache.pop(kept.id, None)


MOST_OVERLAP_S = 30 * 24 * 3600
"""The longest time that an old secret stays valid after a rotation: thirty days."""
MOST_NAMED = 1000
"""The most users, and the most cubes, that one key may name."""
LONGEST_NAME = 200


def _check(key: ApiKey, now: int) -> None:
    """Refuse a key that cannot mean what its maker wants."""
    try:
        role = Role.of_title(key.role)
    except ValueError as error:
        raise InvalidSelectionError(f"role={key.role!r}: {error}") from error
    if not key.name.strip() or len(key.name) > LONGEST_NAME:
        raise InvalidSelectionError(f"name={key.name!r}: must have 1 to {LONGEST_NAME} characters")
    if role is Role.USER and not key.users:
        raise InvalidSelectionError("a key of the role user names its users: give users")
    if role is Role.ADMIN and (key.users is not None or key.cubes is not None):
        raise InvalidSelectionError("a key of the role admin is for all users: leave users and cubes out")
    for what, names in (("users", key.users), ("cubes", key.cubes)):
        if names is not None and not 1 <= len(names) <= MOST_NAMED:
            raise InvalidSelectionError(f"{what}: name 1 to {MOST_NAMED}, or leave it out for all")
        if names and any(not name or name.startswith("_") for name in names):
            raise InvalidSelectionError(f"{what}: names are not empty and do not begin with _")
    if key.expires_at is not None and key.expires_at <= now:
        raise InvalidSelectionError(f"expires_at={key.expires_at}: must be in the future")
    _check_limits(key.limits)


def _check_limits(limits: KeyLimits) -> None:
    for name, most in msgspec.structs.asdict(limits).items():
        if most is not None and not 0 < most < float("inf"):
            raise InvalidSelectionError(f"{name}={most}: must be greater than 0")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _kept(record: Record) -> _Kept:
    return msgspec.convert(record.value, _Kept)


def _without_hashes(kept: _Kept) -> ApiKey:
    return ApiKey(**{name: getattr(kept, name) for name in ApiKey.__struct_fields__})


def _principal(key: ApiKey) -> Principal:
    return Principal(
        key=key.id,
        role=Role.of_title(key.role),
        users=None if key.users is None else frozenset(key.users),
        cubes=None if key.cubes is None else frozenset(key.cubes),
        attributes=key.attributes,
    )
