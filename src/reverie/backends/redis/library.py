"""The queue's functions on the server, and calling them.

Libraries are named by version and by a hash of their text, so that an older and a newer Reverie find their
own functions on one server, and no server goes on with an older text of the same version. VERSION is that of
the keys: whoever changes what stands in them gives it a new one. `{prefix}:version` says which one a queue
has; a Reverie with another does not touch it.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import ResponseError

from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reverie.backends.redis.connection import Command
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.replication import Replication

__all__ = ["LIBRARY", "KeysVersionError", "Library", "library_name", "library_source"]

VERSION = 4
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
    "trigger_hashes",
    "ends",
    "limits",
    "submit",
)
"""What the moves have in common; each part may use those before it."""
REPAIR = ("repair", "reindex", "recount")
"""The steps of a repair."""
OWN = {"claim": ("fair_share", "offers"), **dict.fromkeys(REPAIR, ("mending",))}
"""Parts that only these moves need."""
TRIGGERS = ("triggers", "firing")
MOVES = (
    "claim",
    "held",
    "settle",
    "advance",
    "control",
    "look",
    "health",
    "breaker_state",
    *TRIGGERS,
    *REPAIR,
)
"""The moves: nothing of one is seen by another, for a Lua text may have no more than 200 local names."""


def _read_parts() -> str:
    folder = resources.files(__package__ or "").joinpath("lua")
    moves = {name: (*OWN.get(name, ()), name) for name in MOVES}
    texts = {
        name: folder.joinpath(f"{name}.lua").read_text(encoding="utf-8")
        for name in (*COMMON, *chain.from_iterable(moves.values()))
    }
    blocks = (f"do -- {name}\n{''.join(texts[part] for part in parts)}end" for name, parts in moves.items())
    return "\n".join([*(texts[name] for name in COMMON), *blocks])


def library_name(text: str) -> str:
    """What a library of this text is called."""
    return f"reverie_v{VERSION}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


_PARTS = _read_parts()
LIBRARY = library_name(_PARTS)


def library_source() -> str:
    """The whole library as one text."""
    return "\n".join([f"#!lua name={LIBRARY}", f"local LIBRARY = '{LIBRARY}'", _PARTS])


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


class Caller(Protocol):
    """What sends commands to the server."""

    @property
    def place(self) -> str:
        """Where the server is, without the password."""
        ...

    async def call(self, *command: str | bytes, sent: Callable[[], None] | None = None) -> Any:
        """Send one command and read its answer; `sent` is called in between."""
        ...

    async def call_all(self, *commands: Command) -> list[Any]:
        """Send commands together, the last of which waits for replicas, and read their answers."""
        ...


class Library:
    """Calls the functions of one queue, and loads them where they are missing."""

    def __init__(self, connections: Caller, keys: Keys) -> None:
        self._connections = connections
        self._keys = keys

    async def ensure(self) -> None:
        """Load the library unless the server has it. `KeysVersionError` if the queue is not for us."""
        await self._check_version()
        if not await self._connections.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY):
            await self._load()

    async def call(self, function: str, request: bytes, sent: Callable[[], None] | None = None) -> Any:
        """Call one function; a server that was restarted without its functions gets them again."""
        command = self._command(function, request)
        return await self._with_functions(lambda: self._connections.call(*command, sent=sent))

    async def call_replicated(
        self, function: str, request: bytes, replication: Replication
    ) -> tuple[Any, int]:
        """Call one function; its answer, and how many replicas have confirmed what it did."""
        commands = (self._command(function, request), *replication.commands)
        answer, _, confirmed = await self._with_functions(lambda: self._connections.call_all(*commands))
        return answer, confirmed

    def _command(self, function: str, request: bytes) -> Command:
        name = f"{LIBRARY}_{function}"
        keys = self._keys
        return ("FCALL", name, "0", keys.prefix, keys.status_prefix, keys.trigger_prefix, request)

    async def _with_functions(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except ResponseError as error:
            if "function not found" not in str(error).lower():
                raise
        await self.ensure()
        return await call()

    async def _check_version(self) -> None:
        """See that the keys are of our version; a queue that is new begins with ours."""
        key, ours = f"{self._keys.prefix}:version", str(VERSION)
        found: bytes | None = await self._connections.call(
            "GET", key
        )  # all that a server without room allows
        if found is None:
            found = await self._connections.call("SET", key, ours, "NX", "GET")
        if found is not None and found.decode() != ours:
            raise KeysVersionError(self._connections.place, self._keys.prefix, found.decode())

    async def _load(self) -> None:
        # Two that find it missing at the same time load the same text.
        await self._connections.call("FUNCTION", "LOAD", "REPLACE", library_source())
