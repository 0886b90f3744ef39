"""The MCP server over HTTP, at `/mcp`: each request has the rights of its API key, as everywhere.

No state is kept between requests, and each is answered with one JSON document. A request never meets the
rights of another one, and every server process can answer it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from reverie.api.envelope import answer, words_of
from reverie.api.routing import CONTENT_TYPES, JsonRequest, once_more
from reverie.errors import MissingExtraError
from reverie.mcp.callers import KeyCallers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Receive, Scope, Send

    from reverie.face.scheduler import AsyncScheduler

__all__ = ["mcp_route"]

PATH = "/mcp"


def mcp_route(scheduler: AsyncScheduler) -> Route:
    """The route of the MCP server of a scheduler."""
    return Route(PATH, _Endpoint(scheduler))


class _Endpoint:
    """Answers the requests to the MCP server. The first one loads the library."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self._new_manager: Callable[[], StreamableHTTPSessionManager] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. What its principal may do is decided when a tool is called."""
        if self._new_manager is None:
            if find_spec("mcp") is None:
                await answer(None, str(MissingExtraError("mcp")), 501)(scope, receive, send)
                return
            self._new_manager = await asyncio.to_thread(self._load)
        request = JsonRequest(scope, receive)
        if request.method != "POST":  # a GET would open a stream, in which nothing would ever be said
            raise HTTPException(405, headers={"allow": "POST"})
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != CONTENT_TYPES["json"]:
            raise HTTPException(415, f"a body of type {kind!r} is not taken: send JSON")
        try:
            body = await request.body()
        except ClientDisconnect as error:
            raise HTTPException(400, "the client has gone before its body had arrived") from error
        if request.state.max_json_depth is not None:
            with suppress(ValueError, RecursionError):  # the library says what is wrong with the JSON
                await request.json()
        manager = self._new_manager()
        async with manager.run():  # its tasks begin in the context of this request, with its principal
            await manager.handle_request(scope, once_more(body, receive), send)

    def _load(self) -> Callable[[], StreamableHTTPSessionManager]:
        """Load the library; the answer makes the object that handles one request."""
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

        from reverie.mcp.server import new_server  # noqa: PLC0415  it imports the library

        server = new_server(self._scheduler, KeyCallers(self._scheduler), words_of)
        most_bytes = self._scheduler.runtime.settings.server.max_body_bytes

        # the door has checked the host already
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)

        def new_manager() -> StreamableHTTPSessionManager:
            server.streamable_http_app(
                json_response=True,
                stateless_http=True,
                max_request_body_size=most_bytes,
                transport_security=security,
            )
            return server.session_manager

        return new_manager
