"""HTTP over one connection, with limits for each request: the time to arrive, and the size of its headers.

The head of an answer and a body that follows at once are sent together.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["ARRIVED", "timed_protocol"]

ARRIVED = "reverie.arrived"
"""The key in the scope of a request that has arrived whole, with its body."""

MARGIN_S = 2.0
"""Seconds in which a request whose body is late can be answered before its connection is closed."""
MOST_HEAD_BYTES = 64 * 1024
"""The most bytes of the first line and the headers of a request."""
PATH_OR_SERVER = b"/*"
"""The first byte of the target of a request: a path, or `*` for the server as a whole."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _Part(Enum):
    """What of a request is expected next."""

    HEAD = "the first line and the headers"
    BODY = "the body"
    NOTHING = "nothing: the whole request has come"


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose headers or body take too long. uvicorn limits only the pause between them."""

    timeout_s: ClassVar[float]
    """Seconds for the headers, and again for the body."""
    _expected = _Part.HEAD
    _timed: _Part | None = None
    """The part for which the timer was set; None before the connection is made."""
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        if self._expected is _Part.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(TOO_LARGE)
        self._watch()

    def on_message_begin(self) -> None:
        """Expect the headers of a request whose first bytes have come."""
        super().on_message_begin()
        self._expected = _Part.HEAD

    def on_headers_complete(self) -> None:
        """Expect the body. A request for a whole address, as if this were a proxy, is answered 400."""
        if self.url[0] not in PATH_OR_SERVER:
            raise httptools.HttpParserInvalidURLError
        super().on_headers_complete()
        self._expected, self._head_bytes = _Part.BODY, 0
        if self.cycle.transport is self.transport:
            self.cycle.transport = _JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Expect nothing until the request is answered."""
        super().on_message_complete()
        self._expected = _Part.NOTHING
        self.scope[ARRIVED] = True  # type: ignore[literal-required]

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, unless it has come already."""
        super().on_response_complete()
        if self._is_answered and self._expected is _Part.NOTHING:
            self._expected = _Part.HEAD
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def _is_answered(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _watch(self) -> None:
        """Set the timer when the client begins to send headers or a body, and end it when all has come."""
        if self._expected is self._timed:
            return
        self._stop_timer()
        self._timed = self._expected
        if self._expected is _Part.HEAD:
            self._timer = self.loop.call_later(self.timeout_s, self._late)
        elif self._expected is _Part.BODY:
            self._timer = self.loop.call_later(self.timeout_s + MARGIN_S, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(LATE if self._expected is _Part.HEAD else b"")

    def _refuse(self, words: bytes) -> None:
        """Close the connection; say why, if that is not in the middle of another answer."""
        if words and self._is_answered:
            self.transport.write(words)
        self.transport.close()


class _JoinedWrites:
    """The transport of one answer: the head waits until the loop's next turn, for a body to go with it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._next_turn: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._next_turn is None:
            self._head, self._next_turn = data, self._loop.call_soon(self._send_head)
        elif self._head is None:
            self._transport.write(data)
        else:
            head, self._head = self._head, None
            self._next_turn.cancel()
            self._transport.write(head + data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _send_head(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)


def timed_protocol(timeout_s: float) -> type[HttpToolsProtocol]:
    """Make the protocol with this time limit."""
    return type("TimedProtocol", (TimedProtocol,), {"timeout_s": timeout_s})
