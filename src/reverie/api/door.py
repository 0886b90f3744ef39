"""The door: what every request passes on its way in, and every answer on its way out."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from reverie.api.envelope import STOPPING, TRACE_HEADER, answer, failure_of, refusal_of
from reverie.api.protocol import ARRIVED
from reverie.errors import ReverieError
from reverie.observe.tracing import current_trace_id, new_trace_id, trace_id_of
from reverie.principal import NOBODY, current_principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from reverie.api.admission import Admission, Admitted

__all__ = ["Door"]

SETTING = "server.allowed_hosts"
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""A header `x-request-id` that becomes the trace id of its request."""
PORT = re.compile(r"(:[0-9]+)?")
"""What may follow an IPv6 address in brackets."""
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer, for browsers."""
UNLESS_GIVEN = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Headers of every answer that does not say itself what its page may load, or how long it may be kept."""
TRACE = TRACE_HEADER.encode()


class Door:
    """Stands around all routes.

    - It keeps web pages out, because a browser lets any page talk to this machine: a request under a foreign
      name is refused (421), and one from a page elsewhere (403). Loopback names and addresses are never
      foreign, nor are `allowed_hosts`. Forms are refused by routes that do not take them (415).
    - It asks the `admission` who the caller is; a caller who needs a key and has none is refused (401).
    - A body of more than `max_body_bytes`, or than the key allows, is refused (413), even if its length was
      not announced. One that is not complete after `receive_timeout_s` is refused, too (408).
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
        admission: Admission,
        checks_host: bool = True,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Without `checks_host`, any name in the header `Host` is allowed. `headers` are added to answers."""
        self._app = app
        self._admission = admission
        self._checks_host = checks_host
        self._headers = (*SAFE_HEADERS, *headers)
        self._names = frozenset({"localhost", "127.0.0.1", *map(_name, allowed_hosts)})
        self._max_body_bytes = max_body_bytes
        self._receive_timeout_s = receive_timeout_s
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = _Head(scope["headers"])
        trace_id = head.trace_id or new_trace_id()
        state = scope.setdefault("state", {})
        state["trace_id"] = trace_id
        timeout_s = None if ARRIVED in scope else self._receive_timeout_s
        body = _Body(receive, self._max_body_bytes, timeout_s)

        async def send_traced(message: Message) -> None:
            body.is_answered = True
            if message["type"] == "http.response.start":
                message["headers"] = self._complete(message.get("headers", ()), trace_id)
            await send(message)

        trace = current_trace_id.set(trace_id)
        before = current_principal.set(NOBODY)
        try:
            admitted = await self._admit(head, scope["path"])
            if isinstance(admitted, JSONResponse):
                await admitted(scope, receive, send_traced)
                return
            current_principal.set(admitted.principal)
            state["still_admits"] = partial(self._admission.still_admits, head.all, scope["path"])
            state["max_json_depth"] = admitted.limits.max_json_depth
            body.most_bytes = min(
                self._max_body_bytes, admitted.limits.max_body_bytes or self._max_body_bytes
            )
            if head.announced > body.most_bytes:
                await answer(None, _too_large(body.most_bytes), 413)(scope, receive, send_traced)
                return
            await self._app(scope, body.receive, send_traced)
        except asyncio.CancelledError:
            if body.is_answered or not self._stopping.is_set():
                raise
            await answer(None, STOPPING, 503)(scope, receive, send_traced)
        except Exception as error:
            if body.is_answered:
                raise
            await failure_of(error, scope)(scope, receive, send_traced)
        finally:
            current_principal.reset(before)
            current_trace_id.reset(trace)

    async def _admit(self, head: _Head, path: str) -> Admitted | JSONResponse:
        """The caller of a request, or the answer that refuses it."""
        if refusal := self._foreign(head):
            return refusal
        try:
            return await self._admission.admit(head.all, path)
        except ReverieError as error:
            return refusal_of(error)

    def _complete(self, headers: Iterable[tuple[bytes, bytes]], trace_id: str) -> list[tuple[bytes, bytes]]:
        """The headers of an answer, with those that every answer has."""
        complete = list(headers)
        names = [name.lower() for name, _ in complete]
        complete += self._headers
        complete += [pair for pair in UNLESS_GIVEN if pair[0] not in names]
        complete.append((TRACE, trace_id.encode()))
        return complete

    def _foreign(self, head: _Head) -> JSONResponse | None:
        """The refusal of a request for another host or from a page elsewhere; None if it may pass."""
        hosts = head.hosts
        host = _name(hosts[0]) if len(hosts) == 1 else ""
        if self._checks_host and host not in self._names and not _is_loopback(host):
            given = ", ".join(hosts)
            words = f"{given!r} is no name of this server: ask 127.0.0.1, or add it to {SETTING}"
            return answer(None, words, 421)
        for origin in head.origins:
            own = _host_of(origin)
            if own not in self._names and not _is_loopback(own) and (self._checks_host or own != host):
                words = f"web pages of {origin!r} may not ask this server: add its host to {SETTING}"
                return answer(None, words, 403)
        if head.from_elsewhere:
            words = "web pages of another site may not ask this server: ask it from a program"
            return answer(None, words, 403)
        return None


class _Head:
    """What the door reads in the headers of a request, in one go."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.all = headers
        self.hosts: list[str] = []
        self.origins: list[str] = []
        self.from_elsewhere = False
        """Whether a browser says that a page of another site asks."""
        self.announced = 0
        """The length of the body that the request announces."""
        trace_id = request_id = None
        for name, value in headers:
            if name == b"host":
                self.hosts.append(value.decode("latin-1"))
            elif name == b"content-length":
                self.announced = max(self.announced, int(value) if value.isdigit() else 0)
            elif name == b"origin":
                self.origins.append(value.decode("latin-1"))
            elif name == b"sec-fetch-site":
                self.from_elsewhere |= value == b"cross-site"
            elif name == b"traceparent":
                trace_id = trace_id or trace_id_of(value.decode("latin-1"))
            elif name == b"x-request-id" and REQUEST_ID.fullmatch(value):
                request_id = value.decode()
        self.trace_id = trace_id or request_id
        """The trace that the request names, by `traceparent` or by `x-request-id`."""


class _Body:
    """The body of a request while it arrives: it may neither be too long nor take too long.

    If it does when the answer has begun, the client is treated as gone.
    """

    def __init__(self, receive: Receive, most_bytes: int, timeout_s: float | None) -> None:
        """Without `timeout_s`, there is nothing to wait for: the body has arrived."""
        self.most_bytes = most_bytes
        self.is_answered = False
        """Whether the answer has begun."""
        self._receive = receive
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._received = 0

    async def receive(self) -> Message:
        """Receive the next part, or what comes after the body."""
        if self._deadline is None:
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
            except TimeoutError as error:
                if self.is_answered:
                    return {"type": "http.disconnect"}
                words = f"the body did not arrive within {self._timeout_s:g} s (server.receive_timeout_s)"
                raise HTTPException(408, words, {"connection": "close"}) from error
        if not message.get("more_body", False):
            self._deadline = None
        self._received += len(message.get("body", b""))
        if self._received > self.most_bytes:
            if self.is_answered:
                return {"type": "http.disconnect"}
            raise HTTPException(413, _too_large(self.most_bytes))
        return message


def _too_large(most_bytes: int) -> str:
    return f"the body is larger than {most_bytes} bytes (server.max_body_bytes, or the limit of the key)"


def _name(host: str) -> str:
    """A host without its port, brackets and last dot, in small letters.

    Brackets stay if there is no IPv6 address in them, or something else than a port behind them.
    """
    host = host.strip().lower()
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address if PORT.fullmatch(port) and _is_ipv6(address) else host
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.removesuffix(".")


def _host_of(origin: str) -> str:
    """The host within an origin; empty if it has none."""
    try:
        return _name(urlsplit(origin).netloc.rpartition("@")[2])
    except ValueError:
        return ""


def _is_ipv6(address: str) -> bool:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
