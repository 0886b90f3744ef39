"""Turn the answer of a handler, or the error it raised, into outcomes."""

from __future__ import annotations

import inspect
import traceback
from typing import TYPE_CHECKING, Any

from reverie.dispatch.classify import Failure, classify
from reverie.failures import FailureKind
from reverie.outcome import Bury, Cancel, Done, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Message
    from reverie.outcome import Outcome

__all__ = ["OUTCOMES", "TIMED_OUT", "Failed", "concerns_all", "read_answer", "read_batch_answer"]

OUTCOMES = (Done, Retry, Snooze, Cancel, Bury)
"""The outcomes that a handler may answer. It may also answer None."""
LONGEST_ERROR = 8000
"""The most characters of a traceback that are kept: its end, because the cause is there."""


DEFAULT_BUDGET_S = 3600.0
"""How long a message waits after its budget is spent, if the error does not say how long."""
TIMED_OUT = Failure(kind=FailureKind.TRANSIENT, cause="timeout")
OF_THE_CREDENTIAL = {FailureKind.RATE_LIMITED, FailureKind.QUOTA, FailureKind.CREDENTIALS}


class Failed(Retry):
    """A failed run and its failure, whose class decides when the message runs again."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(after=None, reason=reason)
        self.failure = failure


def read_answer(answer: Any) -> Outcome:
    """The outcome of one message: None is done, an exception is a failed run."""
    if answer is None:
        return Done()
    if isinstance(answer, OUTCOMES):
        return answer
    if isinstance(answer, BaseException):
        return _read_error(answer)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        return _bug(
            "coroutine", "the handler returned a coroutine that nobody awaits; declare it with async def"
        )
    return _bug("answer", f"the handler returned {type(answer).__name__}, expected an outcome or None")


def concerns_all(error: BaseException, *, one_credential: bool) -> bool:
    """Whether the error of a batch handler concerns all its messages: then running them singly is no use."""
    if isinstance(error, OUTCOMES):
        return True
    return one_credential and classify(error).kind in OF_THE_CREDENTIAL


def read_batch_answer(messages: Sequence[Message], answer: Any) -> list[Outcome]:
    """The outcomes of a batch, from `{message.key: outcome}`; a message without an entry is a failed run."""
    if isinstance(answer, dict):
        missing = _bug("answer", "the batch handler's answer has no entry for this message")
        return [read_answer(answer[m.key]) if m.key in answer else missing for m in messages]
    if isinstance(answer, Done) and len(messages) > 1:
        answer = TypeError("a batch handler answers {message.key: outcome}, not one Done for all")
    return [read_answer(answer)] * len(messages)


def _read_error(error: BaseException) -> Outcome:
    failure = classify(error)
    reason = f"{failure.kind}: {_describe(error)}"
    match failure.kind:
        case FailureKind.INVALID:
            return Bury(reason)
        case FailureKind.BUDGET:
            after = failure.retry_after_s
            return Snooze(after=DEFAULT_BUDGET_S if after is None else after, reason=reason)
        case _:
            return Failed(failure, reason)


def _bug(cause: str, reason: str) -> Failed:
    return Failed(Failure(kind=FailureKind.BUG, cause=cause), f"{FailureKind.BUG}: {reason}")


def _describe(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= LONGEST_ERROR else "… " + text[-LONGEST_ERROR:]
