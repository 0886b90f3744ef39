"""Requests to the functions on the server and their replies, as MessagePack arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from reverie.backends.control import CancelItems, DeleteItems, PauseLabel, RequeueItems
from reverie.backends.limits import check_depth, next_arrival, too_many_labels, unhandled, unknown_parent
from reverie.backends.moves import Claim
from reverie.backends.redis.keys import decode_id, encode_id
from reverie.backends.redis.rows import message_row
from reverie.base.clock import from_epoch_ms
from reverie.message import Key, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.backends.control import Command
    from reverie.backends.moves import ClaimRequest, Presence, QueueLimits, Settlement
    from reverie.backends.redis.keys import Keys

__all__ = [
    "AdvanceReply",
    "BodiesReply",
    "ClaimReply",
    "ControlReply",
    "DeadReply",
    "Hand",
    "HealthReply",
    "HistoryReply",
    "LabelsReply",
    "LanesReply",
    "MemoReply",
    "PruneReply",
    "RenewReply",
    "SettleReply",
    "SubmitReply",
    "TimeReply",
    "claim_request",
    "claim_row",
    "claims_of",
    "completions",
    "control_request",
    "keys_of",
    "limits_row",
    "presence_row",
    "raise_refusal",
    "read_message",
    "settlement_row",
]

_Row = tuple[Any, ...]


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    """Every answer begins with the time on the queue's clock, in epoch milliseconds."""

    now: int


class MessageRow(msgspec.Struct, array_like=True, frozen=True):
    """One message: its body as it was submitted, and what has happened to it since."""

    body: str
    entry_id: str
    submitted_at: int
    waiting_since: int | None = None
    """None: since it was submitted."""
    attempts: int = 0
    losses: int = 0
    requeues: int = 0
    conflicts: int = 0


class ServedLane(msgspec.Struct, array_like=True, frozen=True):
    """The messages that one lane gave."""

    stream_key: str
    rows: list[MessageRow]
    min_idle_ms: int = 0
    """How long the lane rests after this run; functions of an older Reverie do not say."""


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Why a whole submit was refused; `raise_refusal` knows what the numbers mean."""

    kind: Literal["unhandled", "unknown", "labels", "depth", "rate"]
    index: int
    """The index of the message that is the reason; -1: all of them."""
    number: float
    count: int
    text: str


class TimeReply(_Reply, frozen=True):
    """The answer of a function that has nothing else to say."""


class Hand(_Reply, frozen=True):
    """The messages that a submit has claimed for a standing request."""

    served: list[ServedLane]
    claim_id: str
    lease_until: int


class ClaimReply(_Reply, frozen=True):
    """The answer to a claim."""

    served: list[ServedLane]
    passed: list[int]
    """Indexes of wants that got nothing although there is work: the worker has no room for it."""
    wrong: str = ""
    """The error of a lane that could not be served, because one of its keys has a wrong type."""
    hand: Hand | None = None
    """The messages that were claimed for an earlier standing request and are not read yet."""


class Other(msgspec.Struct, array_like=True, frozen=True):
    """A message that was not accepted, by its index."""

    index: int
    word: Literal["duplicate", "conflict"]
    item_id: str | None = None
    """The item that has its unique key, if that is the reason."""


class SubmitReply(_Reply, frozen=True):
    """The answer to a submit."""

    others: list[Other]
    """The messages that were not accepted."""
    refusal: Refusal | None = None


class RenewReply(_Reply, frozen=True):
    """The answer to a renewal: indexes of the claims that are lost, and of those to be cancelled."""

    lost: list[int]
    cancelled: list[int]


class MemoReply(_Reply, frozen=True):
    """The answer to a memo: whether it was kept."""

    kept: bool


class SettleReply(_Reply, frozen=True):
    """The answer to settlements."""

    states: list[Literal["applied", "stale", "rejected"]]
    """The new state of each row."""
    unknown: list[tuple[int, str]]
    """Index and parent of rows whose follow-ups depend on an unknown item."""
    stale: list[int]
    """Indexes, over all groups, of completions whose claim is lost."""


class ControlReply(_Reply, frozen=True):
    """The items that a command has changed or asked to stop, as encoded user and item id."""

    changed: list[tuple[str, str]]
    requested: list[tuple[str, str]]
    more: bool


class AdvanceReply(_Reply, frozen=True):
    """The answer to `advance`; `next_due` is -1 when nothing waits for time."""

    counts: tuple[int, int, int, int, int]
    """Overdue, staged, rested, reaped, expired."""
    ended: list[MessageRow]
    next_due: int


class PruneReply(_Reply, frozen=True):
    """The answer to `prune`: how many statuses will expire earlier, and the moment that was reached."""

    changed: int
    after: str | None = None


class BodiesReply(_Reply, frozen=True):
    """Bodies of messages; empty for a message that has none."""

    bodies: list[str]


class DeadReply(_Reply, frozen=True):
    """Dead letters: encoded user, item id, JSON; and how many were looked at."""

    rows: list[tuple[str, str, str]]
    looked_at: int


class LabelsReply(_Reply, frozen=True):
    """The contents of three hashes: names and texts in turn."""

    labels: list[str]
    paused: list[str]
    workers: list[str]


class LanesReply(_Reply, frozen=True):
    """The lanes of a user: name without the user, how many messages wait, how many run."""

    lanes: list[tuple[str, int, int]]


class DueReply(_Reply, frozen=True):
    """When a message is due; -1 if none waits for later."""

    due: int


class HealthReply(_Reply, frozen=True):
    """Four moments; -1 for one that there is not."""

    oldest_waiting_at: int
    oldest_created_at: int
    oldest_in_progress_at: int
    last_completed_at: int


class HistoryReply(_Reply, frozen=True):
    """An item, empty if it is unknown; and its runs that are remembered. All as JSON."""

    item: str
    runs: list[str]


_decode_body = msgspec.json.Decoder(Message).decode


def limits_row(limits: QueueLimits) -> dict[str, Any]:
    """The limits of the queue as the functions read them; a limit that is not set is left out."""
    row = {
        "max_losses": limits.max_losses,
        "max_wait_ms": limits.max_wait_ms,
        "retention_ms": limits.retention_ms,
        "dead_retention_ms": limits.dead_retention_ms,
        "refuse_unhandled": limits.refuse_unhandled or None,
        "labels": limits.max_labels,
        "total_depth": limits.total.depth,
        "total_rate": limits.total.rate,
        "total_running": limits.total.concurrency,
        "tenant_depth": limits.tenant.depth,
        "tenant_rate": limits.tenant.rate,
        "tenant_running": limits.tenant.concurrency,
    }
    return {name: value for name, value in row.items() if value is not None}


def claim_row(claim: Claim) -> _Row:
    """The identity of a claim."""
    message = claim.message
    return (encode_id(message.user_id), message.item_id, claim.claim_id)


MOST_TOGETHER = 400
"""The most completions in one group: the server writes a group with one command."""


def completions(settlements: Sequence[Settlement], keys: Keys) -> list[tuple[str, str, list[str]]]:
    """Group completions without follow-ups by lane and claim, in their order."""
    groups: list[tuple[str, str, list[str]]] = []
    item_ids: list[str] = []
    stream_key = claim_id = None
    for settlement in settlements:
        claim = settlement.claim
        message = claim.message
        if (
            message.stream_key != stream_key
            or claim.claim_id != claim_id
            or len(item_ids) == MOST_TOGETHER
            or message.item_id in item_ids
        ):
            stream_key, claim_id, item_ids = message.stream_key, claim.claim_id, []
            groups.append((keys.lane(message.lane), claim_id, item_ids))
        item_ids.append(message.item_id)
    return groups


def settlement_row(settlement: Settlement, keys: Keys) -> _Row:
    """The row of a settlement with its follow-ups."""
    error = settlement.error
    return (
        *claim_row(settlement.claim),
        keys.lane(settlement.claim.lane),
        settlement.move.value,
        settlement.attempt,
        settlement.delay_ms,
        # An error may quote text that is no Unicode; it must not keep the settlement from being written.
        None if error is None else error.encode(errors="backslashreplace").decode(),
        [message_row(message, keys) for message in settlement.follow_ups],
        settlement.conflict,
    )


def presence_row(presence: Presence) -> _Row:
    """A worker and the labels it handles, encoded as in keys."""
    return presence.worker, [encode_id(label) for label in presence.labels], presence.lives_ms


def claim_request(request: ClaimRequest, claim_id: str) -> dict[str, Any]:
    """A request for work, its labels encoded as in keys."""
    return {
        "worker": request.worker,
        "claim_id": claim_id,
        "lease_ms": request.lease_ms,
        "stands": request.stands,
        "slots": request.slots,
        "levels": [(level, room.share, room.most) for level, room in request.levels.items()],
        "wants": [
            (
                encode_id(label),
                want.slots,
                want.per_slot,
                want.quantum,
                want.ordered,
                want.min_idle_ms,
                want.level,
            )
            for label, want in request.wants.items()
        ],
    }


def control_request(command: Command) -> dict[str, Any]:
    """A command. Its selection is encoded as in keys, except the ids of items and tasks."""
    request: dict[str, Any] = {"command": type(command).__struct_config__.tag}
    if isinstance(command, CancelItems | RequeueItems | DeleteItems):
        which = command.which
        request["which"] = {
            "user": _encoded(which.user_id),
            "item_ids": which.item_ids,
            "task": which.task_id,
            "cube": _encoded(which.mem_cube_id),
            "label": _encoded(which.label),
            "limit": which.limit,
        }
        return request
    request["label"] = encode_id(command.label)
    if isinstance(command, PauseLabel):
        request["reason"] = command.reason
    return request


def _encoded(value: str | None) -> str | None:
    return None if value is None else encode_id(value)


def keys_of(rows: Iterable[tuple[str, str]]) -> list[Key]:
    """The identities of items that a reply names."""
    return [Key(decode_id(user), item_id) for user, item_id in rows]


def raise_refusal(refusal: Refusal, limits: QueueLimits, messages: Sequence[Message], now: int) -> NoReturn:
    """Raise the error of a refused submit, in the same words as on every backend."""
    message = messages[refusal.index] if refusal.index >= 0 else None
    tenant = f"{message.user_id}/{message.mem_cube_id}" if message else None
    scope = limits.tenant if tenant else limits.total
    if refusal.kind == "unknown":
        raise unknown_parent(refusal.text)
    if refusal.kind == "unhandled":
        raise unhandled(message.label if message else "")
    if refusal.kind == "labels":
        raise too_many_labels(decode_id(refusal.text), limits)
    if refusal.kind == "depth":
        check_depth(scope, int(refusal.number), tenant)
    else:
        next_arrival(scope, refusal.number, now, refusal.count, tenant)
    raise AssertionError(refusal)  # the function on the server calculates differently


def claims_of(served: list[ServedLane], claim_id: str, lease_until: int) -> list[Claim]:
    """Build the claims, lower levels first, otherwise in the order they were served."""
    claims = [
        Claim(
            _filled(row, lane.stream_key),
            claim_id,
            lease_until,
            submitted_at=row.submitted_at,
            waiting_since=row.submitted_at if row.waiting_since is None else row.waiting_since,
            min_idle_ms=lane.min_idle_ms,
        )
        for lane in served
        for row in lane.rows
    ]
    claims.sort(key=lambda claim: claim.message.level or 0)
    return claims


def _filled(row: MessageRow, stream_key: str) -> Message:
    """Build a message with what the engine fills in for its handler."""
    message = read_message(row)
    fill = msgspec.structs.force_setattr  # nobody else has seen this message yet
    fill(message, "redis_message_id", row.entry_id)
    fill(message, "stream_key", stream_key)
    return message


def read_message(row: MessageRow) -> Message:
    """Read a message and fill in what has happened to it.

    A message without a timestamp gets the time of its submission. A requeued message has no deadline.
    """
    message = _decode_body(row.body)
    fill = msgspec.structs.force_setattr
    fill(message, "attempts", row.attempts)
    fill(message, "losses", row.losses)
    if message.timestamp is None or '"timestamp":' not in row.body:
        fill(message, "timestamp", from_epoch_ms(row.submitted_at))
    if row.conflicts:
        fill(message, "conflicts", row.conflicts)
    if row.requeues:
        fill(message, "requeues", row.requeues)
        fill(message, "deadline", None)
    return message
