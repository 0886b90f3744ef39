"""Addresses that webhooks may be sent to: public ones over https, and hosts that are allowed by name.

Whoever may set up a webhook could otherwise use this server to reach machines that only it can reach. A name
is checked when it is resolved for a delivery, and the connection goes to the addresses that were checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from reverie.errors import InvalidSelectionError, ReverieError, redacted

if TYPE_CHECKING:
    from collections.abc import Collection
    from urllib.parse import SplitResult

__all__ = ["ForbiddenAddressError", "Target", "UnknownHostError", "is_public", "read_target"]

LONGEST_URL = 2000
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses that the Internet routes to single hosts."""
DOCUMENTATION = ipaddress.ip_network("3fff::/20")
LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
ALLOW = "add the host to webhooks.allowed_hosts if it is meant"


class ForbiddenAddressError(ReverieError):
    """A webhook leads to an address that it must not reach."""


class UnknownHostError(ReverieError):
    """The host of a webhook cannot be resolved."""


def is_public(address: str) -> bool:
    """Whether an IP address is that of a host on the Internet: not private, loopback, link-local, special."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None or ip not in GLOBAL_UNICAST or ip in DOCUMENTATION:
            return False  # this leaves out all forms that carry an IPv4 address, but 6to4
        if ip.sixtofour is not None and not is_public(str(ip.sixtofour)):
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class Target(NamedTuple):
    """An address that a webhook may be sent to."""

    url: SplitResult
    is_allowed: bool
    """Whether the host is allowed by name, whatever its IP addresses are."""

    async def resolve(self) -> list[str]:
        """The IP addresses to connect to.

        `ForbiddenAddressError` if one of them is not public; `UnknownHostError` if there are none.
        """
        host = self.url.hostname or ""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnknownHostError(f"the host {host!r} cannot be resolved: {error}") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        if not addresses:
            raise UnknownHostError(f"the host {host!r} has no address")
        for address in addresses:
            if not self.is_allowed and not is_public(address):
                raise ForbiddenAddressError(
                    f"the host {host!r} resolves to {address}, which is not public: {ALLOW}"
                )
        return addresses


def read_target(address: str, allowed_hosts: Collection[str]) -> Target:
    """Parse the address of a webhook; `InvalidSelectionError` if no webhook may be sent there."""
    shown = redacted(address[:LONGEST_URL])
    if len(address) > LONGEST_URL or not address.isascii() or not address.isprintable() or " " in address:
        raise InvalidSelectionError(
            f"url={shown!r}: must have at most {LONGEST_URL} ASCII characters and no spaces"
        )
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise InvalidSelectionError(f"url={shown!r}: {error}") from error
    if not host or port == 0 or "\\" in address or url.scheme not in {"http", "https"}:
        raise InvalidSelectionError(f"url={shown!r}: must be https://host/path")
    if "@" in url.netloc:
        raise InvalidSelectionError(f"url={shown!r}: must not have a user or a password")
    is_allowed = _plain(host) in {_plain(one) for one in allowed_hosts}
    if url.scheme == "http" and not is_allowed:
        raise InvalidSelectionError(f"url={shown!r}: must be https; for http, {ALLOW}")
    literal = _address_of(host)
    if not is_allowed and (_is_loopback_name(host) or (literal is not None and not is_public(literal))):
        raise InvalidSelectionError(f"url={shown!r}: {host} is not a public address: {ALLOW}")
    return Target(url, is_allowed)


def _plain(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _is_loopback_name(host: str) -> bool:
    name = _plain(host)
    return name in LOOPBACK_NAMES or name.endswith(".localhost")


def _address_of(host: str) -> str | None:
    """The IP address that a host is, also as one number, in hexadecimal or shortened; None: it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(_plain(host)))
    except OSError:
        return None
