"""The door: what every request passes on its way in, and every answer on its way out."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from reverie.api.envelope import STOPPING, TRACE_HEADER, answer
from reverie.observe.tracing import current_trace_id, new_trace_id, trace_id_of
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from reverie.principal import Principal

__all__ = ["Door"]

SETTING = "server.allowed_hosts"

Refusal = tuple[int, str]


class Door:
    """One middleware around all routes.

    - It keeps web pages out, because a browser lets any page talk to this machine: a request under a foreign
      name is refused (421), and one from a page elsewhere (403). Loopback names and addresses are never
      foreign, nor are `allowed_hosts`. Forms are refused by routes that do not take them (415).
    - A body of more than `max_body_bytes` is refused (413), even if its length was not announced. One that is
      not complete after `receive_timeout_s` is refused, too (408).
    - The request runs within its trace and with its principal. Every answer names the trace.
    - A request that is cancelled because the server stops is answered 503, unless its answer has begun.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str],
        max_body_bytes: int,
        receive_timeout_s: float,
        stopping: asyncio.Event,
        caller: Principal,
    ) -> None:
        """`caller` is the principal of every request, as long as there are no keys."""
        self._app = app
        self._names = frozenset({"localhost", "127.0.0.1", *map(_name, allowed_hosts)})
        self._max_body_bytes = max_body_bytes
        self._too_large = f"the body is larger than {max_body_bytes} bytes (server.max_body_bytes)"
        self._receive_timeout_s = receive_timeout_s
        self._too_slow = f"the body did not arrive within {receive_timeout_s:g} s (server.receive_timeout_s)"
        self._stopping = stopping
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"traceparent"), None)
        trace_id = (given and trace_id_of(given.decode("latin-1"))) or new_trace_id()
        scope.setdefault("state", {})["trace_id"] = trace_id
        received, begun, complete = 0, False, False
        deadline = asyncio.get_running_loop().time() + self._receive_timeout_s

        async def receive_bounded() -> Message:
            nonlocal received, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, self._too_slow, {"connection": "close"}) from error
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        async def send_traced(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (TRACE_HEADER.encode(), trace_id.encode())]
            await send(message)

        trace = current_trace_id.set(trace_id)
        principal = current_principal.set(self._caller)
        try:
            if refusal := self._refusal(scope["headers"]):
                code, words = refusal
                await answer(None, words, code)(scope, receive, send_traced)
            else:
                await self._app(scope, receive_bounded, send_traced)
        except asyncio.CancelledError:
            if begun or not self._stopping.is_set():
                raise
            await answer(None, STOPPING, 503)(scope, receive, send_traced)
        finally:
            current_principal.reset(principal)
            current_trace_id.reset(trace)

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """The status and the words of a refusal; None if the request may pass."""
        hosts, origins = [], []
        from_elsewhere = too_large = False
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
            elif name == b"sec-fetch-site":
                from_elsewhere |= value == b"cross-site"
            elif name == b"content-length":
                too_large |= value.isdigit() and int(value) > self._max_body_bytes
        host = _name(hosts[0]) if len(hosts) == 1 else ""
        if host not in self._names and not _is_loopback(host):
            given = ", ".join(hosts)
            return 421, f"{given!r} is no name of this server: ask 127.0.0.1, or add it to {SETTING}"
        for origin in origins:
            host = _host_of(origin)
            if host not in self._names and not _is_loopback(host):
                return 403, f"web pages of {origin!r} may not ask this server: add its host to {SETTING}"
        if from_elsewhere:
            return 403, "web pages of another site may not ask this server: ask it from a program"
        return (413, self._too_large) if too_large else None


def _name(host: str) -> str:
    """A host without its port, brackets and last dot, in small letters."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.removesuffix(".")


def _host_of(origin: str) -> str:
    """The host within an origin; empty if it has none."""
    try:
        return _name(urlsplit(origin).hostname or "")
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
