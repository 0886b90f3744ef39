"""What travels between Python and the functions on the server, as MessagePack arrays."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.moves import Claim
from reverie.backends.redis.keys import encode_id
from reverie.clock import from_epoch_ms, to_epoch_ms
from reverie.message import Message, level_of

if TYPE_CHECKING:
    from reverie.backends.moves import ClaimRequest, Settlement
    from reverie.backends.redis.keys import Keys

__all__ = [
    "AdvanceReply",
    "BodiesReply",
    "ClaimReply",
    "ClaimedRow",
    "RenewReply",
    "ServedLane",
    "SettleReply",
    "SubmitReply",
    "TimeReply",
    "claim_request",
    "claim_row",
    "claims_of",
    "message_row",
    "read_body",
    "settlement_row",
]

_Row = tuple[Any, ...]


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    """Every answer begins with the time on the queue's clock, in epoch milliseconds."""

    now: int


class ClaimedRow(msgspec.Struct, array_like=True, frozen=True):
    """One claimed message: its body as it was submitted, and what has happened to it since."""

    body: str
    entry_id: str
    attempts: int
    losses: int
    submitted_at: int


class ServedLane(msgspec.Struct, array_like=True, frozen=True):
    """What one lane gave."""

    stream_key: str
    rows: list[ClaimedRow]


class TimeReply(_Reply, frozen=True):
    """The answer of a function that has nothing else to say."""


class ClaimReply(_Reply, frozen=True):
    """The answer to a claim."""

    served: list[ServedLane]


class SubmitReply(_Reply, frozen=True):
    """The answer to a submit."""

    answers: list[str]
    served: list[ServedLane]


class RenewReply(_Reply, frozen=True):
    """The answer to a renewal: which of the claims, counted from 0, are lost."""

    lost: list[int]


class SettleReply(_Reply, frozen=True):
    """The answer to a settlement: whether each was applied."""

    applied: list[bool]


class AdvanceReply(_Reply, frozen=True):
    """What time has moved; `next_due` is -1 when nothing waits for time."""

    staged: int
    rested: int
    reaped: int
    expired: int
    next_due: int


class BodiesReply(_Reply, frozen=True):
    """Bodies of messages; empty where there is none."""

    bodies: list[str]


class _Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What never changes of an item, in the order in which it stands in `task_meta`."""

    task_type: str
    mem_cube_id: str
    level: int
    fingerprint: str
    lane: str
    task_id: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_body = msgspec.json.Decoder(Message).decode


def message_row(message: Message, keys: Keys) -> _Row:
    """A message as the server needs it: the body it only keeps, and beside it what it must know."""
    level = message.level or level_of(message.label)
    timestamp = message.timestamp
    if timestamp is not None and timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    body = msgspec.structs.replace(
        message,
        level=level,
        timestamp=timestamp,
        due=None,
        attempts=0,
        losses=0,
        redis_message_id=None,
        stream_key=None,
    )
    lane, fingerprint = keys.lane(message.lane), message.fingerprint()
    details = _Details(
        task_type=message.label,
        mem_cube_id=message.mem_cube_id,
        task_id=message.task_id,
        level=level,
        fingerprint=fingerprint,
        lane=lane,
    )
    return (
        encode_id(message.user_id),
        message.item_id,
        lane,
        _task(message),
        to_epoch_ms(message.due) if message.due else None,
        fingerprint,
        _encode(details)[1:-1].decode(),  # the server puts it between what changes and the item's number
        _encode(body).decode(),  # the server reads no MessagePack of binary type
    )


def claim_row(claim: Claim) -> _Row:
    """The identity of a claim."""
    message = claim.message
    return (encode_id(message.user_id), message.item_id, claim.claim_id)


def settlement_row(settlement: Settlement, keys: Keys) -> _Row:
    """A settlement with its follow-ups."""
    error = settlement.error
    return (
        *claim_row(settlement.claim),
        keys.lane(settlement.claim.lane),
        _task(settlement.claim.message),
        settlement.move.value,
        settlement.attempt,
        settlement.delay_ms,
        # An error may quote text that is no Unicode; it must not keep the settlement from being written.
        None if error is None else error.encode(errors="backslashreplace").decode(),
        [message_row(message, keys) for message in settlement.follow_ups],
    )


def claim_request(request: ClaimRequest, claim_id: str) -> dict[str, Any]:
    """A request for work, labels as they stand in keys."""
    return {
        "worker": request.worker,
        "claim_id": claim_id,
        "lease_ms": request.lease_ms,
        "wants": [
            (
                encode_id(label),
                want.messages,
                want.messages,
                want.quantum,
                want.ordered,
                want.min_idle_ms,
            )
            for label, want in request.wants.items()
        ],
    }


def claims_of(served: list[ServedLane], claim_id: str, lease_until: int) -> list[Claim]:
    """Build the claims, lower levels first, otherwise in the order they were served."""
    messages = [_filled(row, lane.stream_key) for lane in served for row in lane.rows]
    messages.sort(key=lambda message: message.level or 0)
    return [Claim(message, claim_id, lease_until) for message in messages]


def _filled(row: ClaimedRow, stream_key: str) -> Message:
    """Build a message with what the engine fills in for its handler."""
    message = read_body(row.body, row.submitted_at)
    fill = msgspec.structs.force_setattr  # nobody else has seen this message yet
    fill(message, "attempts", row.attempts)
    fill(message, "losses", row.losses)
    fill(message, "redis_message_id", row.entry_id)
    fill(message, "stream_key", stream_key)
    return message


def read_body(body: str, submitted_at: int) -> Message:
    """Read a message; without a time of its own it has the time of its submission."""
    message = _decode_body(body)
    if message.timestamp is None:
        msgspec.structs.force_setattr(message, "timestamp", from_epoch_ms(submitted_at))
    return message


def _task(message: Message) -> str | None:
    return None if message.task_id is None else encode_id(message.task_id)
