"""Each request belongs to a trace: the one its `traceparent` names, else one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from reverie.observe.tracing import current_trace_id, new_trace_id, trace_id_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["TRACE_HEADER", "Tracing", "trace_id_of_request"]

TRACE_HEADER = "x-trace-id"
"""The header of every answer that says which trace it belongs to."""


class Tracing:
    """Lets what a request submits carry its trace id, and says the id in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within its trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace_id = trace_id_of_request(scope)

        async def traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[TRACE_HEADER] = trace_id
            await send(message)

        before = current_trace_id.set(trace_id)
        try:
            await self._app(scope, receive, traced)
        finally:
            current_trace_id.reset(before)


def trace_id_of_request(scope: Scope) -> str:
    """The trace id of a request; the same each time."""
    state: dict[str, str] = scope.setdefault("state", {})
    if "trace_id" not in state:
        state["trace_id"] = trace_id_of(Headers(scope=scope).get("traceparent")) or new_trace_id()
    return state["trace_id"]
