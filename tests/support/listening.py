"""Hearing what a broadcast says."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from support.living import started, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from reverie.backends.interface import Broadcast


@asynccontextmanager
async def listening(
    listener: Broadcast, *speakers: Broadcast
) -> AsyncIterator[tuple[AsyncGenerator[bytes], asyncio.Future[bytes]]]:
    """Listen, from when the speakers have noticed it: what is heard, of which the first is awaited."""
    heard = listener.listen()
    first = await started(anext(heard))
    try:
        await until(lambda: all(speaker.is_heard for speaker in speakers))
        yield heard, first
    finally:
        first.cancel()
        await asyncio.wait([first])
        await heard.aclose()
