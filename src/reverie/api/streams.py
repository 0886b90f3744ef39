"""Answers that take their time: they end when the client hangs up, when the server stops, or when done."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import HTTPException
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError

from reverie.api.envelope import status_of
from reverie.errors import ReverieError
from reverie.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "unless_gone"]

T = TypeVar("T")

log = get_logger(__name__)

SEND_TIMEOUT_S = 30.0
"""A client that takes nothing for so long is hung up on."""


class EventStream(EventSourceResponse):
    """Server-sent events: one JSON object each.

    An error in the middle is told as an event `error` with `{code, message, data}`, and ends the stream.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any]]) -> None:
        super().__init__(_lines(events), sep="\n", send_timeout=SEND_TIMEOUT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the events end, or nobody takes them any more."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.warning("stream.client_too_slow", path=scope["path"], timeout_s=SEND_TIMEOUT_S)


async def _lines(events: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[ServerSentEvent]:
    try:
        async for event in events:
            yield ServerSentEvent(_json(event), sep="\n")
    except ReverieError as error:
        problem = {"code": status_of(error), "message": str(error), "data": None}
        yield ServerSentEvent(_json(problem), event="error", sep="\n")
    finally:
        await events.aclose()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do what may take long, but give it up when the client hangs up or the server stops."""
    doing = asyncio.ensure_future(work)
    endings = {asyncio.ensure_future(_hang_up(request)), asyncio.ensure_future(_stop(request))}
    try:
        await asyncio.wait({doing, *endings}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise HTTPException(503, "the server stops: ask again when it is back")
        return doing.result()
    finally:
        for task in (doing, *endings):
            task.cancel()
        await asyncio.wait({doing, *endings})


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stop(request: Request) -> None:
    await request.app.state.stopping.wait()


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
