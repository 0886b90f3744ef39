"""Reading what a handler answered or raised as outcomes."""

from __future__ import annotations

import inspect
import traceback
from typing import TYPE_CHECKING, Any

from reverie.outcome import Bury, Cancel, Done, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Message
    from reverie.outcome import Outcome

__all__ = ["read_answer", "read_batch_answer"]

OUTCOMES = (Done, Retry, Snooze, Cancel, Bury)
LONGEST_ERROR = 8000
"""Characters of a traceback that are kept; of a longer one the end, where the cause stands."""


def read_answer(answer: Any) -> Outcome:
    """The outcome of one message: None is done, an exception is a failed run."""
    if answer is None:
        return Done()
    if isinstance(answer, OUTCOMES):
        return answer
    if isinstance(answer, BaseException):
        return Retry(reason=_describe(answer))
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        return Retry(
            reason="bug: the handler returned a coroutine that nobody awaits; declare it with async def"
        )
    return Retry(reason=f"bug: the handler returned {type(answer).__name__}, expected an outcome or None")


def read_batch_answer(messages: Sequence[Message], answer: Any) -> list[Outcome]:
    """The outcomes of a batch, from `{message.key: outcome}`; one that is missing is a failed run."""
    if isinstance(answer, dict):
        missing = Retry(reason="bug: the batch handler's answer has no entry for this message")
        return [read_answer(answer[m.key]) if m.key in answer else missing for m in messages]
    if isinstance(answer, Done) and len(messages) > 1:
        answer = TypeError("a batch handler answers {message.key: outcome}, not one Done for all")
    return [read_answer(answer)] * len(messages)


def _describe(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= LONGEST_ERROR else "… " + text[-LONGEST_ERROR:]
