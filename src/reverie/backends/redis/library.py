"""The queue's functions on the server, and calling them.

Libraries are named by version, so that an older and a newer Reverie run side by side on one server. A server
keeps what it was given first: whoever changes a Lua file that was released gives it a new VERSION.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = ["LIBRARY", "Library", "library_source"]

VERSION = 1
LIBRARY = f"reverie_v{VERSION}"
FILES = ("base", "lanes", "items", "submit", "claim", "settle", "advance", "look", "shared")
"""The parts of the library, each of which may use those before it."""


@cache
def library_source() -> str:
    """The whole library as one text."""
    folder = resources.files(__package__ or "").joinpath("lua")
    parts = [folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in FILES]
    return "\n".join([f"#!lua name={LIBRARY}", f"local LIBRARY = '{LIBRARY}'", *parts])


class Library:
    """Calls the functions of one queue, and loads them where they are missing."""

    def __init__(self, connections: Connections, keys: Keys) -> None:
        self._connections = connections
        self._keys = keys

    async def ensure(self) -> None:
        """Load the library unless the server has it."""
        if not await self._connections.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY):
            await self._load()

    async def call(self, function: str, request: bytes, sent: Callable[[], None] | None = None) -> Any:
        """Call one function; a server that was restarted without its functions gets them again."""
        command = (
            "FCALL",
            f"{LIBRARY}_{function}",
            "0",
            self._keys.prefix,
            self._keys.status_prefix,
            request,
        )
        try:
            return await self._connections.call(*command, sent=sent)
        except ResponseError as error:
            if "function not found" not in str(error).lower():
                raise
        await self._load()
        return await self._connections.call(*command, sent=sent)

    async def _load(self) -> None:
        # Two that find it missing at the same time load the same text.
        await self._connections.call("FUNCTION", "LOAD", "REPLACE", library_source())
