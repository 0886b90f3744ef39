"""Commands from a thread that may block, over connections that belong to no event loop.

A thread that submits need not wait until an event loop has time for it: it talks to the server itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
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

    Connection = Any
    """A connection of the driver, which has no types."""

__all__ = ["DirectConnections"]


class DirectConnections:
    """Sends commands on the calling thread. Nothing is sent twice.

    Connections are kept here and not in the driver's pool. In that pool, a thread that submits now and then
    would spend a fifth of the time that passes before the server gets its command.
    """

    def __init__(self, url: str, connections: Connections) -> None:
        """`connections` says whether calls are allowed, and names the errors."""
        self._connections = connections
        self._connect: Callable[[], Connection] = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        ).make_connection
        self._room = threading.Semaphore(POOL_SIZE)
        self._free: list[Connection] = []
        """Idle connections, the one that was used last at the end."""
        self._process = os.getpid()

    @property
    def place(self) -> str:
        """See `Connections.place`."""
        return self._connections.place

    async def call(self, *command: str | bytes, sent: Callable[[], object] | None = None) -> Any:
        """See `Connections.call`. This blocks the calling thread, and never waits for an event loop."""
        return self._exchange([command], sent)[0]

    async def call_all(self, *commands: Command) -> list[Any]:
        """See `Connections.call_all`."""
        return self._exchange(commands)

    def close(self) -> None:
        """Disconnect, each connection as soon as nobody uses it. The next command connects again."""
        free, self._free = self._free, []
        while free:
            free.pop().disconnect()

    def _exchange(self, commands: Sequence[Command], sent: Callable[[], object] | None = None) -> list[Any]:
        self._connections.check_open()
        with self._connections.named_errors():
            if not self._room.acquire(timeout=ANSWER_TIMEOUT_S):
                raise RedisConnectionError(f"all {POOL_SIZE} connections were in use")
            try:
                free = self._here()
                connection = self._take(free)
                answers = self._talk(connection, commands, sent)
                if free is self._free:
                    free.append(connection)
                else:
                    connection.disconnect()
                return answers
            finally:
                self._room.release()

    def _talk(
        self, connection: Connection, commands: Sequence[Command], sent: Callable[[], object] | None
    ) -> list[Any]:
        """Send commands and read their answers. Any error closes the connection.

        After an error, an answer may still be on its way: nobody else must read it as theirs.
        """
        try:
            connection.send_packed_command([pack_command(command) for command in commands])  # type: ignore[arg-type]
            if sent is not None:
                sent()
            return [connection.read_response() for _ in commands]
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, ResponseError) and leads_elsewhere(error):
                self.close()
            raise

    def _here(self) -> list[Connection]:
        """The idle connections. After a fork, those of the parent process are dropped."""
        if self._process != os.getpid():
            self._free, self._process = [], os.getpid()
        return self._free

    def _take(self, free: list[Connection]) -> Connection:
        """Take an open connection. An idle one that was cut meanwhile is opened again."""
        try:
            connection = free.pop()
        except IndexError:
            connection = self._connect()
        else:
            with contextlib.suppress(RedisError, OSError):
                if not connection.can_read():
                    return connection
            connection.disconnect()
        connection.connect()
        return connection
