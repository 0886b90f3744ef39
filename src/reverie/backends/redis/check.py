"""Checks whether a server is fit to keep messages, and what to do if it is not.

`examine` reports everything about a server. `check_server` runs when a process starts, and refuses a server
that would not keep what it accepts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from reverie.backends.durability import replicas_of, survives_power_cuts
from reverie.backends.redis.library import QUEUE
from reverie.backends.redis.permissions import (
    NEEDED,
    NEEDED_BY_EVENTS,
    NEEDED_BY_REPAIR,
    NEEDED_BY_REPLICATION,
    ForbiddenError,
    find_missing,
)
from reverie.backends.redis.prefixes import PrefixCollisionError, check_prefix
from reverie.errors import BackendUnavailableError, ReverieError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = [
    "SMALL_NODE_BYTES",
    "ServerFinding",
    "UnsafeServerError",
    "check_permissions",
    "check_server",
    "examine",
]

OLDEST = (7, 0)
"""The oldest Redis that has functions."""
SMALL_NODE_BYTES = 600
"""The advised `stream-node-max-bytes`: the first node of a stream takes that much even for one entry."""
NEARLY_FULL = 0.9
"""The part of `maxmemory` in use from which on it should be raised."""
SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy", "maxmemory", "stream-node-max-bytes")
KEEP = "CONFIG REWRITE"
"""Writes changed settings into the server's own file, so that they outlive a restart."""

Durability = Literal["always", "everysec", "none", "assumed"]
Level = Literal["ok", "advice", "problem"]


class UnsafeServerError(ReverieError):
    """The Redis server would not keep what it accepts."""

    def __init__(self, place: str, setting: str, value: str, remedy: str) -> None:
        """Name the server, what is wrong with it, and what to do."""
        self.place, self.setting, self.value, self.remedy = place, setting, value, remedy
        super().__init__(f"{place}: {setting} is {value!r}: {remedy}")


class ServerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of a server."""

    check: str
    level: Level
    value: str
    what: str
    """What the value means, as the end of a sentence."""
    remedy: str = ""
    """What to do, in words."""
    commands: tuple[str, ...] = ()
    """The remedy as commands that can be typed into `redis-cli` or `valkey-cli`."""

    @property
    def advice(self) -> str:
        """The remedy and its commands, as one sentence."""
        typed = ", ".join(f"`{command}`" for command in self.commands)
        return ": in redis-cli ".join(filter(None, [self.remedy, typed]))


class _Server(NamedTuple):
    """What a server reports about itself."""

    info: dict[str, str]
    config: dict[str, str]
    """Empty if the configuration may not be read."""
    forbidden: str
    """Why the configuration may not be read; empty if it may."""
    libraries: list[str] | str
    """The names of our libraries, or why they may not be listed."""
    user: str

    @property
    def durability(self) -> Durability:
        if self.forbidden:
            return "assumed"
        fsync = self.config.get("appendfsync")
        if self.config.get("appendonly") != "yes" or fsync not in {"always", "everysec"}:
            return "none"
        return "always" if fsync == "always" else "everysec"


async def check_server(
    connections: Connections,
    *,
    allow_volatile: bool = False,
    durability_assumed: bool = False,
    durability: str | None = None,
) -> str:
    """Refuse a server that is too old, is a replica, or is less durable than it must be.

    Answers the durability that the server has.
    """
    server = await _ask(connections, libraries=False)
    role = _role(server)
    if role.level == "problem":
        await connections.call("EXISTS", "anything")  # a replica without a primary says so here
        raise BackendUnavailableError(f"{connections.place} is a {role.value}: {role.remedy}")
    asked = _Asked(durability, volatile=allow_volatile, assumed=durability_assumed)
    for one in (_version(server), *_promises(server, asked)):
        if one.level == "problem":
            raise UnsafeServerError(connections.place, one.check, one.value, f"{one.what}; {one.advice}")
    for one in _replicas(server, asked):
        if one.level == "problem":
            raise BackendUnavailableError(
                f"{connections.place} has {_many_replicas(one.value)}: {one.what}; {one.advice}"
            )
    return durability if durability and asked.replicas else server.durability


async def check_permissions(
    connections: Connections, keys: Keys, *, durability: str | None = None, repairs: bool = False
) -> None:
    """Refuse a server that does not allow what the queue, or its repair, needs."""
    one = await _permissions(connections, keys, durability, repairs=repairs)
    if one.level == "problem":
        raise ForbiddenError(connections.place, connections.user, one.what, one.advice)


async def examine(
    connections: Connections,
    *,
    allow_volatile: bool = False,
    durability_assumed: bool = False,
    durability: str | None = None,
    keys: Keys,
) -> list[ServerFinding]:
    """Report everything about a server. A problem keeps processes from starting or working."""
    server = await _ask(connections, libraries=True)
    asked = _Asked(durability, volatile=allow_volatile, assumed=durability_assumed)
    return [
        _version(server),
        _role(server),
        *_replicas(server, asked),
        *_promises(server, asked),
        *_memory(server),
        *_nodes(server),
        _functions(server),
        await _permissions(connections, keys, durability),
        *await _events(connections, keys),
        *await _prefix(connections, keys),
    ]


class _Asked:
    """What the settings ask of a server, and which risks they accept."""

    def __init__(self, durability: str | None, *, volatile: bool, assumed: bool) -> None:
        self.durability, self.volatile, self.assumed = durability, volatile, assumed
        self.replicas = replicas_of(durability)
        self.always = survives_power_cuts(durability)


async def _ask(connections: Connections, *, libraries: bool) -> _Server:
    try:
        text: bytes = await connections.call("INFO")
    except (ResponseError, ForbiddenError) as error:
        remedy = "it cannot be told what server this is; allow the command INFO"
        if isinstance(error, ForbiddenError):
            remedy += f": in redis-cli `ACL SETUSER {connections.user} +info`"
        raise UnsafeServerError(connections.place, "INFO", _refusal(error), remedy) from error
    info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    config: dict[str, str] = {}
    forbidden = ""
    try:
        flat: list[bytes] = await connections.call("CONFIG", "GET", *SETTINGS)
        names = (part.decode() for part in flat)
        config = dict(zip(names, names, strict=True))
    except (ResponseError, ForbiddenError) as error:
        forbidden = _refusal(error)
    known = await _libraries(connections) if libraries else []
    return _Server(info, config, forbidden, known, connections.user)


async def _libraries(connections: Connections) -> list[str] | str:
    try:
        rows: list[list[bytes]] = await connections.call("FUNCTION", "LIST", "LIBRARYNAME", "reverie_*")
    except (ResponseError, ForbiddenError) as error:
        return _refusal(error)
    return sorted(row[row.index(b"library_name") + 1].decode() for row in rows)


def _refusal(error: ResponseError | ForbiddenError) -> str:
    """The server's words for a refusal."""
    return error.refusal if isinstance(error, ForbiddenError) else str(error)


async def _permissions(
    connections: Connections, keys: Keys, durability: str | None, *, repairs: bool = False
) -> ServerFinding:
    user = connections.user
    replication = NEEDED_BY_REPLICATION if replicas_of(durability) else ()
    repair = NEEDED_BY_REPAIR if repairs else ()
    missing = await find_missing(connections, keys, (*NEEDED, *replication, *repair))
    if missing is None:
        return ServerFinding(
            check="user",
            level="advice",
            value=user,
            what="whether it may do all that is needed cannot be seen",
            remedy="allow transactions, or look again when something is refused",
            commands=(f"ACL SETUSER {user} +multi +discard",),
        )
    if not missing.rules:
        return ServerFinding(check="user", level="ok", value=user, what="it may do all that is needed")
    return ServerFinding(
        check="user",
        level="problem",
        value=user,
        what=f"it may not use {missing.what}",
        remedy="allow it",
        commands=(f"ACL SETUSER {user} {' '.join(missing.rules)}",),
    )


async def _events(connections: Connections, keys: Keys) -> list[ServerFinding]:
    """A finding only if events do not get from one process to another."""
    missing = await find_missing(connections, keys, NEEDED_BY_EVENTS)
    if missing is None or not missing.rules:
        return []
    return [
        ServerFinding(
            check="events",
            level="advice",
            value="not heard",
            what=f"{connections.user} may not use {missing.what}: processes hear nothing of each other",
            remedy="allow it, so that events reach other processes, and work a waiting worker at once",
            commands=(f"ACL SETUSER {connections.user} {' '.join(missing.rules)}",),
        )
    ]


async def _prefix(connections: Connections, keys: Keys) -> list[ServerFinding]:
    """A finding only if the keys of another queue could meet those of this one."""
    try:
        await check_prefix(connections, keys)
    except PrefixCollisionError as error:
        return [
            ServerFinding(
                check="queue.redis_prefix",
                level="problem",
                value=keys.prefix,
                what=f"its keys could have the same names as those of the queue {error.other!r}",
                remedy="choose another prefix for one of them, or another database",
            )
        ]
    except (ForbiddenError, ResponseError):
        return []  # another finding says what is not allowed
    return []


def _version(server: _Server) -> ServerFinding:
    version = server.info.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return ServerFinding(
            check="redis_version",
            level="problem",
            value=version,
            what="it has no functions",
            remedy="use Redis 7.0 or Valkey 7.2, or a newer one",
        )
    valkey = server.info.get("valkey_version")
    value = f"Valkey {valkey}" if valkey else f"Redis {version}"
    return ServerFinding(check="redis_version", level="ok", value=value, what="it has all that is needed")


def _role(server: _Server) -> ServerFinding:
    if server.info.get("role", "master") != "master":
        primary = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        return ServerFinding(
            check="role",
            level="problem",
            value="replica",
            what="it takes no writes",
            remedy=f"writes go to the primary: use redis://{primary}",
        )
    replicas = server.info.get("connected_slaves", "0")
    return ServerFinding(
        check="role",
        level="ok",
        value="primary",
        what=f"it takes writes, and has {_many_replicas(replicas)}",
    )


def _many_replicas(number: str) -> str:
    return f"{number} replica{'' if number == '1' else 's'}"


def _replicas(server: _Server, asked: _Asked) -> Iterator[ServerFinding]:
    """Whether there are enough replicas to confirm each submit, if the settings ask for that."""
    if not asked.replicas:
        return
    states = (text for name, text in server.info.items() if re.fullmatch("slave[0-9]+", name))
    online = sum("state=online" in text.split(",") for text in states)
    yield (
        ServerFinding(
            check="replicas",
            level="ok",
            value=str(online),
            what=f"durability is {asked.durability}: a submit is answered when {asked.replicas} confirmed it",
        )
        if online >= asked.replicas
        else ServerFinding(
            check="replicas",
            level="problem",
            value=str(online),
            what=f"queue.durability = {asked.durability} asks for {asked.replicas} to confirm each submit",
            remedy="let more servers follow this one (type `REPLICAOF host port` there), or ask for less",
        )
    )


def _promises(server: _Server, asked: _Asked) -> Iterator[ServerFinding]:
    """Whether the server keeps what it accepts. A risk that the settings accept is only advice."""
    level: Level = "advice" if asked.volatile else "problem"
    or_else = "" if asked.volatile else ", or set queue.allow_volatile to accept the loss"
    if server.forbidden:
        yield _unseen(server, assumed=asked.assumed)
        return
    policy = server.config.get("maxmemory-policy", "unknown")
    yield (
        ServerFinding(check="maxmemory-policy", level="ok", value=policy, what="nothing is dropped")
        if policy == "noeviction"
        else ServerFinding(
            check="maxmemory-policy",
            level=level,
            value=policy,
            what="a full server would drop messages",
            remedy=f"set it to noeviction{or_else}",
            commands=("CONFIG SET maxmemory-policy noeviction", KEEP),
        )
    )
    if asked.always and server.durability == "everysec":
        yield _too_late(asked, level)
    else:
        yield _persistence(server, level, or_else)


def _too_late(asked: _Asked, level: Level) -> ServerFinding:
    return ServerFinding(
        check="appendfsync",
        level=level,
        value="everysec",
        what=f"queue.durability = {asked.durability} asks for always: a crash of the server may lose the "
        "last two seconds",
        remedy="set it to always, or set queue.durability to everysec",
        commands=("CONFIG SET appendfsync always", KEEP),
    )


def _unseen(server: _Server, *, assumed: bool) -> ServerFinding:
    what = "whether it keeps messages cannot be seen"
    remedy = "allow it to be read"
    if not assumed:
        remedy = (
            "if you know that it is persistent and evicts nothing, set queue.durability_assumed "
            f"(REVERIE_QUEUE__DURABILITY_ASSUMED=true), without which no process starts; or {remedy}"
        )
    return ServerFinding(
        check="CONFIG",
        level="advice" if assumed else "problem",
        value=server.forbidden,
        what=what + ("; queue.durability_assumed trusts it" if assumed else ""),
        remedy=remedy,
        commands=_allowing(server, server.forbidden, "+config|get"),
    )


def _allowing(server: _Server, refusal: str, rule: str) -> tuple[str, ...]:
    """The command that allows what an access list refused; none if the refusal has another reason."""
    return (f"ACL SETUSER {server.user} {rule}",) if refusal.startswith("NOPERM") else ()


def _persistence(server: _Server, level: Level, or_else: str) -> ServerFinding:
    promises = {
        "always": "durability is always: what was accepted survives a crash of the server",
        "everysec": "durability is everysec: a crash of the server may lose the last two seconds",
    }
    promise = promises.get(server.durability)
    if promise is not None:
        value = server.config["appendfsync"]
        return ServerFinding(check="appendfsync", level="ok", value=value, what=promise)
    setting = "appendonly" if server.config.get("appendonly") != "yes" else "appendfsync"
    commands = ("CONFIG SET appendfsync everysec", "CONFIG SET appendonly yes", KEEP)
    return ServerFinding(
        check=setting,
        level=level,
        value=server.config.get(setting, "unknown"),
        what="durability is none: a restart would lose messages",
        remedy=f"set appendonly yes, appendfsync everysec{or_else}",
        commands=commands if setting == "appendonly" else (commands[0], KEEP),
    )


def _memory(server: _Server) -> Iterator[ServerFinding]:
    most = int(server.config.get("maxmemory", server.info.get("maxmemory", "0")))
    used, total = (int(server.info.get(name, "0")) for name in ("used_memory", "total_system_memory"))
    enough = max(total // 2, 2 * used) // 1024**2 + 1
    raised = (f"CONFIG SET maxmemory {enough}mb", KEEP)
    value = f"{most // 1024**2} MB" if most else "none"
    taken = f"{used // 1024**2} MB are used"
    if not most:
        yield ServerFinding(
            check="maxmemory",
            level="advice",
            value=value,
            what=f"{taken}; a server that takes all memory is killed by its system",
            remedy="set a limit below what the machine has: submits beyond it are refused",
            commands=raised,
        )
    elif used >= NEARLY_FULL * most:
        full = used >= most
        yield ServerFinding(
            check="maxmemory",
            level="problem" if full else "advice",
            value=value,
            what=f"{taken}; submits are refused {'now' if full else 'soon'}",
            remedy="raise it, or let workers catch up",
            commands=raised,
        )
    else:
        yield ServerFinding(check="maxmemory", level="ok", value=value, what=taken)


def _nodes(server: _Server) -> Iterator[ServerFinding]:
    value = server.config.get("stream-node-max-bytes")
    if value is None:
        return
    small = 0 < int(value) <= SMALL_NODE_BYTES
    yield (
        ServerFinding(
            check="stream-node-max-bytes", level="ok", value=value, what="a lane with little work is small"
        )
        if small
        else ServerFinding(
            check="stream-node-max-bytes",
            level="advice",
            value=value,
            what="each lane takes that much at once: about 5 kB for one small message instead of 1.4 kB",
            remedy=f"set it to {SMALL_NODE_BYTES} if there are many lanes with little work",
            commands=(f"CONFIG SET stream-node-max-bytes {SMALL_NODE_BYTES}", KEEP),
        )
    )


def _functions(server: _Server) -> ServerFinding:
    if isinstance(server.libraries, str):
        return ServerFinding(
            check="functions",
            level="problem",
            value=server.libraries,
            what="the functions of the queue cannot be loaded",
            remedy="allow the commands FUNCTION and FCALL",
            commands=_allowing(server, server.libraries, "+function +fcall"),
        )
    others = [name for name in server.libraries if name != QUEUE.name]
    loaded = "is loaded" if QUEUE.name in server.libraries else "is not loaded yet: the first process does it"
    beside = f"; beside it {', '.join(others)}" if others else ""
    return ServerFinding(
        check="functions",
        level="ok",
        value=QUEUE.name,
        what=loaded + beside,
        remedy="those that no process or repair uses any more can go" if others else "",
        commands=tuple(f"FUNCTION DELETE {name}" for name in others),
    )
