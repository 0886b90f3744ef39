"""Prefixes: two queues on one server, whose keys must have different names.

A lane of the queue `q` can have the name of a key of the queue `q:x`. Therefore a set on the server lists the
prefixes in use, and the second of two queues whose keys could meet is refused when it is opened. All queues
that could meet share one such set, because their prefixes begin with the same word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.redis.keys import DEFAULT_PREFIX, OWN_SUFFIXES, Keys
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reverie.backends.redis.connection import Connections

__all__ = ["PrefixCollisionError", "check_prefix", "register_prefix"]


class PrefixCollisionError(ReverieError):
    """Another queue on this server could have keys of the same names."""

    def __init__(self, place: str, prefix: str, other: str) -> None:
        """Name the server, the prefix that is refused, and that of the queue which is there already."""
        self.place, self.prefix, self.other = place, prefix, other
        super().__init__(
            f"{place}: keys of a queue with the prefix {prefix!r} could have the same names as keys of the "
            f"queue {other!r}, which is there already: set queue.redis_prefix to a word that no "
            "other queue begins with, or use another database"
        )


async def check_prefix(connections: Connections, keys: Keys) -> set[str]:
    """Answer the listed prefixes; `PrefixCollisionError` if keys of another queue could meet these keys."""
    members: Iterable[bytes] = await connections.call("SMEMBERS", keys.prefixes)
    listed = {member.decode() for member in members}
    others = [other for other in sorted(listed | _shorter(keys)) if _could_meet(keys, Keys(other))]
    # A queue of an older Reverie is not listed. A queue that is gone may still be listed. Where we may not
    # look, the list counts.
    for other in others:
        (version,) = await connections.try_all(("GET", Keys(other).version))
        is_there = other in listed if isinstance(version, Exception) else version is not None
        if is_there:
            raise PrefixCollisionError(connections.place, keys.prefix, other)
    return listed


async def register_prefix(connections: Connections, keys: Keys) -> None:
    """List this prefix. Of two queues that come at once, at least one finds the other here."""
    if keys.prefix in await check_prefix(connections, keys):
        return
    await connections.call("SADD", keys.prefixes, keys.prefix)
    try:
        await check_prefix(connections, keys)
    except PrefixCollisionError:
        await connections.call("SREM", keys.prefixes, keys.prefix)
        raise


def _could_meet(keys: Keys, other: Keys) -> bool:
    """Whether a key of one queue could have the name of a key of the other."""
    if keys.prefix == other.prefix:
        return False
    return any(
        f"{one}:".startswith(f"{two}:") or f"{two}:".startswith(f"{one}:")
        for one in keys.stems
        for two in other.stems
    )


def _shorter(keys: Keys) -> set[str]:
    """The prefixes of unlisted queues that the keys could meet, as far as they can be guessed."""
    parts = keys.prefix.split(":")
    starts = {":".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return {DEFAULT_PREFIX, *starts, *_without_suffix(starts)}


def _without_suffix(prefixes: Iterable[str]) -> Iterator[str]:
    for prefix in prefixes:
        for suffix in OWN_SUFFIXES:
            if prefix.endswith(suffix) and prefix != suffix:
                yield prefix.removesuffix(suffix)
