"""Submits that come while the writer is busy, gathered: they are written by the same few statements."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from reverie.backends.moves import Accepted
from reverie.backends.sqlite.step import UNWRITABLE
from reverie.backends.sqlite.submit import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.sqlite.step import Step
    from reverie.message import Message

    Answer = Accepted | Exception
    Tell = Callable[[Accepted | BaseException], None]
    Submission = tuple[Sequence[Message], Tell]

__all__ = ["Outbox"]


class Outbox:
    """Takes submits from any thread; each is kept whole or refused, whatever becomes of its neighbours."""

    def __init__(self, write: Callable[[Callable[[Step], Any]], Future[Any]]) -> None:
        """`write` runs a step in the next write transaction."""
        self._write = write
        self._lock = threading.Lock()
        self._waiting: list[Submission] = []

    def put(self, messages: Sequence[Message]) -> Future[Accepted]:
        """Submit with all others that wait; the future is done when it is durable."""
        future: Future[Accepted] = Future()

        def tell(answer: Accepted | BaseException) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self._add(messages, tell)
        return future

    def put_and_wait(self, messages: Sequence[Message]) -> Accepted:
        """The same for a thread that blocks; a bare lock costs half of what a future does."""
        answers: list[Accepted | BaseException] = []
        ready = threading.Lock()
        ready.acquire()

        def tell(answer: Accepted | BaseException) -> None:
            answers.append(answer)
            ready.release()

        self._add(messages, tell)
        ready.acquire()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def _add(self, messages: Sequence[Message], tell: Tell) -> None:
        with self._lock:
            self._waiting.append((messages, tell))
            first = len(self._waiting) == 1
        if first:
            self._send()

    def _send(self) -> None:
        taken: list[Submission] = []

        def job(step: Step) -> list[Answer]:
            with self._lock:
                taken.extend(self._waiting)  # the job may run again, and has some already
                self._waiting = []
            return _submit_all(step, [messages for messages, _ in taken])

        try:
            written = self._write(job)
        except BaseException:
            with self._lock:
                self._waiting = []
            raise
        written.add_done_callback(lambda future: self._answer(future, taken))

    def _answer(self, written: Future[list[Answer]], taken: list[Submission]) -> None:
        error = written.exception()
        if not taken:  # it failed before it could begin
            with self._lock:
                taken, self._waiting = self._waiting, []
        answers: Sequence[Answer | BaseException] = (
            written.result() if error is None else [error] * len(taken)
        )
        for (_, tell), answer in zip(taken, answers, strict=True):
            tell(answer)


def _submit_all(step: Step, submissions: Sequence[Sequence[Message]]) -> list[Answer]:
    """Write all at once; if something is wrong with one of them, each by itself."""
    if len(submissions) == 1:
        return [Accepted(answers=submit(step, submissions[0]))]
    try:
        with step.savepoint():
            answers = iter(submit(step, [message for messages in submissions for message in messages]))
    except UNWRITABLE:  # found again by the one whose it is
        return [_submit_one(step, messages) for messages in submissions]
    return [Accepted(answers=[next(answers) for _ in messages]) for messages in submissions]


def _submit_one(step: Step, messages: Sequence[Message]) -> Answer:
    try:
        with step.savepoint():
            return Accepted(answers=submit(step, messages))
    except UNWRITABLE as error:
        return error
