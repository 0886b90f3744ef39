"""HTTP over one connection, with a time limit for each request to arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

__all__ = ["timed_protocol"]

MARGIN_S = 2.0
"""Seconds in which a request whose body is late can be answered before its connection is closed."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """Closes a connection whose headers or body take too long. uvicorn limits only the pause between them."""

    timeout_s: ClassVar[float]
    """Seconds for the headers, and again for the body."""
    _state: Any = None
    """What the client was sending when the timer was set."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer when the client begins to send headers or a body, and end it when all has come."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._stop_timer()
        self._state = state
        if state is h11.IDLE:
            self._timer = self.loop.call_later(self.timeout_s, self._late)
        elif state is h11.SEND_BODY:
            self._timer = self.loop.call_later(self.timeout_s + MARGIN_S, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            if self._state is h11.IDLE and self.conn.our_state is h11.IDLE:
                self.transport.write(LATE)
            self.transport.close()


def timed_protocol(timeout_s: float) -> type[H11Protocol]:
    """Make the protocol with this time limit."""
    return type("TimedProtocol", (TimedProtocol,), {"timeout_s": timeout_s})
