"""Commands from a thread that may block, over connections that belong to no event loop.

A thread that submits need not wait until an event loop has time for it: it talks to the server itself.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from redis import BlockingConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from reverie.backends.redis.connection import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    POOL_SIZE,
    leads_elsewhere,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.redis.connection import Command, Connections

__all__ = ["DirectConnections"]


class DirectConnections:
    """Sends commands on the calling thread. Nothing is sent twice."""

    def __init__(self, url: str, connections: Connections) -> None:
        """Those of `connections` are open or closed, and name their errors, as these do."""
        self._url = url
        self._connections = connections
        self._lock = threading.Lock()
        self._pool: BlockingConnectionPool | None = None

    @property
    def place(self) -> str:
        """See `Connections.place`."""
        return self._connections.place

    async def call(self, *command: str | bytes, sent: Callable[[], None] | None = None) -> Any:
        """See `Connections.call`. It blocks its thread, and never waits for an event loop."""
        return self._exchange([command], sent)[0]

    async def call_all(self, *commands: Command) -> list[Any]:
        """See `Connections.call_all`."""
        return self._exchange(commands)

    def _exchange(self, commands: Sequence[Command], sent: Callable[[], None] | None = None) -> list[Any]:
        self._connections.check_open()
        pool = self._here()
        with self._connections.named_errors():
            connection = pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                connection.send_packed_command(connection.pack_commands(commands))
                if sent is not None:
                    sent()
                return [connection.read_response() for _ in commands]
            except ResponseError as error:
                if len(commands) > 1:  # the other answers are still on their way
                    connection.disconnect()
                if leads_elsewhere(error):
                    self.close()
                raise
            except BaseException:
                # The answer may still be on its way: nobody else must read it as theirs.
                connection.disconnect()
                raise
            finally:
                pool.release(connection)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave the server, each connection as soon as nobody uses it; the next command connects anew."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.disconnect(inuse_connections=False)

    def _here(self) -> BlockingConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = BlockingConnectionPool.from_url(
                    self._url,
                    max_connections=POOL_SIZE,
                    timeout=ANSWER_TIMEOUT_S,
                    protocol=2,
                    socket_connect_timeout=CONNECT_TIMEOUT_S,
                    socket_timeout=ANSWER_TIMEOUT_S,
                    retry=Retry(NoBackoff(), 0),
                )
            return self._pool
