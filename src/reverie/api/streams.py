"""Long answers: they end when they are done, when the client hangs up, or when the server stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from fastapi import HTTPException
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError

from reverie.api.envelope import STOPPING, status_of, words_of
from reverie.base.escapes import escape_json
from reverie.base.logs import get_logger
from reverie.errors import KeyNeededError, ReverieError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "unless_gone"]

T = TypeVar("T")
Event = Mapping[str, object]

log = get_logger(__name__)

SEND_TIMEOUT_S = 30.0
"""Seconds after which a client that takes nothing is disconnected."""
RECHECK_S = 5.0
"""Seconds after which a long answer looks again whether its caller's key is still valid."""
LAST_WORDS_S = 5.0
"""Seconds that a stream may take to send its last event when the server stops."""


class EventStream(EventSourceResponse):
    """Server-sent events, each of them one JSON object.

    An error in the middle is sent as an event `error` with `{code, message, data}`, and ends the stream. One
    such error is that the caller's key was revoked meanwhile.
    """

    def __init__(self, request: Request, events: AsyncGenerator[Event]) -> None:
        super().__init__(
            _written(events, request.app.state.stopping, request.state.still_admits),
            sep="\n",
            send_timeout=SEND_TIMEOUT_S,
            shutdown_event=anyio.Event(),
            shutdown_grace_period=LAST_WORDS_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the events end or the client takes no more of them."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.warning("stream.client_too_slow", path=scope["path"], timeout_s=self.send_timeout)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work`, but cancel it when the client hangs up or the server stops.

    `KeyNeededError` if the caller's key is revoked meanwhile.
    """
    doing = asyncio.ensure_future(work)
    hang_up = asyncio.ensure_future(_hang_up(request))
    stop = asyncio.ensure_future(request.app.state.stopping.wait())
    tasks = {doing, hang_up, stop}
    try:
        while not (await asyncio.wait(tasks, timeout=RECHECK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            if not await request.state.still_admits():
                raise KeyNeededError
        if doing.done():
            return doing.result()
        if hang_up.done():
            hang_up.result()  # raises, if the client sent a body that is too large
        raise HTTPException(503, STOPPING)  # reaches nobody, if the client has gone
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _hang_up(request: Request) -> None:
    """Wait until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _written(
    events: AsyncGenerator[Event], stopping: asyncio.Event, still_admits: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[ServerSentEvent]:
    """Write each event; if an error or the stop of the server ends the stream, its last event says that."""
    try:
        async with aclosing(_until(stopping, still_admits, events)) as heard:
            async for event in heard:
                yield _line(event)
        if stopping.is_set():
            yield _line({"code": 503, "message": STOPPING, "data": None}, "error")
    except ReverieError as error:
        yield _line({"code": status_of(error), "message": words_of(error), "data": None}, "error")


async def _until(
    stopping: asyncio.Event, still_admits: Callable[[], Awaitable[bool]], events: AsyncGenerator[Event]
) -> AsyncGenerator[Event]:
    """Pass events on until they end or the server stops; `KeyNeededError` if the caller's key is revoked."""
    stop = asyncio.ensure_future(stopping.wait())
    step: asyncio.Future[Event | None] = stop  # type: ignore[assignment]
    checked_at = time.monotonic()
    try:
        while True:
            step = asyncio.ensure_future(anext(events, None))
            done: set[asyncio.Future[Any]] = set()
            while not done:
                left = checked_at + RECHECK_S - time.monotonic()
                if left <= 0:
                    if not await still_admits():
                        raise KeyNeededError
                    checked_at, left = time.monotonic(), RECHECK_S
                done, _ = await asyncio.wait({step, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            event = step.result() if step.done() else None
            if event is None:
                return
            yield event
    finally:
        stop.cancel()
        step.cancel()
        with anyio.CancelScope(
            shield=True
        ):  # when a client hangs up, this generator is cancelled several times
            await asyncio.wait({step})
            await events.aclose()


def _line(event: Event, name: str | None = None) -> ServerSentEvent:
    data = escape_json(msgspec.json.encode(event)).decode()
    return ServerSentEvent(data, event=name, sep="\n")
