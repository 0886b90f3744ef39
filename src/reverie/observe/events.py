"""Events: what happens to messages, as it happens."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BATCH_BYTES", "Event", "EventName", "decode_events", "encode_events"]


class EventName(StrEnum):
    """What can happen."""

    ENQUEUE = "enqueue"
    """A message was accepted."""
    DEQUEUE = "dequeue"
    """A worker has claimed it."""
    START = "start"
    """Its handler begins."""
    FINISH = "finish"
    """Its run has ended, and that is written down; `status` says how it stands now."""
    FAILED = "message_processing_failed"
    """A run has failed: the message comes again, or (`status` failed) has become a dead letter."""
    ALERT = "alert"
    """A rule of the alerts has begun or ceased to hold."""


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
    """Which run of the message this is, from 1."""
    status: str | None = None
    queue_wait_ms: float | None = None
    """From when it last came into the queue to its claim."""
    exec_duration_ms: float | None = None
    """How long its handler took."""
    total_duration_ms: float | None = None
    """From its acceptance to its end."""
    error: str | None = None


BATCH_BYTES = 30_000
"""The most that `encode_events` puts into one piece."""

_decode = msgspec.json.Decoder(list[Event]).decode
_encode = msgspec.json.Encoder().encode
LONGEST_ERROR = 4000
"""An error is cut to its end when it leaves the process."""


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
    """Events that another process has sent; none if it cannot be read."""
    try:
        return _decode(piece)
    except msgspec.MsgspecError:
        return []


def _cut(event: Event) -> Event:
    if event.error is None or len(event.error) <= LONGEST_ERROR:
        return event
    return msgspec.structs.replace(event, error="… " + event.error[-LONGEST_ERROR:])
