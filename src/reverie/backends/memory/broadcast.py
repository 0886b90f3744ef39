"""A broadcast that nobody hears: there is no other process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["MemoryBroadcast"]


class MemoryBroadcast:
    """See `reverie.backends.interface.Broadcast`."""

    is_heard = False

    def say(self, news: bytes) -> None:
        """Do nothing, because nobody listens."""

    async def listen(self) -> AsyncGenerator[bytes]:
        """Wait forever, because nobody says anything."""
        await asyncio.Event().wait()
        yield b""
