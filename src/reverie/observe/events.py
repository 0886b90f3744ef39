"""Events: each tells one thing that has happened to a message, or an alert."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BATCH_BYTES", "Event", "EventName", "decode_events", "encode_events"]


class EventName(StrEnum):
    """The kinds of event."""

    ENQUEUE = "enqueue"
    """A message was accepted."""
    DEQUEUE = "dequeue"
    """A worker has claimed the message."""
    START = "start"
    """The handler of the message begins."""
    FINISH = "finish"
    """The run of the message has ended and is settled; `status` is the message's new status."""
    FAILED = "message_processing_failed"
    """A run has failed: the message is tried again, or (`last`) has become a dead letter."""
    ALERT = "alert"
    """An alert has begun or is over."""
    SESSION = "session"
    """A session has failed because its time was over, or ends slowly; `item_id` is its id."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that has happened. Durations are milliseconds, moments epoch milliseconds."""

    event: EventName
    at: int
    label: str = ""
    user_id: str = ""
    item_id: str = ""
    mem_cube_id: str = ""
    task_id: str | None = None
    trace_id: str | None = None
    worker: str | None = None
    attempt: int | None = None
    """The number of this run of the message, from 1."""
    status: str | None = None
    queue_wait_ms: float | None = None
    """From the time the message last entered the queue to its claim."""
    exec_duration_ms: float | None = None
    """How long the handler took."""
    total_duration_ms: float | None = None
    """From the message's acceptance to its end."""
    error: str | None = None
    last: bool | None = None
    """Of `message_processing_failed`: whether this run was the last, because the message is a dead letter."""


BATCH_BYTES = 30_000
"""The most bytes that `encode_events` sends in one piece."""

_decode = msgspec.json.Decoder(list[Event]).decode
_encode = msgspec.json.Encoder().encode
LONGEST_ERROR = 4000
"""Only this many characters of an error, its last ones, leave the process."""


def encode_events(events: Sequence[Event], send: Callable[[bytes], None]) -> None:
    """Send events in pieces of at most `BATCH_BYTES`."""
    piece = _encode([_cut(event) for event in events])
    if len(piece) <= BATCH_BYTES or len(events) == 1:
        send(piece)
        return
    half = len(events) // 2
    encode_events(events[:half], send)
    encode_events(events[half:], send)


def decode_events(piece: bytes) -> list[Event]:
    """Decode events that another process has sent; empty if the piece cannot be read."""
    try:
        return _decode(piece)
    except msgspec.MsgspecError:
        return []


def _cut(event: Event) -> Event:
    if event.error is None or len(event.error) <= LONGEST_ERROR:
        return event
    return msgspec.structs.replace(event, error="… " + event.error[-LONGEST_ERROR:])
