"""Posting: one signed HTTP request to a receiver that people have named. Alerts and webhooks are sent here.

The headers follow the convention of Standard Webhooks: `webhook-id` is the same for all tries of a delivery,
`webhook-signature` is `v1,` and the Base64 of HMAC-SHA256 over `id.timestamp.body`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from urllib.parse import SplitResult

__all__ = ["ENCODED_SECRET", "Posted", "post", "signature"]

ENCODED_SECRET = "whsec_"  # noqa: S105  a prefix, not a secret
"""The prefix of a secret whose rest is the Base64 of the key."""
DEFAULT_PORTS = {"http": 80, "https": 443}


class Posted(NamedTuple):
    """How a try has ended."""

    problem: str | None
    """What went wrong; None if the receiver accepted the request."""
    status: int | None = None
    """The HTTP status of the answer; None if there was none."""
    retry_after_s: float | None = None
    """How many seconds the receiver asks to wait before the next try."""


def signature(secret: str, delivery_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a delivery, which a receiver compares with the header `webhook-signature`.

    The key is the text of the secret. If the secret begins with `whsec_`, it is what the Base64 after that
    stands for.
    """
    key = secret.encode()
    if secret.startswith(ENCODED_SECRET):
        with suppress(binascii.Error):
            key = base64.b64decode(secret.removeprefix(ENCODED_SECRET), validate=True)
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def post(
    url: SplitResult,
    body: bytes,
    *,
    delivery_id: str,
    secret: str | None,
    timeout_s: float,
    addresses: Sequence[str] = (),
) -> Posted:
    """Try a delivery once, within `timeout_s` seconds in all. Blocks.

    With `addresses`, the name of the host is not looked up: the first of these IP addresses that takes a
    connection gets the request. Redirects are not followed, and the body of the answer is not read.
    """
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": f"reverie/{__version__}",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
    }
    if secret is not None:
        headers["webhook-signature"] = signature(secret, delivery_id, timestamp, body)
    connection = _connection(url, timeout_s)
    late = threading.Event()
    timer = threading.Timer(timeout_s, _cut, [connection, late])
    timer.daemon = True
    timer.start()
    try:
        _connect(connection, addresses or (connection.host,), late)
        path = url.path or "/"
        connection.request("POST", f"{path}?{url.query}" if url.query else path, body, headers)
        answer = connection.getresponse()
        posted = _read(answer)
    except TimeoutError:
        late.set()
        posted = Posted("")
    except (OSError, ValueError, http.client.HTTPException) as error:
        posted = Posted(repr(error))
    finally:
        timer.cancel()
        connection.close()
    return Posted(f"no answer within {timeout_s:g} s") if late.is_set() else posted


def _read(answer: http.client.HTTPResponse) -> Posted:
    status = answer.status
    if 200 <= status < 300:
        return Posted(None, status)
    redirected = " (redirects are not followed)" if 300 <= status < 400 else ""
    seconds = answer.headers.get("retry-after", "")
    asked = float(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else None
    return Posted(f"answered {status}{redirected}", status, asked)


def _connection(url: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    host, port = url.hostname or "", url.port or DEFAULT_PORTS[url.scheme]
    if url.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_tls())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


@cache
def _tls() -> ssl.SSLContext:
    """Read the certificates of this machine once: that takes longer than a request."""
    return ssl.create_default_context()


def _connect(connection: http.client.HTTPConnection, addresses: Sequence[str], late: threading.Event) -> None:
    """Connect to the first of the addresses that can be reached; a certificate must be that of the host."""
    for number, address in enumerate(addresses, start=1):
        try:
            plain = socket.create_connection((address, connection.port), connection.timeout)
            break
        except OSError:
            if number == len(addresses) or late.is_set():
                raise
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sock = plain
    if isinstance(connection, http.client.HTTPSConnection):
        wrapped = _tls().wrap_socket(plain, server_hostname=connection.host, do_handshake_on_connect=False)
        connection.sock = wrapped  # before the handshake, so that `_cut` can end it
        wrapped.do_handshake()


def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    """End a try that takes too long, even if the receiver sends a byte now and then."""
    late.set()
    with suppress(OSError, AttributeError):  # not connected yet, or no longer
        connection.sock.shutdown(socket.SHUT_RDWR)
