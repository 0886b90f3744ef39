"""The outbox: gathers submits that come while the writer is busy, and writes them together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from reverie.backends.sqlite.step import UNWRITABLE
from reverie.backends.sqlite.submit import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from reverie.backends.moves import Submitted
    from reverie.backends.sqlite.step import Step
    from reverie.message import Message

    Tell = Callable[[list[Submitted] | BaseException], None]
    Submission = tuple[Sequence[Message], Tell]

__all__ = ["Outbox"]


PATIENCE_S = 1.0
"""How long a job may take to fetch the waiting submits before another job is sent."""


class _Mailbox:
    """Carries answers from the writer's thread to an event loop, which it wakes once for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answers: deque[tuple[asyncio.Future[list[Submitted]], list[Submitted] | BaseException]] = (
            deque()
        )
        self._is_woken = False

    def put(self, future: asyncio.Future[list[Submitted]], answer: list[Submitted] | BaseException) -> None:
        """Answer a future of the loop. Called by any thread."""
        self._answers.append((future, answer))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                self.loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._is_woken = False  # first: an answer that comes from now on may miss this turn
        while self._answers:
            future, answer = self._answers.popleft()
            if future.done():  # cancelled
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class Outbox:
    """Takes submits from any thread. Each is accepted whole or refused, whatever happens to the others."""

    def __init__(self, write: Callable[[Callable[[Step], Any]], Future[Any]]) -> None:
        """`write` runs a step in the next write transaction."""
        self._write = write
        self._lock = threading.Lock()
        self._waiting: list[Submission] = []
        self._mailbox: _Mailbox | None = None
        self._sent = 0.0

    async def put(self, messages: Sequence[Message]) -> list[Submitted]:
        """Submit messages with all other submits that wait; they are durable when this returns."""
        loop = asyncio.get_running_loop()
        mailbox = self._mailbox
        if mailbox is None or mailbox.loop is not loop:
            mailbox = self._mailbox = _Mailbox(loop)
        answer: asyncio.Future[list[Submitted]] = loop.create_future()
        self._add(messages, partial(mailbox.put, answer))
        return await answer

    def put_and_wait(self, messages: Sequence[Message]) -> list[Submitted]:
        """Like `put`, for a thread that may block."""
        answers: list[list[Submitted] | BaseException] = []
        ready = threading.Lock()
        ready.acquire()

        def tell(answer: list[Submitted] | BaseException) -> None:
            answers.append(answer)
            ready.release()

        self._add(messages, tell)
        ready.acquire()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def _add(self, messages: Sequence[Message], tell: Tell) -> None:
        if any(message.depends_on for message in messages):  # a parent must be known or in the same submit
            self._send_alone((messages, tell))
            return
        now = time.monotonic()
        with self._lock:
            self._waiting.append((messages, tell))
            # One job takes all waiting submits. Another is sent later, in case the first was interrupted.
            send = len(self._waiting) == 1 or now - self._sent > PATIENCE_S
            if send:
                self._sent = now
        if send:
            taken: list[Submission] = []
            self._send(partial(self._submit_waiting, taken), taken)

    def _submit_waiting(self, taken: list[Submission], step: Step) -> list[list[Submitted]]:
        """Submit everything that waits when the job runs, and add it to `taken`."""
        with self._lock:
            taken.extend(self._waiting)  # a repeated job has taken some already
            self._waiting = []
        answers = iter(submit(step, [message for messages, _ in taken for message in messages]))
        return [[next(answers) for _ in messages] for messages, _ in taken]

    def _send(self, job: Callable[[Step], list[list[Submitted]]], taken: list[Submission]) -> None:
        """Let a job write the submits in `taken`, then answer them."""
        try:
            written = self._write(job)
        except BaseException as error:
            self._fail(error, taken)
            if not isinstance(error, Exception):
                raise
        else:
            written.add_done_callback(partial(self._answer, taken))

    def _answer(self, taken: list[Submission], written: Future[list[list[Submitted]]]) -> None:
        error = written.exception()
        if error is None:
            for (_, tell), answer in zip(taken, written.result(), strict=True):
                tell(answer)
        elif isinstance(error, UNWRITABLE) and len(taken) > 1:
            for submission in taken:  # one of them is at fault and must not spoil the others
                self._send_alone(submission)
        else:
            self._fail(error, taken)

    def _send_alone(self, submission: Submission) -> None:
        messages, _ = submission
        self._send(lambda step: [submit(step, messages)], [submission])

    def _fail(self, error: BaseException, taken: list[Submission]) -> None:
        if not taken:  # the job failed before it could take any
            with self._lock:
                taken, self._waiting = self._waiting, []
        for _, tell in taken:
            tell(error)
