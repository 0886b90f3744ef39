"""Run handlers in processes of their own, which can be killed and may die.

Each process has its own connection and works on one batch at a time: a process that is killed holds nothing
that another needs. A process reports each step, and the answers that it gave before it died are kept.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.clock import to_epoch_ms
from reverie.base.logs import get_logger
from reverie.dispatch.answers import TIMED_OUT, Failed
from reverie.dispatch.child_process import ChildProcess, describe_exit
from reverie.dispatch.child_protocol import (
    HEADER,
    RUN_ENDED,
    Answered,
    Asked,
    Began,
    Cancelled,
    Ended,
    Reply,
    Report,
    Taken,
    Task,
    frame,
    handler_fields,
    unpack,
)
from reverie.dispatch.classify import classify
from reverie.errors import ReverieError
from reverie.outcome import Bury, Cancel, Died, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.context import Context, Line
    from reverie.dispatch.interface import Batch
    from reverie.dispatch.registry import Handler
    from reverie.message import Key
    from reverie.outcome import Outcome

__all__ = ["ProcessExecutor"]

log = get_logger(__name__)

START_S = 60.0
"""How long a process may take to start and to import its handler."""
NO_PROCESS_PAUSE_S = 5.0
"""How long messages wait if no process can be started. No attempt is used, because it is not their fault."""
LAST_WORDS_S = 1.0
"""How long to wait for the last reports of a dead process; only processes that it started can delay them."""
FAREWELL_S = 2.0
"""How long a process has to end by itself at a close."""


@dataclass(slots=True)
class _Run:
    """A batch that runs in a process, or waits for one."""

    task: Task
    progress: _Progress
    line: Line | None
    """Answers the requests of the handler."""
    give_up: asyncio.Event = field(default_factory=asyncio.Event)
    process: _Process | None = None


class ProcessExecutor:
    """Runs batches in processes, by the import path of their handler. See `Executor`."""

    def __init__(self, processes: int | None = None) -> None:
        """Each label has as many processes as its concurrency; with `processes`, all share that many."""
        self._processes = processes
        self._pools: dict[str, _Pool] = {}
        self._running: dict[int, _Run] = {}

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        progress = _Progress(_deadlines(batch, context))
        import_path = batch.handler.import_path
        if import_path is None:
            reason = "bug: importing the handler by its name gives something else; is it decorated twice?"
            progress.conclude(Retry(reason=reason), progress.unanswered)
            return progress.answers
        task = Task(
            import_path=import_path,
            handler=handler_fields(batch.handler),
            claims=list(batch.claims),
            worker=context.worker,
            timeout_s=timeout_s,
        )
        run = self._running[batch.batch_id] = _Run(task, progress, context.line)
        try:
            await self._pool(batch.handler).run(run)
        finally:
            del self._running[batch.batch_id]
        return progress.answers

    async def abandon(self, batch_id: int) -> None:
        """See `Executor.abandon`."""
        if batch_id in self._running:
            self._running[batch_id].give_up.set()

    def cancel(self, keys: Collection[Key]) -> None:
        """See `Executor.cancel`. A process is killed if all messages of its batch are to be cancelled."""
        for run in self._running.values():
            cancelled = [claim.key for claim in run.task.claims if claim.key in keys]
            if len(cancelled) == len(run.task.claims):
                run.progress.conclude(Cancel(), run.progress.unanswered)
                run.give_up.set()
            elif cancelled and run.process is not None:
                run.process.tell(Cancelled(cancelled))

    async def close(self) -> None:
        """See `Executor.close`."""
        for run in self._running.values():
            run.give_up.set()
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(*(pool.close() for pool in pools))

    def _pool(self, handler: Handler) -> _Pool:
        name, size = (
            (handler.label, handler.concurrency) if self._processes is None else ("", self._processes)
        )
        if name not in self._pools:
            self._pools[name] = _Pool(size)
        return self._pools[name]


class _Progress:
    """The progress of a batch, as its process has reported it."""

    def __init__(self, deadlines: Sequence[float]) -> None:
        """`deadlines` has the end of each message's time, by the monotonic clock."""
        self._deadlines = deadlines
        self._outcomes: dict[int, Outcome] = {}
        self.current: Sequence[int] = ()
        self.taken = False
        self.called = False
        self.since = time.monotonic()

    def hear(self, report: Report) -> None:
        """Note a step that the process has reported."""
        self.since = time.monotonic()
        match report:
            case Taken():
                self.taken, self.current = True, (0,)  # the import of its handler may kill the process
            case Began():
                self.called, self.current = True, report.indexes
            case Answered():
                self.called, self.current = False, ()
                self._outcomes.update((index, unpack(answer)) for index, answer in report.answers.items())

    def limit_s(self, timeout_s: float) -> float:
        """Seconds that the present step may take: a call of the handler, or the start of the process."""
        return timeout_s if self.called else START_S

    def time_left(self, timeout_s: float) -> float:
        """Seconds until the present step takes too long, or a message in it is past its deadline."""
        ends = [self._deadlines[index] for index in self.current] if self.called else []
        return min([self.since + self.limit_s(timeout_s), *ends]) - time.monotonic()

    @property
    def overdue(self) -> list[int]:
        """The messages that are running and past their deadline, by index."""
        return [i for i in self.current if self.called and self._deadlines[i] <= time.monotonic()]

    @property
    def next_deadline_s(self) -> float:
        """Seconds until the next deadline of any message."""
        now = time.monotonic()
        return min((ends - now for ends in self._deadlines if ends > now), default=math.inf)

    @property
    def unanswered(self) -> list[int]:
        """The messages that have no outcome yet, by index."""
        return [index for index in range(len(self._deadlines)) if index not in self._outcomes]

    def conclude(self, outcome: Outcome, indexes: Sequence[int]) -> None:
        """Give the messages at these indexes this outcome."""
        self._outcomes.update(dict.fromkeys(indexes, outcome))

    @property
    def answers(self) -> list[Outcome | None]:
        """One outcome for each message; None if it was not run."""
        return [self._outcomes.get(index) for index in range(len(self._deadlines))]


class _Pool:
    """At most `size` processes, started when they are first needed and then reused."""

    def __init__(self, size: int) -> None:
        self._room = asyncio.Semaphore(size)
        self._idle: list[_Process] = []
        self._closed = False

    async def run(self, run: _Run) -> None:
        """Run a task in a process that is free."""
        async with self._slot(run.give_up):
            taken = run.give_up.is_set()
            while self._idle and not taken:  # an idle process may have been killed
                taken = await self._try(self._idle.pop(), run)
            if not taken:
                await self._try_new(run)
        if self._closed:
            await self.close()

    async def _try_new(self, run: _Run) -> None:
        try:
            taken = await self._try(await _Process.start(), run)
        except OSError as error:
            log.error("process.not_started", error=str(error))  # noqa: TRY400  the traceback says no more
            taken = False
        if not taken and not run.give_up.is_set():
            reason = "no process could be started for it"
            run.progress.conclude(Snooze(after=NO_PROCESS_PAUSE_S, reason=reason), run.progress.unanswered)

    async def _try(self, process: _Process, run: _Run) -> bool:
        """Run the task in a process; the answer is whether the process took it."""
        if await process.run(run):
            self._idle.append(process)
        return run.progress.taken

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.close() for process in idle))

    @asynccontextmanager
    async def _slot(self, give_up: asyncio.Event) -> AsyncIterator[None]:
        """Hold room for one process. A batch that is given up while it waits for room enters without it."""
        tasks = [asyncio.ensure_future(wait) for wait in (self._room.acquire(), give_up.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if not tasks[0].cancelled():
                self._room.release()


class _Process:
    """One process and the connection to it."""

    def __init__(
        self, child: ChildProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Process:
        """Start a process; OSError if that is not possible."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                number = theirs.fileno()
                child = ChildProcess(
                    "reverie.dispatch.child_main", [str(number)], descriptors=[number], leaves_nothing=True
                )
            return cls(child, *await asyncio.open_connection(sock=ours))
        except OSError:
            ours.close()
            raise

    def tell(self, order: Cancelled | Reply | Task) -> None:
        """Send an order to the process; does nothing if the connection is closed."""
        if not self._writer.is_closing():
            self._writer.write(frame(order))

    async def run(self, run: _Run) -> bool:
        """Work on a task until the task ends, takes too long, is given up or kills the process.

        The answer is whether the process can be used again; if not, it has ended when this returns.
        """
        task, progress = run.task, run.progress
        progress.since = time.monotonic()
        run.process = self
        if run.line is not None:  # it may have waited for a process while someone wanted it cancelled
            cancelled = [claim.key for claim in task.claims if run.line.is_cancelled(claim.key)]
            task = msgspec.structs.replace(task, cancelled=cancelled)
        self.tell(task)
        reading = asyncio.ensure_future(self._read(run))
        waits: list[asyncio.Future[Any]] = [
            reading,
            asyncio.ensure_future(run.give_up.wait()),
            asyncio.ensure_future(self._child.wait()),
        ]
        try:
            while not any(wait.done() for wait in waits) and progress.time_left(task.timeout_s) > 0:
                # A call may begin during the wait, and reach its deadline before the present step does.
                left = min(progress.time_left(task.timeout_s), task.timeout_s, progress.next_deadline_s)
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._child.ended:
                await asyncio.wait([reading], timeout=LAST_WORDS_S)
            if reading.done() and reading.result():
                return True
        finally:
            run.process = None
            if not reading.done():
                self._child.kill_now()
            for wait in waits:
                wait.cancel()
        await self._end_badly(run, reading)
        return False

    async def close(self) -> None:
        """Let the process end by itself; kill it after `FAREWELL_S` seconds."""
        self._writer.close()
        await asyncio.wait([asyncio.ensure_future(self._child.wait())], timeout=FAREWELL_S)
        self._child.kill_now()
        await self._child.wait()

    async def _read(self, run: _Run) -> bool:
        """Read the process's reports and answer its requests; whether it reported the end of the task."""
        answers: set[asyncio.Task[msgspec.Raw]] = set()
        try:
            while True:
                header = await self._reader.readexactly(HEADER.size)
                body = await self._reader.readexactly(HEADER.unpack(header)[0])
                report = msgspec.json.decode(body, type=Report)
                if isinstance(report, Asked):  # not a step: the time of the call goes on
                    claims = [run.task.claims[index] for index in run.progress.current]
                    answer = asyncio.ensure_future(_answer(report, claims, run.line))
                    answers.add(answer)
                    answer.add_done_callback(answers.discard)
                    answer.add_done_callback(partial(self._reply, report.number))
                    continue
                run.progress.hear(report)
                if isinstance(report, Ended):
                    return True
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            return False
        finally:
            for answer in answers:
                answer.cancel()

    def _reply(self, number: int, answer: asyncio.Task[msgspec.Raw]) -> None:
        """Tell the process an answer, even if the run has ended: a thread of its handler may wait for it."""
        if answer.cancelled():
            ended = ReverieError(RUN_ENDED)
            self.tell(Reply(number=number, failure=classify(ended), reason=str(ended)))
        elif error := answer.exception():
            reason = f"{type(error).__name__}: {error}"
            self.tell(Reply(number=number, failure=classify(error), reason=reason))
        else:
            self.tell(Reply(number=number, value=answer.result()))

    async def _end_badly(self, run: _Run, reading: asyncio.Future[bool]) -> None:
        """End the process, and give the messages that it was working on their outcomes."""
        progress = run.progress
        by_itself = self._child.ended or (reading.done() and not reading.cancelled())
        self._child.kill_now()
        code = await self._child.wait()
        self._writer.close()
        if by_itself:
            log.warning("process.died", pid=self._child.pid, how=describe_exit(code))
            progress.conclude(Died(f"the process that ran it {describe_exit(code)}"), progress.current)
        elif progress.overdue:
            progress.conclude(Bury("deadline"), progress.overdue)
        elif not run.give_up.is_set():
            limit = progress.limit_s(run.task.timeout_s)
            what = "one call took longer than" if progress.called else "its process was not ready after"
            progress.conclude(Failed(TIMED_OUT, f"timeout: {what} {limit:g} s"), progress.current)


async def _answer(asked: Asked, claims: Collection[Claim], line: Line | None) -> msgspec.Raw:
    if line is None:
        raise ReverieError("this run has no worker to ask")
    return msgspec.Raw(msgspec.json.encode(await line.ask(asked.request, claims)))


def _deadlines(batch: Batch, context: Context) -> list[float]:
    """The deadline of each message, by the monotonic clock."""
    moments = [claim.message.deadline for claim in batch.claims]
    clock = getattr(context.line, "clock", None)
    if clock is None or not any(moments):
        return [math.inf] * len(moments)
    now, here = clock.now(), time.monotonic()
    return [math.inf if moment is None else here + (to_epoch_ms(moment) - now) / 1000 for moment in moments]
