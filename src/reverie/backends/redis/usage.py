"""What takes room on the server of a queue, as far as it can be had without looking through all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = ["KeyUsage", "ServerUsage", "measure"]

COUNTS = {
    "expiry": "ZCARD",
    "dead": "HLEN",
    "failed": "ZCARD",
    "cancelled": "ZCARD",
    "delayed": "HLEN",
    "due": "ZCARD",
    "deadlines": "ZCARD",
    "leases": "ZCARD",
    "resting": "ZCARD",
    "arrivals": "ZCARD",
    "labels": "HLEN",
    "workers": "HLEN",
}
"""The keys that a queue has once, with the command that counts their entries; see `keys.py`."""


class KeyUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the queue."""

    key: str
    entries: int
    bytes: int | None
    """As the server estimates it from a few entries; None if we may not ask."""


class ServerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What takes room on the server; None for what we may not ask."""

    memory_bytes: int | None
    """All that the server uses, for all its databases."""
    max_memory_bytes: int | None
    """0: no limit."""
    keys: int | None
    """The keys of the database, also those of other programs."""
    parts: list[KeyUsage]
    """The keys that the queue has once, the largest first; those of each user and lane are left out."""


async def measure(connections: Connections, keys: Keys) -> ServerUsage:
    """Ask the server in one exchange. The cost does not grow with the number of keys."""
    names = {kind: f"{keys.prefix}:{kind}" for kind in COUNTS}
    asked = [(COUNTS[kind], name) for kind, name in names.items()]
    sizes = [("MEMORY", "USAGE", name) for name in names.values()]
    info, keys_in_all, *answers = await connections.try_all(("INFO", "memory"), ("DBSIZE",), *asked, *sizes)
    numbers = [answer if isinstance(answer, int) else None for answer in (keys_in_all, *answers)]
    parts = [
        KeyUsage(key=name, entries=entries, bytes=size)
        for name, entries, size in zip(
            names.values(), numbers[1 : 1 + len(names)], numbers[1 + len(names) :], strict=True
        )
        if entries
    ]
    said = _fields(info)
    return ServerUsage(
        memory_bytes=said.get("used_memory"),
        max_memory_bytes=said.get("maxmemory"),
        keys=numbers[0],
        parts=sorted(parts, key=lambda part: -(part.bytes or 0)),
    )


def _fields(info: object) -> dict[str, int]:
    """The numbers in an answer to INFO; empty for an error."""
    if not isinstance(info, bytes):
        return {}
    pairs = (line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: int(value) for name, value in pairs if value.isdigit()}
