"""Keeps web pages out: the API has no keys, and a browser would let any page talk to this machine."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from reverie.api.envelope import answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Guard"]

SETTING = "server.allowed_hosts"
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

Refusal = tuple[int, str]


class Guard:
    """Refuses requests under a foreign name (421), from a web page elsewhere (403), and forms (415).

    Loopback names and addresses are never foreign, nor are `allowed_hosts`.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset({"localhost", "127.0.0.1", *map(_name, allowed_hosts)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or say why not."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            code, words = refusal
            await answer(None, words, code)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_allowed(_name(hosts[0])):
            host = ", ".join(hosts)
            return 421, f"{host!r} is no name of this server: ask 127.0.0.1, or add it to {SETTING}"
        for origin in headers.getlist("origin"):
            if not self._is_allowed(_host_of(origin)):
                return 403, f"web pages of {origin!r} may not ask this server: add its host to {SETTING}"
        if headers.get("sec-fetch-site") == "cross-site":
            return 403, "web pages of another site may not ask this server: ask it from a program"
        kind = headers.get("content-type", "")
        if scope["method"] in WITH_BODY and _has_body(headers) and not _is_json(kind):
            return 415, f"a body of type {kind!r} is not taken: send JSON, 'Content-Type: application/json'"
        return None

    def _is_allowed(self, name: str) -> bool:
        return name in self._names or _is_loopback(name)


def _name(host: str) -> str:
    """A host without its port, brackets and last dot, in small letters."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.removesuffix(".")


def _host_of(origin: str) -> str:
    """The name within an origin; empty if it has none."""
    try:
        return _name(urlsplit(origin).hostname or "")
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
