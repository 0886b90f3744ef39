"""The Redis backend: messages wait on a Redis or Valkey server that any number of instances share.

`queue.py` has the moves, `triggers.py` the triggers, `records.py` what people set up. `breaker_state.py` has
the breakers and limiters that workers share, `broadcast.py` the news that processes tell each other. `lua/`
has the functions that run on the server, `keys.py` the names of the keys. `check.py` says whether a server is
fit to keep messages, `repair.py` mends a queue, `usage.py` says what takes room.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.durability import replicas_of
from reverie.backends.interface import Capabilities
from reverie.backends.moves import QueueLimits
from reverie.errors import MissingExtraError

try:
    import redis as _driver  # noqa: F401  only to say in our own words that the driver is missing
except ImportError as error:
    raise MissingExtraError("redis") from error

from reverie.backends.redis.breaker_state import RedisSharedState
from reverie.backends.redis.broadcast import RedisBroadcast
from reverie.backends.redis.check import (
    ServerFinding,
    UnsafeServerError,
    check_permissions,
    check_server,
    examine,
)
from reverie.backends.redis.connection import Connections
from reverie.backends.redis.direct import DirectConnections
from reverie.backends.redis.keys import DEFAULT_PREFIX, Keys
from reverie.backends.redis.library import (
    KeysMigratedError,
    KeysVersionError,
    Library,
    WrongTypeError,
    repair_source,
)
from reverie.backends.redis.permissions import ForbiddenError
from reverie.backends.redis.prefixes import PrefixCollisionError, check_prefix, register_prefix
from reverie.backends.redis.queue import RedisQueue
from reverie.backends.redis.records import RedisRecords
from reverie.backends.redis.repair import Repaired, Repairer
from reverie.backends.redis.replication import NotReplicatedError, Replication
from reverie.backends.redis.triggers import RedisTriggers
from reverie.backends.redis.usage import ServerUsage, measure
from reverie.backends.redis.views import RedisViews

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "ForbiddenError",
    "KeysMigratedError",
    "KeysVersionError",
    "NotReplicatedError",
    "PrefixCollisionError",
    "RedisBackend",
    "Repaired",
    "ServerFinding",
    "ServerUsage",
    "UnsafeServerError",
    "WrongTypeError",
    "examine_server",
    "measure_server",
    "repair_queue",
]


class RedisBackend:
    """See `reverie.backends.interface.Backend`."""

    def __init__(
        self,
        url: str,
        limits: QueueLimits | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        allow_volatile: bool = False,
        durability_assumed: bool = False,
        durability: str | None = None,
        replication_timeout_s: float = 3,
    ) -> None:
        """Use the server at `url`: `redis://`, `rediss://` or `unix://`.

        `allow_volatile` accepts a server that may forget or evict messages; `durability_assumed` accepts one
        that does not say whether it would. `durability` is the least that the server must have: `everysec` or
        `always`. With `replicated(n)`, a submit, an activity and a firing are answered when n replicas
        have confirmed them, within `replication_timeout_s`.
        """
        keys = self._keys = Keys(prefix)
        self._connections = Connections(url)
        self._library = Library(self._connections, keys)
        self._allow_volatile = allow_volatile
        self._durability_assumed = durability_assumed
        self._durability = durability
        self._direct = DirectConnections(url, self._connections)
        direct = Library(self._direct, keys)
        replicas = replicas_of(durability)
        replication = (
            Replication(self._connections.place, keys.replicated, replicas, replication_timeout_s)
            if replicas
            else None
        )
        limits = limits or QueueLimits()
        self.queue = RedisQueue(
            self._connections, self._library, direct, keys, limits, replication=replication
        )
        self.triggers = RedisTriggers(self._library, keys, limits, replication=replication)
        self.views = RedisViews(self._connections, self._library, keys)
        self.shared = RedisSharedState(self._library)
        self.records = RedisRecords(self._connections, keys)
        self.broadcast = RedisBroadcast(self._connections, keys)
        self.capabilities = Capabilities(applies_effects=False, durability="none", lane_prefix=prefix)
        """Its durability is known once the backend is open."""

    async def open(self) -> None:
        """See `Backend.open`."""
        self._connections.open()
        try:
            durability = await check_server(
                self._connections,
                allow_volatile=self._allow_volatile,
                durability_assumed=self._durability_assumed,
                durability=self._durability,
            )
            await check_permissions(self._connections, self._keys, durability=self._durability)
            await check_prefix(self._connections, self._keys)
            await self._library.ensure()
            await register_prefix(self._connections, self._keys)
            await self.broadcast.open()
        except BaseException:
            await self.close()
            raise
        self.capabilities = msgspec.structs.replace(self.capabilities, durability=durability)

    async def close(self) -> None:
        """See `Backend.close`."""
        await self.queue.close()
        await self.broadcast.close()
        self._direct.close()
        await self._connections.close()


async def examine_server(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    allow_volatile: bool = False,
    durability_assumed: bool = False,
    durability: str | None = None,
) -> list[ServerFinding]:
    """Examine the server at `url`: see `check.examine`."""
    async with _connected(url) as connections:
        return await examine(
            connections,
            allow_volatile=allow_volatile,
            durability_assumed=durability_assumed,
            durability=durability,
            keys=Keys(prefix),
        )


async def measure_server(url: str, *, prefix: str = DEFAULT_PREFIX) -> ServerUsage:
    """Measure the server at `url`: see `usage.measure`."""
    async with _connected(url) as connections:
        return await measure(connections, Keys(prefix))


async def repair_queue(
    url: str,
    limits: QueueLimits,
    *,
    prefix: str = DEFAULT_PREFIX,
    **options: Any,
) -> Repaired:
    """Mend a queue whose keys were lost or changed by hand; `options` are those of `repair.Repairer`."""
    async with _connected(url) as connections:
        await check_server(connections, allow_volatile=True, durability_assumed=True)
        keys = Keys(prefix)
        await check_permissions(connections, keys, repairs=True)
        library = Library(connections, keys, repair_source())
        await library.ensure()
        try:
            return await Repairer(connections, library, keys, limits, **options).repair()
        finally:
            await library.unload()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connections]:
    connections = Connections(url)
    connections.open()
    try:
        yield connections
    finally:
        await connections.close()
