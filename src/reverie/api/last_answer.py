"""What a request gets that is cut off because the server stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reverie.api.envelope import answer
from reverie.api.streams import STOPPING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LastAnswer"]


class LastAnswer:
    """Answers 503 to a request that is given up when `stopping` is set, such as one that is half sent."""

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; the server cancels it if it lasts too long at the end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not self._stopping.is_set() or begun:
                raise
            await answer(None, STOPPING, 503)(scope, receive, send)
