"""Function libraries on the server: loading them, and calling their functions.

The queue's moves are one library. A repair has another, which is on the server only during the repair. The
name of a library has the version of the keys and a hash of the library's text. Therefore an older and a newer
Reverie find their own functions on one server, and no server goes on with an older text of the same version.
A change of what the keys hold needs a new VERSION. `{prefix}:version` holds the version of a queue; a Reverie
with another version does not touch that queue: each function looks at it. Only the keys of the version before
its own are upgraded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from redis.exceptions import ResponseError

from reverie.backends.redis.permissions import ForbiddenError
from reverie.base.logs import get_logger
from reverie.errors import BackendUnavailableError, ReverieError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.backends.redis.connection import Command
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.replication import Replication

__all__ = [
    "QUEUE",
    "KeysMigratedError",
    "KeysVersionError",
    "Library",
    "Source",
    "WrongTypeError",
    "repair_source",
]

log = get_logger(__name__)

VERSION = 6
UPGRADED = 5
"""The version whose keys this Reverie upgrades."""
UPGRADING = f"{UPGRADED}>{VERSION}"
"""The version of keys that are being upgraded: only a Reverie of this version touches them."""
UPGRADE_AT_ONCE = 500
"""The most triggers that one step of the upgrade writes."""
COMMON = (
    "base",
    "scopes",
    "lanes",
    "tenants",
    "rings",
    "items",
    "plain",
    "places",
    "uniques",
    "wrong_types",
    "trigger_hashes",
    "ends",
    "limits",
    "submit",
)
"""The parts that all moves share; each part may use those before it."""
MOVES = (
    ("fair_share", "offers", "claim"),
    ("held",),
    ("settle",),
    ("advance",),
    ("prune",),
    ("control",),
    ("look",),
    ("health",),
    ("breaker_state",),
    ("triggers",),
    ("firing",),
    ("upgrade",),
)
"""The moves, each with the parts that only it needs.

Each move is a block of its own and sees nothing of the others, because a Lua text may have no more than 200
local names.
"""
REPAIR = (
    ("mending", "repair"),
    ("mending", "trigger_runs", "reindex"),
    ("mending", "recount"),
    ("mending", "repair_triggers"),
)
"""The steps of a repair, each with the parts that it needs."""
UNLOAD_TIMEOUT_S = 2.0
KINDS = {"zset": "sorted set"}
"""The server's name of a type → ours, where they differ."""
OTHER_VERSION = re.compile(r"KEYSVERSION (\S+)")
"""The error of a function that finds keys of another version."""
WRONG_KEY = re.compile(r"WRONGKEY (\w+) (.*?)(?: script: .*)?$", re.DOTALL)
"""The error of a function that finds something else under the name of a key."""


class Source(NamedTuple):
    """A library: its name, and its text as the server loads it."""

    name: str
    text: str

    @classmethod
    def of(cls, kind: str, parts: str) -> Source:
        """Make a library of these parts, with a name that no other text has."""
        name = f"{kind}_v{VERSION}_{hashlib.sha256(parts.encode()).hexdigest()[:12]}"
        return cls(name, f"#!lua name={name}\nlocal LIBRARY, VERSION = '{name}', '{VERSION}'\n{parts}")


def _read_parts(blocks: Sequence[Sequence[str]]) -> str:
    folder = resources.files(__package__ or "").joinpath("lua")

    def read(names: Sequence[str]) -> str:
        return "".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)

    return read(COMMON) + "\n".join(f"do -- {names[-1]}\n{read(names)}end" for names in blocks)


QUEUE = Source.of("reverie", _read_parts(MOVES))


def repair_source() -> Source:
    """Read the library of a repair."""
    return Source.of("reverie_repair", _read_parts(REPAIR))


class KeysVersionError(ReverieError):
    """The queue on this server belongs to another version of Reverie."""

    def __init__(self, place: str, prefix: str, found: str) -> None:
        """Name the server, the queue, the version that its keys have, and what to do."""
        self.place, self.prefix, self.found, self.known = place, prefix, found, VERSION
        newer = found.isdecimal() and int(found) > VERSION
        other, remedy = (
            ("a newer", "upgrade this one") if newer else ("an older", "let that one finish what is there")
        )
        super().__init__(
            f"{place}: the keys of the queue {prefix!r} have version {found}, as {other} Reverie writes "
            f"them, and this one writes version {VERSION}: {remedy}, or set queue.redis_prefix to begin "
            "another queue beside it"
        )


class KeysMigratedError(KeysVersionError, BackendUnavailableError):
    """A newer Reverie has migrated the keys of a queue while this process has it open."""

    def __init__(self, place: str, prefix: str, found: str) -> None:
        """Name the server, the queue, the version that its keys have now, and what to do."""
        self.place, self.prefix, self.found, self.known = place, prefix, found, VERSION
        ReverieError.__init__(
            self,
            f"{place}: another Reverie has migrated the keys of the queue {prefix!r} to version {found} "
            f"while this process writes version {VERSION}: this process writes nothing more. Start it again "
            "with the other Reverie; what was accepted is kept",
        )


class WrongTypeError(BackendUnavailableError):
    """Another program has put something else where a key of the queue belongs."""

    def __init__(self, place: str, key: str, kind: str) -> None:
        """Name the server, the key and what it should be, and say what to do."""
        self.place, self.key, self.kind = place, key, kind
        super().__init__(
            f"{place}: the key {key!r} of the queue is no {KINDS.get(kind, kind)}: another program has "
            "written it. Nothing was changed. Rename or delete that key, then type `reverie redis repair`"
        )

    @classmethod
    def of(cls, place: str, told: str) -> WrongTypeError | None:
        """Read the error of a function; None if it is about something else."""
        found = WRONG_KEY.search(told)
        return None if found is None else cls(place, found[2], found[1])


class Caller(Protocol):
    """Sends commands to the server: `Connections` or `DirectConnections`."""

    @property
    def place(self) -> str:
        """The address of the server, without the password."""
        ...

    async def call(self, *command: str | bytes, sent: Callable[[], object] | None = None) -> Any:
        """Send one command and read its answer; `sent` is called in between."""
        ...

    async def call_all(self, *commands: Command) -> list[Any]:
        """Send commands together, the last of which waits for replicas, and read their answers."""
        ...


class Library:
    """Calls the functions of one queue, and loads them where they are missing."""

    def __init__(self, connections: Caller, keys: Keys, source: Source = QUEUE) -> None:
        self._connections = connections
        self._keys = keys
        self._source = source

    async def ensure(self) -> None:
        """Load the library unless the server has it, and upgrade the keys if they have the version before.

        `KeysVersionError` if the queue has another version.
        """
        is_old = await self._check_version()
        if is_old and self._source is not QUEUE:
            await Library(self._connections, self._keys).ensure()
        if not await self._connections.call("FUNCTION", "LIST", "LIBRARYNAME", self._source.name):
            # Two processes that find it missing at the same time load the same text.
            await self._connections.call("FUNCTION", "LOAD", "REPLACE", self._source.text)
        if is_old and self._source is QUEUE:
            await self._upgrade()

    async def _upgrade(self) -> None:
        """Upgrade the keys in small steps. If this process dies, the next one begins again."""
        call, version = self._connections.call, self._keys.version
        await call("SET", version, UPGRADING)
        for library in await call("FUNCTION", "LIST", "LIBRARYNAME", f"reverie_v{UPGRADED}_*"):
            # An older process that goes on finds no functions, looks at the version, and stops. If the server
            # forbids the deletion, older processes might write what this one does not read: nothing changes.
            try:
                await call("FUNCTION", "DELETE", library[1])
            except ForbiddenError:
                await call("SET", version, str(UPGRADED))
                raise
            except ResponseError:
                log.info("redis.library_gone", library=library[1].decode())  # another process was quicker
        for kind in await call("SMEMBERS", f"{self._keys.trigger_prefix}:task_types"):
            after: str | None = None
            while True:
                request = {"type": kind.decode(), "after": after, "limit": UPGRADE_AT_ONCE}
                answer = await call(*self._command("upgrade", msgspec.msgpack.encode(request)))
                _, *left = msgspec.msgpack.decode(answer)
                if not left:
                    break
                after = left[0]
        await call("SET", version, str(VERSION))

    async def unload(self) -> None:
        """Delete the library, unless the server is away or forbids it. Another repair can load it again."""
        with contextlib.suppress(ReverieError, ResponseError, TimeoutError):
            async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                await self._connections.call("FUNCTION", "DELETE", self._source.name)

    async def call(self, function: str, request: bytes, sent: Callable[[], object] | None = None) -> Any:
        """Call one function; a server that was restarted without its functions gets them again."""
        command = self._command(function, request)
        return await self._with_functions(lambda: self._connections.call(*command, sent=sent))

    async def call_replicated(
        self, function: str, request: bytes, replication: Replication
    ) -> tuple[Any, int]:
        """Call one function; answers its reply, and how many replicas have confirmed what it did."""
        commands = (self._command(function, request), *replication.commands)
        answer, _, confirmed = await self._with_functions(lambda: self._connections.call_all(*commands))
        return answer, confirmed

    def _command(self, function: str, request: bytes) -> Command:
        name = f"{self._source.name}_{function}"
        keys = self._keys
        return ("FCALL", name, "0", keys.prefix, keys.status_prefix, keys.trigger_prefix, request)

    async def _with_functions(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except ResponseError as error:
            if found := OTHER_VERSION.match(str(error)):
                place, prefix = self._connections.place, self._keys.prefix
                raise KeysMigratedError(place, prefix, found[1]) from error
            if wrong := WrongTypeError.of(self._connections.place, str(error)):
                raise wrong from error
            if "function not found" not in str(error).lower():
                raise
        await self.ensure()
        return await call()

    async def _check_version(self) -> bool:
        """Check that the keys have our version; a new queue gets it. True if they must be upgraded first."""
        key, ours = self._keys.version, str(VERSION)
        found: bytes | None = await self._connections.call(
            "GET", key
        )  # a full server allows this, but not SET
        if found is None:
            found = await self._connections.call("SET", key, ours, "NX", "GET")
        if found is None or found.decode() == ours:
            return False
        if found.decode() not in {str(UPGRADED), UPGRADING}:
            raise KeysVersionError(self._connections.place, self._keys.prefix, found.decode())
        return True
