"""The protocol between a worker and the processes that run its handlers: plain values, as JSON in frames.

The worker sends tasks, replies and cancel requests. A process reports each step of its task, and passes on
the requests of its handler.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from reverie.backends.moves import Claim
from reverie.dispatch.answers import Failed
from reverie.dispatch.classify import Failure
from reverie.dispatch.requests import Request
from reverie.effect import KINDS, Effect
from reverie.message import Key, Message
from reverie.outcome import Bury, Cancel, Done, Retry, Snooze, delay_of

if TYPE_CHECKING:
    from reverie.dispatch.registry import Handler
    from reverie.outcome import Outcome

__all__ = [
    "HEADER",
    "RUN_ENDED",
    "Answer",
    "Answered",
    "Asked",
    "Began",
    "Cancelled",
    "Ended",
    "Order",
    "Reply",
    "Report",
    "Taken",
    "Task",
    "frame",
    "handler_fields",
    "pack",
    "unpack",
]

HEADER = struct.Struct(">I")
"""The header of each frame: the number of bytes that follow."""
RUN_ENDED = "the run that asked has ended"
"""What a thread is told that a handler has left behind and that still asks."""


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """A batch to run."""

    import_path: str
    handler: dict[str, Any]
    """The fields of the `Handler`, without its function."""
    claims: list[Claim]
    worker: str
    timeout_s: float
    cancelled: list[Key] = []
    """Those of its messages that someone wants cancelled already."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The worker's answer to a request of a handler."""

    number: int
    """The number of the request."""
    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    """Why there is no answer."""
    reason: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A request to cancel these messages of the present task."""

    keys: list[Key]


Order = Task | Reply | Cancelled
"""The frames that the worker sends."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome in a form that can be sent."""

    kind: Literal["done", "retry", "snooze", "cancel", "bury"]
    after: float | None = None
    reason: str | None = None
    effects: tuple[Effect, ...] = ()
    follow_ups: tuple[Message, ...] = ()
    failure: Failure | None = None


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The process has read its task. If it dies after this, the task is the cause."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The handler is being called with the messages at these indexes of the batch."""

    indexes: list[int]


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The handler has answered: its answers, by index in the batch."""

    answers: dict[int, Answer]


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """The handler has sent a request to the worker, and waits for the reply."""

    number: int
    request: Request


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The batch is over; the process is free."""


Report = Taken | Began | Answered | Asked | Ended
"""The frames that a process sends."""


def frame(value: msgspec.Struct) -> bytes:
    """Encode a value as one frame."""
    body = msgspec.json.encode(value)
    return HEADER.pack(len(body)) + body


def handler_fields(handler: Handler) -> dict[str, Any]:
    """The fields of a handler that the other process needs: all but its function."""
    names = [field.name for field in dataclasses.fields(handler)]
    known = {name: getattr(handler, name) for name in names if name != "function"}
    return known | {"credential": handler.label}  # credentials are the worker's business


def pack(outcome: Outcome) -> Answer:
    """Turn an outcome into an answer; if it cannot be encoded, its handler has failed."""
    try:
        answer = _answer(outcome)
        msgspec.json.decode(msgspec.json.encode(answer), type=Answer)
    except Exception as error:  # noqa: BLE001  a bad answer is its handler's failure
        return Answer("retry", reason=_text(f"bug: the handler's answer cannot be kept: {error!r}"))
    return answer


def unpack(answer: Answer) -> Outcome:
    """Turn an answer back into its outcome."""
    match answer.kind:
        case "done":
            return Done(effects=answer.effects, follow_ups=answer.follow_ups)
        case "retry" if answer.failure is not None:
            return Failed(answer.failure, answer.reason or "")
        case "retry":
            return Retry(after=answer.after, reason=answer.reason)
        case "snooze":
            return Snooze(after=answer.after or 0.0, reason=answer.reason)
        case "cancel":
            return Cancel(reason=answer.reason)
        case "bury":
            return Bury(answer.reason or "")


def _answer(outcome: Outcome) -> Answer:
    match outcome:
        case Done():
            effects = tuple(outcome.effects)
            for effect in effects:
                if not isinstance(effect, KINDS):  # a dictionary would be encoded like an effect
                    raise TypeError(f"{type(effect).__name__} is no effect")
            return Answer("done", effects=effects, follow_ups=tuple(outcome.follow_ups))
        case Failed():
            return Answer("retry", reason=_text(outcome.reason), failure=outcome.failure)
        case Retry():
            return Answer("retry", after=delay_of(outcome), reason=_text(outcome.reason))
        case Snooze():
            return Answer("snooze", after=delay_of(outcome), reason=_text(outcome.reason))
        case Cancel():
            return Answer("cancel", reason=_text(outcome.reason))
        case _:
            return Answer("bury", reason=_text(outcome.reason))


def _text(reason: object) -> str | None:
    return None if reason is None else str(reason).encode(errors="backslashreplace").decode()
