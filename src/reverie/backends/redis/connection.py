"""Connections to the server, for any number of event loops.

Each event loop has its own pools, because a connection belongs to the loop that opened it and the queue may
be called from several loops (the renewer has its own).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from redis.asyncio import BlockingConnectionPool, ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from reverie.backends.redis.permissions import ForbiddenError, refusal_of
from reverie.errors import BackendUnavailableError, ClosedError, InvalidSettingError, ReverieError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

    from redis.asyncio.connection import AbstractConnection

    Command = tuple[str | bytes, ...]

__all__ = ["ANSWER_TIMEOUT_S", "CONNECT_TIMEOUT_S", "POOL_SIZE", "Connections", "leads_elsewhere"]

POOL_SIZE = 32
"""Connections for moves in each event loop; further calls wait for a free one."""
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""A call that moves thousands of large messages takes a while; a dead server should not take much longer."""

LET_GO_S = 1.0
"""How long the server may take to end a cancelled wait; after that, its connection is closed."""
ASK_AGAIN_S = 0.05

ELSEWHERE = {
    "READONLY": "it is a replica: writes go to its primary, or here once it is promoted",
    "UNBLOCKED": "it has become a replica: writes go to its primary, or here once it is promoted",
    "MASTERDOWN": "it is a replica without a primary: writes go to the primary, or here once it is promoted",
}
"""Errors after which a new connection to the same address may reach another server: first word → meaning."""
NOT_NOW = ELSEWHERE | {
    "OOM": "its memory is full (maxmemory): ended work makes room, or give it more",
    "LOADING": "it has just started and is loading its data",
    "BUSY": "a script has kept it busy for longer than its busy-reply-threshold",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
    "MISCONF": "it cannot write to its disk; its log says why",
    "CLUSTERDOWN": "a part of its cluster is missing",
    "TRYAGAIN": "its cluster is being rearranged",
    "NOAUTH": "it asks for a password, and queue.url has none",
    "WRONGPASS": "the user or the password in queue.url is wrong",
}
"""Errors that come from the state of the server and not from the command: first word → meaning."""


class _Waits:
    """Connections for waits. They return to their pool only when they are of no more use.

    The driver takes a while to return a connection to a pool, and that would delay work that has just come.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[AbstractConnection] | None = []
        """None once this server is left: no connection is kept any more."""

    async def get_connection(self) -> AbstractConnection:
        """Take a connection that is open and has nothing left to read."""
        while self._idle:
            connection = self._idle.pop()
            with contextlib.suppress(RedisError, OSError):
                if connection.is_connected and not await connection.can_read():
                    return connection
            await self._pool.release(connection)
        return await self._pool.get_connection()  # type: ignore[no-untyped-call,no-any-return]

    async def release(self, connection: AbstractConnection) -> None:
        if self._idle is None:
            await self._pool.release(connection)
        else:
            self._idle.append(connection)

    async def leave(self) -> None:
        """Disconnect from the server, each connection as soon as nobody uses it."""
        idle, self._idle = self._idle or (), None
        for connection in idle:
            await self._pool.release(connection)
        await _leave(self._pool)

    async def disconnect(self) -> None:
        await self._pool.disconnect()


@dataclass
class _Pools:
    """The connections of one event loop."""

    moves: BlockingConnectionPool
    waits: _Waits
    confirmed: BlockingConnectionPool
    """For moves that replicas must confirm: waiting for replicas does not hold up other moves."""
    keeper: AsyncGenerator[None, None] = field(init=False)
    """A generator that disconnects the pools when it is closed."""

    @property
    def all(self) -> tuple[ConnectionPool | _Waits, ...]:
        """The pools of every kind."""
        return self.moves, self.waits, self.confirmed


class Connections:
    """Sends commands over the running loop's connections. Nothing is sent twice."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._options = parse_url(url)
        except ValueError:
            reason = "must be such as redis://user:password@host:6379/0; in a password, %40 stands for @"
            raise InvalidSettingError("queue.url", url, reason) from None  # the driver quotes parts of it
        self._open = False
        self._pools: dict[asyncio.AbstractEventLoop, _Pools] = {}
        self._client_ids: WeakKeyDictionary[AbstractConnection, int] = WeakKeyDictionary()
        """The server's ids of the connections for waits."""

    @property
    def place(self) -> str:
        """The address of the server, without the password."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def database(self) -> int:
        """The number of the database that is used."""
        return self._options.get("db", 0)

    @property
    def user(self) -> str:
        """Our user name on the server."""
        return self._options.get("username") or "default"

    def open(self) -> None:
        """Allow calls."""
        self._open = True

    def check_open(self) -> None:
        """Raise `ClosedError` before `open` and after `close`."""
        if not self._open:
            raise ClosedError

    async def close(self) -> None:
        """Close the connections of every loop that still runs. A loop that ended has closed its own."""
        self._open = False
        here = asyncio.get_running_loop()
        for loop, pools in list(self._pools.items()):
            if loop is here:
                await pools.keeper.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_finish(pools), loop))
        self._pools.clear()

    async def call(self, *command: str | bytes, sent: Callable[[], object] | None = None) -> Any:
        """Send one command and read its answer; `sent` is called in between."""
        pools = await self._here()
        return (await self._exchange(pools, pools.moves, [command], ANSWER_TIMEOUT_S, sent=sent))[0]

    async def call_all(self, *commands: Command) -> list[Any]:
        """Send commands together, the last of which waits for replicas, and read their answers."""
        pools = await self._here()
        return await self._exchange(pools, pools.confirmed, commands, ANSWER_TIMEOUT_S)

    async def try_all(self, *commands: Command) -> list[Any]:
        """Send commands together and read their answers; each answer may be an error."""
        pools = await self._here()
        return await self._exchange(pools, pools.moves, commands, ANSWER_TIMEOUT_S, read=_read_or_error)

    async def block(self, seconds: float, *command: str | bytes, late: Callable[[Any], None]) -> Any:
        """Send a command that the server answers within `seconds`, over a connection of its own.

        If this is cancelled, the server is told to stop waiting, so that whatever comes later goes to others.
        `late` is then called with what the server has answered by then; it is not called if that is unknown.
        """
        pools = await self._here()
        seconds += ANSWER_TIMEOUT_S
        return (await self._exchange(pools, pools.waits, [command], seconds, late=late))[0]

    async def subscribe(self, channel: str) -> AsyncGenerator[bytes]:
        """Yield what is published on a channel, from the first step on, over a connection of its own."""
        cancelled_before = _cancellations()
        pools = await self._here()
        with self.named_errors():
            connection = await pools.waits.get_connection()
            try:
                await connection.send_command("SUBSCRIBE", channel)
                async for kind, *_, news in self._heard(connection, cancelled_before):
                    if kind == b"message":
                        yield news
            finally:
                await connection.disconnect(nowait=True)
                await pools.waits.release(connection)

    async def _heard(
        self, connection: AbstractConnection, cancelled_before: int
    ) -> AsyncGenerator[list[Any]]:
        """Yield all answers of a connection. After a long silence, a PING asks whether it still works."""
        asked = False
        while True:
            _heed_cancellation(cancelled_before)
            answer = await connection.read_response(timeout=ANSWER_TIMEOUT_S)
            _heed_cancellation(cancelled_before)
            if answer is not None:
                asked = False
                yield answer
            elif asked:
                raise RedisTimeoutError("nothing is heard any more")
            else:
                asked = True
                await connection.send_command("PING")

    async def _exchange(
        self,
        pools: _Pools,
        pool: ConnectionPool | _Waits,
        commands: Sequence[Command],
        seconds: float,
        *,
        sent: Callable[[], object] | None = None,
        late: Callable[[Any], None] | None = None,
        read: Callable[[AbstractConnection, float], Awaitable[Any]] | None = None,
    ) -> list[Any]:
        cancelled_before = _cancellations()
        with self.named_errors():
            connection: AbstractConnection = await pool.get_connection()
            try:
                await _send(connection, commands)
                _heed_cancellation(cancelled_before)
                if sent is not None:
                    sent()
                return [await (read or _read_answer)(connection, seconds) for _ in commands]
            except ResponseError as error:
                if len(commands) > 1:  # the other answers are still on their way
                    await connection.disconnect(nowait=True)
                if leads_elsewhere(error) and pool in pools.all:
                    await self._connect_anew(pools)
                raise
            except BaseException as error:
                given_up = late if isinstance(error, asyncio.CancelledError) else None
                if given_up is None or not await self._let_go(connection, given_up):
                    # The answer may still be on its way: nobody else must read it as theirs.
                    await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)

    async def _let_go(self, connection: AbstractConnection, late: Callable[[Any], None]) -> bool:
        """Tell the server to end a wait; True if its answer was read and the connection can be used again."""
        client_id = self._client_ids.get(connection)
        if client_id is None:
            return False
        with contextlib.suppress(ReverieError, RedisError, OSError):
            async with asyncio.timeout(LET_GO_S):
                while True:
                    await self.call("CLIENT", "UNBLOCK", str(client_id))
                    with contextlib.suppress(RedisTimeoutError):  # the wait may not have begun yet
                        late(await _read_answer(connection, ASK_AGAIN_S))
                        return True
        return False

    async def _here(self) -> _Pools:
        self.check_open()
        loop = asyncio.get_running_loop()
        pools = self._pools.get(loop)
        if pools is None:
            for ended in [known for known in self._pools if known.is_closed()]:
                self._pools.pop(ended, None)
            pools = self._pools[loop] = _Pools(*self._new_pools())
            pools.keeper = self._keeper(loop, pools)
            await anext(pools.keeper)
        return pools

    async def _connect_anew(self, pools: _Pools) -> None:
        """Replace the pools; their connections are closed as soon as nobody uses them."""
        moves, waits, confirmed = pools.moves, pools.waits, pools.confirmed
        pools.moves, pools.waits, pools.confirmed = self._new_pools()
        await waits.leave()
        for pool in (moves, confirmed):
            await _leave(pool)

    def _new_pools(self) -> tuple[BlockingConnectionPool, _Waits, BlockingConnectionPool]:
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": ANSWER_TIMEOUT_S,
            # A repeated claim would claim twice: the caller decides what to do about a lost answer.
            "retry": Retry(NoBackoff(), 0),
        }
        moves, confirmed = (
            BlockingConnectionPool.from_url(
                self._url, max_connections=POOL_SIZE, timeout=ANSWER_TIMEOUT_S, **options
            )
            for _ in range(2)
        )
        options["redis_connect_func"] = self._greet
        waits = ConnectionPool.from_url(self._url, max_connections=1_000_000, **options)
        return moves, _Waits(waits), confirmed

    async def _greet(self, connection: AbstractConnection) -> None:
        """Set up a connection for waits and ask for its id. Without an id, a cancelled wait closes it."""
        await connection.on_connect()
        self._client_ids.pop(connection, None)
        with contextlib.suppress(ResponseError):
            await connection.send_command("CLIENT", "ID")
            self._client_ids[connection] = await connection.read_response()

    async def _keeper(self, loop: asyncio.AbstractEventLoop, pools: _Pools) -> AsyncGenerator[None, None]:
        """Close the pools when their loop ends: a loop closes the generators that began in it."""
        try:
            yield
        finally:
            self._pools.pop(loop, None)
            for pool in pools.all:
                await pool.disconnect()

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """Say in our own words that the server cannot be used now, or forbids a command."""
        try:
            yield
        except (RedisError, OSError) as error:
            if refusal := refusal_of(error):
                advice = "`reverie redis check` says what to type there"
                raise ForbiddenError(self.place, self.user, refusal, advice) from error
            if meaning := NOT_NOW.get(_first_word(error)):
                told = f"{self.place} cannot be used now: {meaning} ({_first_word(error)})"
                raise BackendUnavailableError(told) from error
            if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
                raise BackendUnavailableError(f"{self.place} did not answer: {error}") from error
            raise


async def _leave(pool: ConnectionPool) -> None:
    """Disconnect a pool from the server, each connection as soon as nobody uses it."""
    await pool.update_active_connections_for_reconnect()  # type: ignore[no-untyped-call]
    await pool.disconnect(inuse_connections=False)


async def _send(connection: AbstractConnection, commands: Sequence[Command]) -> None:
    """Send commands. If the connection was cut while it was idle, nothing was sent: it is opened again."""
    packed = connection.pack_commands(commands)
    try:
        await connection.send_packed_command(packed)
    except RedisConnectionError as error:
        if not isinstance(error.__cause__, ConnectionResetError):
            raise
        await connection.disconnect(nowait=True)
        await connection.send_packed_command(packed)


async def _read_answer(connection: AbstractConnection, seconds: float) -> Any:
    """Read the answer to a command. The connection stays open if this fails or is cancelled.

    The driver's own time limit is not used: it would answer None, which may be a real answer.
    """
    try:
        async with asyncio.timeout(seconds):
            return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
    except TimeoutError:
        raise RedisTimeoutError(f"nothing came within {seconds:g} s") from None


async def _read_or_error(connection: AbstractConnection, seconds: float) -> Any:
    try:
        return await _read_answer(connection, seconds)
    except ResponseError as error:
        return error


def leads_elsewhere(error: ResponseError) -> bool:
    """Whether a new connection to the same address may reach another server."""
    return _first_word(error) in ELSEWHERE


def _first_word(error: Exception) -> str:
    """The word for the kind of a server's error; the driver removes it from errors that it knows."""
    known: str | None = getattr(error, "status_code", None)
    return known or str(error).partition(" ")[0]


def _cancellations() -> int:
    """How often the running task has been cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _heed_cancellation(known: int) -> None:
    """Raise `CancelledError` if the task was cancelled since: the driver's own time limit can swallow that.

    Cancellations are counted, because a task that was cancelled before may still hand back what it holds.
    """
    if _cancellations() > known:
        raise asyncio.CancelledError


async def _finish(pools: _Pools) -> None:
    await pools.keeper.aclose()
