"""Hearing the events of all processes that use a queue: this one by its bus, the others by broadcast."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from reverie.observe.events import decode_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from reverie.backends.interface import Broadcast
    from reverie.observe.bus import EventBus, Wanted
    from reverie.observe.events import Event

__all__ = ["hear"]

MOST_BATCHES = 100
"""Batches that wait for a listener; the bus and the broadcast keep or drop what comes meanwhile."""

Heard = asyncio.Queue["Sequence[Event] | Exception"]


async def hear(
    bus: EventBus, broadcast: Broadcast, wanted: Wanted, may_hear: Callable[[Event], bool]
) -> AsyncGenerator[Sequence[Event]]:
    """Yield batches of the wanted events that the listener may hear, until the generator is closed.

    The first batch is empty, and says that the listening has begun.
    """
    heard: Heard = asyncio.Queue(MOST_BATCHES)
    async with bus.stream(wanted) as own, aclosing(_of_others(broadcast, wanted)) as others:
        pumps = [asyncio.create_task(_pump(source, heard, may_hear)) for source in (own, others)]
        try:
            await asyncio.sleep(0)  # the listening to others begins with this first step
            yield ()
            while True:
                batch = await heard.get()
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)


async def _of_others(broadcast: Broadcast, wanted: Wanted) -> AsyncGenerator[Sequence[Event]]:
    async with aclosing(broadcast.listen()) as pieces:
        async for piece in pieces:
            yield wanted.sift(decode_events(piece))


async def _pump(
    source: AsyncIterator[Sequence[Event]], heard: Heard, may_hear: Callable[[Event], bool]
) -> None:
    """Pass the batches of a source on; an error of the source is passed on, too."""
    try:
        async for batch in source:
            if allowed := [event for event in batch if may_hear(event)]:
                await heard.put(allowed)
    except Exception as error:  # noqa: BLE001  the listener raises it
        await heard.put(error)
