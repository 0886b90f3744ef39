"""The other side of `processes.py`: what runs in a process that calls handlers.

The rules of a batch are those of every other place (`executor._Call`); this only reports how far it has come,
so that the worker knows which message was being run if this process dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.dispatch.child_process import die_with_parent
from reverie.dispatch.child_protocol import HEADER, Answered, Began, Ended, Taken, Task, frame, pack
from reverie.dispatch.context import Context
from reverie.dispatch.local_executor import Batch, _Call
from reverie.dispatch.registry import Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedIOBase

    from reverie.dispatch.child_protocol import Report

__all__ = ["main"]


class _ReportingCall(_Call):
    """A batch that tells the worker of each step before and after it is taken."""

    def __init__(self, batch: Batch, context: Context, report: Callable[[Report], None]) -> None:
        super().__init__(batch, context, context.timeout_s)
        self._report = report

    def _arguments(self, indexes: Sequence[int]) -> tuple[Any, ...]:
        self._report(Began(list(indexes)))
        return super()._arguments(indexes)

    def _record(self, indexes: Sequence[int], answer: Any) -> None:
        super()._record(indexes, answer)
        self._report(Answered({index: pack(self.outcomes[index]) for index in indexes}))


def main() -> None:
    """Run tasks until the worker closes the connection."""
    descriptor, lifeline = (int(argument) for argument in sys.argv[1:])
    die_with_parent(lifeline)
    _leave_stopping_to_the_worker()
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)

    def report(value: Report) -> None:
        connection.sendall(frame(value))

    for task in _tasks(connection.makefile("rb")):
        report(Taken())
        _run(task, report)
        sys.stdout.flush()  # it may be killed before it has a chance to
        report(Ended())


def _leave_stopping_to_the_worker() -> None:
    """Do not end at a signal that goes to all processes at once; what a handler forks does so as usual."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, number, usual))


def _tasks(stream: BufferedIOBase) -> Iterator[Task]:
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        yield msgspec.json.decode(stream.read(HEADER.unpack(header)[0]), type=Task)


def _run(task: Task, report: Callable[[Report], None]) -> None:
    handler = Handler(function=_function(task.import_path), **task.handler)
    batch = Batch(0, handler, task.claims)
    call = _ReportingCall(batch, Context(worker=task.worker, timeout_s=task.timeout_s), report)
    if handler.is_async:
        asyncio.run(call.run_async())
    else:
        call.run_sync()


@cache
def _function(import_path: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = resolve_name(import_path)
    except BaseException as error:  # noqa: BLE001  the answer of every call
        return _failing(error)
    return function


def _failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise error

    return fail
