"""Events as they happen, in all processes of the queue: a stream for each caller."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
from fastapi import HTTPException, Query, Request

from reverie.api.routing import Example, Route
from reverie.api.streams import EventStream
from reverie.errors import BackendUnavailableError
from reverie.face.scheduler import AsyncScheduler
from reverie.observe.events import Event, EventName
from reverie.observe.idle import LONGEST_WAIT_S
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

__all__ = ["ROUTES"]

STREAM_S = 3600.0
"""How long a stream lasts unless the caller says otherwise."""
MOST_STREAMS = 100
"""Streams that one key may have open at once in one server process: every event costs each of them."""


class Listening(TypedDict):
    """The first event of a stream: whatever happens after it is heard."""

    event: Literal["listening"]


Names = Annotated[list[EventName], Query(description="only these events; may be repeated")]
Labels = Annotated[list[str], Query(description="only of these labels; may be repeated")]
Count = Annotated[int | None, Query(ge=1, description="end after this number of events")]
Timeout = Annotated[
    float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="end after this number of seconds")
]


async def events(
    scheduler: AsyncScheduler,
    client: Request,
    *,
    user_id: str | None = None,
    item_id: str | None = None,
    label: Labels = [],  # noqa: B006  FastAPI makes a list of its own
    event: Names = [],  # noqa: B006
    count: Count = None,
    timeout_seconds: Timeout = STREAM_S,
) -> EventStream:
    """Hear what happens from now on. The first event is `listening`: whatever happens after it is heard.

    A key that is bound to some users hears only of their work. A caller who reads too slowly misses events.
    A key may have 100 streams open at once.
    """
    if user_id is not None:
        current_principal.get().check_touch(user_id)
    heard = scheduler.observe.listen(
        events=event or None, labels=label or None, user_id=user_id, item_id=item_id
    )
    return _CountedStream(client, _told(heard, count, timeout_seconds))


class _CountedStream(EventStream):
    """A stream that counts among those of its key from its begin to its end."""

    def __init__(self, client: Request, told: AsyncGenerator[Mapping[str, Any]]) -> None:
        super().__init__(client, told)
        self._streams: Counter[str] = client.app.state.streams
        self._key_id = current_principal.get().key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream, unless the key has too many streams open."""
        if self._streams[self._key_id] >= MOST_STREAMS:
            words = f"this key has {MOST_STREAMS} streams of events open: close one first"
            raise HTTPException(429, words, {"retry-after": "1"})
        self._streams[self._key_id] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._key_id] -= 1
            if not self._streams[self._key_id]:
                del self._streams[self._key_id]


async def _told(
    heard: AsyncGenerator[Sequence[Event]], count: int | None, timeout_s: float
) -> AsyncGenerator[Mapping[str, Any]]:
    until = time.monotonic() + timeout_s
    told = 0
    shown = current_principal.get().error_shown
    async with aclosing(heard):
        await anext(heard)  # the listening has begun
        yield {"event": "listening"}
        while True:
            try:
                batch = await asyncio.wait_for(anext(heard), until - time.monotonic())
            except TimeoutError:
                return
            for event in batch:
                yield msgspec.to_builtins(msgspec.structs.replace(event, error=shown(event.error)))
                told += 1
                if told == count:
                    return


ROUTES = (
    Route(
        "GET",
        "/product/scheduler/events",
        events,
        role=Role.READ_ONLY,
        reach="own",
        answer=(Event, Listening),
        errors=(BackendUnavailableError,),
        plain=True,
        media_type="text/event-stream",
        example=Example(query={"user_id": "ann", "timeout_seconds": 0}),
    ),
)
