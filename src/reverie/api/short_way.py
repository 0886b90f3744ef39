"""The short way to a route: by the method and the whole path of a request, past most layers of FastAPI.

These layers take longer than most of our functions. They still serve all requests that are not valid, because
FastAPI knows what to say of them, and all that need more than one model of their body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from reverie.api.envelope import failure_of
from reverie.api.repeatable import IDEMPOTENCY_HEADER
from reverie.api.routing import JsonRequest, once_more

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from reverie.api.routing import Endpoint

__all__ = ["ExactPaths", "ShortWay"]

REPEATABLE = IDEMPOTENCY_HEADER.encode()


class ShortWay:
    """Answers valid requests of routes that take one model; all others go through the whole application."""

    def __init__(self, endpoints: Iterable[Endpoint], application: ASGIApp) -> None:
        self._endpoints = _by_path(endpoint for endpoint in endpoints if endpoint.reader is not None)
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        endpoint = _find(self._endpoints, scope)
        if endpoint is None or REPEATABLE in [name for name, _ in scope["headers"]]:
            await self._application(scope, receive, send)
            return
        assert endpoint.reader is not None
        request = JsonRequest(scope, receive)
        try:
            endpoint.check(scope)
            body = await _body_of(receive)
            try:
                values = endpoint.reader.read(request, body)
            except (ValueError, RecursionError):
                await self._application(scope, once_more(body, receive), send)
                return
            response = await endpoint.call(**values)
        except Exception as error:  # noqa: BLE001  it is logged, unless it is an answer that routes give
            response = failure_of(error, scope)
        await response(scope, receive, send)


class ExactPaths:
    """Finds a route by the method and the whole path. Other requests are compared with all routes."""

    def __init__(self, endpoints: Iterable[Endpoint], otherwise: ASGIApp) -> None:
        self._endpoints = _by_path(endpoints)
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        endpoint = _find(self._endpoints, scope)
        if endpoint is None:
            await self._otherwise(scope, receive, send)
        else:
            scope["endpoint"], scope["path_params"] = endpoint.endpoint, {}
            await endpoint.handle(scope, receive, send)


async def _body_of(receive: Receive) -> bytes:
    """The body of a request; `ClientDisconnect` if the client hangs up before it has come."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _by_path(endpoints: Iterable[Endpoint]) -> dict[tuple[str, str], Endpoint]:
    """(method, path) → endpoint, for paths that have no parts to fill in."""
    return {(endpoint.method, endpoint.path): endpoint for endpoint in endpoints if "{" not in endpoint.path}


def _find(endpoints: dict[tuple[str, str], Endpoint], scope: Scope) -> Endpoint | None:
    if scope["type"] != "http" or scope.get("root_path"):
        return None
    return endpoints.get((scope["method"], scope["path"]))
