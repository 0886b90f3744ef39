"""Checks whether the server's access list allows what the queue needs.

Only an administrator may read that list. But a forbidden command is refused as soon as it is put into a
transaction. Therefore an example of each command is put into a transaction, which is then discarded: nothing
is run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import NoPermissionError

from reverie.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = [
    "NEEDED",
    "NEEDED_BY_EVENTS",
    "NEEDED_BY_REPAIR",
    "NEEDED_BY_REPLICATION",
    "ForbiddenError",
    "Missing",
    "find_missing",
    "refusal_of",
]

NEEDED = tuple(
    line.strip()
    for line in """
        FCALL any 0; FUNCTION LIST; FUNCTION LOAD any; GET {status}; GET {trigger}; GET {key}; MGET {key}
        SET {key} a; EXISTS {key}; DEL {key}; PERSIST {key}; PEXPIRE {key} 1
        TIME; PUBSUB NUMSUB {channel}
        HGET {key} a; HMGET {key} a; HGETALL {key}; HKEYS {key}; HVALS {key}; HLEN {key}
        HRANDFIELD {key} 1; HSCAN {key} 0; HSET {key} a b; HSETNX {key} a b; HINCRBY {key} a 1; HDEL {key} a
        BLPOP {key} 1; LPOP {key}; LLEN {key}; LRANGE {key} 0 1; LTRIM {key} 0 1; RPUSH {key} a
        SMEMBERS {prefixes}; SADD {prefixes} a; SREM {prefixes} a
        SADD {key} a; SISMEMBER {key} a; SMEMBERS {key}; SREM {key} a
        XACK {key} a 0-1; XADD {key} * a b; XCLAIM {key} a b 0 0-1; XDEL {key} 0-1; XGROUP CREATE {key} a 0
        XINFO GROUPS {key}; XLEN {key}; XPENDING {key} a; XRANGE {key} - +
        XREAD STREAMS {key} 0; XREVRANGE {key} + -; XREADGROUP GROUP a b STREAMS {key} >
        ZADD {key} 0 a; ZPOPMIN {key}; ZRANGE {key} 0 1; ZREM {key} a; ZREMRANGEBYSCORE {key} 0 1
        ZSCORE {key} a
    """.replace("\n", ";").split(";")
    if line.strip()
)
"""An example of each command that the queue sends, or its functions run."""
NEEDED_BY_EVENTS = ("PUBLISH {channel} a", "SUBSCRIBE {channel}")
"""Commands with which processes hear of each other; the queue works without them, a little slower."""
NEEDED_BY_REPAIR = (
    "SCAN 0",
    "TYPE {key}",
    "HEXISTS {key} a",
    "XGROUP SETID {key} a 0",
    "ZSCAN {key} 0",
)
"""Commands that a repair and its functions need as well."""
NEEDED_BY_REPLICATION = ("PUBLISH {channel} a", "WAIT 1 1")
COMMAND = re.compile(r"the '([^']+)' command")


def refusal_of(error: Exception) -> str | None:
    """An access list's refusal of a command that was sent or that a function ran; None for other errors."""
    _, in_function, said = str(error).partition("ACL failure in script: ")
    if in_function:
        return f"NOPERM {said.partition(' script: ')[0]}"
    return f"NOPERM {error}" if isinstance(error, NoPermissionError) else None


class ForbiddenError(BackendUnavailableError):
    """The server's access list does not allow what the queue needs."""

    def __init__(self, place: str, user: str, refusal: str, advice: str) -> None:
        """Name the server, who we are there, what was refused, and what to do."""
        self.place, self.user, self.refusal = place, user, refusal
        super().__init__(f"{place} does not allow its user {user} what the queue needs: {refusal}; {advice}")


class Missing(NamedTuple):
    """Commands, keys and channels that an access list does not allow."""

    what: str
    """In words."""
    rules: tuple[str, ...]
    """The rules with which `ACL SETUSER` allows them; empty if nothing is missing."""


async def find_missing(connections: Connections, keys: Keys, examples: Sequence[str]) -> Missing | None:
    """Find what the access list does not allow of these examples; None if that cannot be seen."""
    refused = await _refusals(connections, [("MULTI",), ("DISCARD",)])
    if any(refused):
        return None  # without a transaction the examples would be run
    names = {
        "key": f"{keys.prefix}:any",
        "status": f"{keys.status_prefix}:any",
        "trigger": f"{keys.trigger_prefix}:any",
        "prefixes": keys.prefixes,
        "channel": keys.replicated,
    }
    commands = [tuple(part.format_map(names) for part in example.split()) for example in examples]
    refused = await _refusals(connections, [("MULTI",), *commands, ("DISCARD",)])
    denied = sorted({found[1] for text in refused if (found := COMMAND.search(text))})
    rules, whats = [f"+{name}" for name in denied], [f"the commands {', '.join(denied)}"] if denied else []
    if any("access" in text and "channel" in text for text in refused):
        rules.append(f"&{keys.prefix}*")
        whats.append(f"channels that begin with {keys.prefix}")
    if any("access" in text and "key" in text for text in refused):
        prefixes = _shortest(keys.prefix, keys.status_prefix, keys.trigger_prefix, keys.prefixes)
        rules += [f"~{prefix}*" for prefix in prefixes]
        whats.append(f"keys that begin with {' or '.join(prefixes)}")
    return Missing(", and ".join(whats), tuple(rules))


def _shortest(*prefixes: str) -> list[str]:
    """The prefixes that do not begin with another one."""
    return [one for one in sorted(prefixes) if sum(one.startswith(other) for other in prefixes) == 1]


async def _refusals(connections: Connections, commands: Sequence[tuple[str, ...]]) -> list[str]:
    """The access list's refusal of each command; empty if the command is allowed."""
    answers = await connections.try_all(*commands)
    return [str(answer) if isinstance(answer, NoPermissionError) else "" for answer in answers]
