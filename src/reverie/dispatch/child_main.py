"""The program of a process that calls handlers, started by `processes.py`.

A batch follows the same rules as in every other place (`local_executor.Call`). This program only reports each
step: if the process dies, the worker knows which message was running.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from functools import cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.dispatch.child_process import die_with_parent
from reverie.dispatch.child_protocol import (
    HEADER,
    RUN_ENDED,
    Answered,
    Asked,
    Began,
    Cancelled,
    Ended,
    Order,
    Reply,
    Taken,
    Task,
    frame,
    pack,
)
from reverie.dispatch.context import Context
from reverie.dispatch.interface import Batch
from reverie.dispatch.local_executor import Call
from reverie.dispatch.registry import Handler
from reverie.errors import ReverieError
from reverie.failures import ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.child_protocol import Report
    from reverie.dispatch.requests import Request
    from reverie.message import Key

__all__ = ["main"]

CHUNK = 65_536


class ChildLine:
    """The connection to the worker, as a handler in this process uses it. See `context.Line`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = bytearray()
        self._reading = threading.Lock()
        """Held by the thread that reads: a handler may ask from several, which may outlive its call."""
        self._tasks: deque[Task] = deque()
        """Tasks that a thread has read while it waited for a reply."""
        self._writing = threading.Lock()
        self._call: Collection[Claim] = ()
        """The claims of the call that the worker knows to be running."""
        self._numbers = itertools.count(1)
        self._cancelled: set[Key] = set()

    def report(self, value: Report, call: Collection[Claim] = ()) -> None:
        """Send one report of a step. `call` has the claims of the call that it begins."""
        with self._writing:
            self._call = call
            self._connection.sendall(frame(value))

    def tasks(self) -> Iterator[Task]:
        """Yield tasks, one after the other, until the worker closes the connection."""
        while True:
            with self._reading:
                order = self._tasks.popleft() if self._tasks else self._read(wait=True)
            if order is None:
                return
            if isinstance(order, Task):
                self._cancelled = set(order.cancelled)
                yield order

    async def ask(self, request: Request, claims: Collection[Claim]) -> Any:
        """See `Line.ask`."""
        return await asyncio.to_thread(self.ask_and_wait, request, claims)

    def ask_and_wait(self, request: Request, claims: Collection[Claim]) -> Any:
        """See `Line.ask_and_wait`. A thread that has outlived its call is told so, and asks nobody."""
        with self._reading:
            number = next(self._numbers)
            with self._writing:
                if claims != self._call:
                    raise ReverieError(RUN_ENDED)
                self._connection.sendall(frame(Asked(number, request)))
            while True:
                order = self._read(wait=True)
                if order is None:
                    raise ConnectionError("the worker has gone")
                if isinstance(order, Reply) and order.number == number:
                    break
                self._heed(order)
        if order.failure is not None:
            failure = order.failure
            raise ERRORS[failure.kind](
                order.reason, retry_after=failure.retry_after_s, credential=failure.credential
            )
        return msgspec.json.decode(order.value, type=request.answer)

    def is_cancelled(self, key: Key) -> bool:
        """See `Line.is_cancelled`. Reads the orders that the worker has sent meanwhile."""
        if self._reading.acquire(blocking=False):
            try:
                while (order := self._read(wait=False)) is not None:
                    self._heed(order)
            finally:
                self._reading.release()
        return key in self._cancelled

    def _heed(self, order: Order) -> None:
        if isinstance(order, Cancelled):
            self._cancelled.update(order.keys)
        elif isinstance(order, Task):
            self._tasks.append(order)

    def _read(self, *, wait: bool) -> Order | None:
        """The next order; None if the worker has gone, or without `wait`, if there is no order yet."""
        while True:
            if len(self._unread) >= HEADER.size:
                size = HEADER.size + HEADER.unpack_from(self._unread)[0]
                if len(self._unread) >= size:
                    body = bytes(self._unread[HEADER.size : size])
                    del self._unread[:size]
                    order: Order = msgspec.json.decode(body, type=Order)
                    return order
            if not wait and not select.select([self._connection], [], [], 0)[0]:
                return None
            data = self._connection.recv(CHUNK)
            if not data:
                return None
            self._unread += data


class _ReportingCall(Call):
    """A batch that reports to the worker before and after each call of the handler."""

    def __init__(self, batch: Batch, context: Context, line: ChildLine) -> None:
        super().__init__(batch, context, context.timeout_s, None)
        self._line = line

    def _arguments(self, indexes: Sequence[int], *, is_async: bool) -> tuple[Any, ...]:
        self._line.report(Began(list(indexes)), tuple(self._claims[index] for index in indexes))
        return super()._arguments(indexes, is_async=is_async)

    def _record(self, indexes: Sequence[int], answer: Any) -> None:
        super()._record(indexes, answer)
        self._line.report(Answered({index: pack(self.outcomes[index]) for index in indexes}))


def main() -> None:
    """Run tasks until the worker closes the connection."""
    descriptor, lifeline = (int(argument) for argument in sys.argv[1:])
    die_with_parent(lifeline)
    _leave_stopping_to_the_worker()
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    line = ChildLine(connection)
    with suppress(BrokenPipeError, ConnectionResetError):  # the worker was killed: nobody is to be told
        for task in line.tasks():
            line.report(Taken())
            _run(task, line)
            sys.stdout.flush()  # a process that is killed later does not flush
            line.report(Ended())


def _leave_stopping_to_the_worker() -> None:
    """Ignore the stop signals that go to all processes at once; a process that a handler forks obeys them."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, number, usual))


def _run(task: Task, line: ChildLine) -> None:
    function = _function(task.import_path)
    handler = Handler(function=function, **task.handler)
    context = Context(worker=task.worker, timeout_s=task.timeout_s, line=line)
    call = _ReportingCall(Batch(0, handler, task.claims), context, line)
    if inspect.iscoroutinefunction(function):
        asyncio.run(call.run_async())
    else:
        call.run_sync()


@cache
def _function(import_path: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = resolve_name(import_path)
    except BaseException as error:  # noqa: BLE001  raised again at every call of the handler
        return _failing(error)
    return function


def _failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise error

    return fail
