"""Messages as rows for the server's functions: the fields that they read, and a body that they only keep."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.redis.keys import encode_id
from reverie.base.clock import to_epoch_ms
from reverie.message import Message, level_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reverie.backends.redis.keys import Keys

__all__ = ["is_plain", "message_row", "submit_request"]

_Row = tuple[Any, ...]


class _Details(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The fields of an item that never change, in their order in `task_meta`."""

    task_type: str
    mem_cube_id: str
    level: int
    fingerprint: str
    lane: str
    task_id: str | None = None
    deadline: int | None = None
    depends_on: tuple[str, ...] = ()
    if_dependency_fails: str = "fail"
    unique: str | None = None
    unique_window_ms: int = 0
    user_key: str | None = None


_encode = msgspec.json.Encoder().encode


def submit_request(messages: Sequence[Message], keys: Keys) -> dict[str, Any]:
    """Build the request of a submit, in the form that the server reads fastest.

    If no message has a due time or a rule, `plain` is one flat list of the fields of all messages; otherwise
    `messages` has a row for each. `label` is the label of all messages, if they have the same one; else
    `labels` are all their labels.
    """
    plain = all(map(is_plain, messages))
    labels = [encode_id(label) for label in sorted({message.label for message in messages})]
    return {
        "plain": [part for message in messages for part in _plain_row(message, keys)] if plain else None,
        "messages": [] if plain else [message_row(message, keys) for message in messages],
        "label": labels[0] if len(labels) == 1 else None,
        "labels": labels if len(labels) > 1 else None,
    }


def _plain_row(message: Message, keys: Keys) -> _Row:
    """The fields of a plain message; its task is empty if it has none."""
    row, task_id = _row(message, _details(message, keys)), message.task_id
    return (*row, "" if task_id is None else encode_id(task_id))


def message_row(message: Message, keys: Keys) -> _Row:
    """Build the row of a message: the fields that the server reads, and the body that it only keeps.

    Fields that few messages have come last, and are left out if they are empty.
    """
    details = _details(message, keys)
    if _has_rules(message):
        details = _with_rules(details, message)
    row, task_id, due = _row(message, details), message.task_id, message.due
    if details.unique is None and not details.depends_on and message.user_key is None:
        if task_id is None and due is None:
            return row
        rules: _Row = ()
    else:
        rules = (details.unique, message.unique_policy, details.depends_on or None, message.user_key)
    task = None if task_id is None else encode_id(task_id)
    return (*row, task, None if due is None else to_epoch_ms(due), *rules)


def _details(message: Message, keys: Keys) -> _Details:
    level = message.level or level_of(message.label)
    lane, fingerprint = keys.lane(message.lane), message.fingerprint()
    return _Details(message.label, message.mem_cube_id, level, fingerprint, lane, message.task_id)


def _row(message: Message, details: _Details) -> _Row:
    lane = details.lane
    return (
        lane[: lane.index(":")],
        message.item_id,
        lane,
        _encode(details)[1:-1].decode(),  # the server adds the changing fields and the item's number
        _encode(_body(message, details.level)).decode(),  # as text: the server reads no binary MessagePack
    )


def is_plain(message: Message) -> bool:
    """Whether a message takes its place at once, and has no rules."""
    return message.due is None and not _has_rules(message)


def _has_rules(message: Message) -> bool:
    """Whether a message has a deadline, unique key or dependency, or is the run of a trigger."""
    if message.user_key is not None or message.deadline is not None:
        return True
    return message.unique_key is not None or bool(message.depends_on)


def _with_rules(details: _Details, message: Message) -> _Details:
    return msgspec.structs.replace(
        details,
        deadline=to_epoch_ms(message.deadline) if message.deadline else None,
        depends_on=tuple(dict.fromkeys(message.depends_on)),
        if_dependency_fails=message.if_dependency_fails,
        unique=None if message.unique_key is None else encode_id(message.unique_key),
        unique_window_ms=round(message.unique_window_s * 1000),
        user_key=message.user_key,
    )


def _body(message: Message, level: int) -> Message:
    """The message as its handler will see it, without the fields that the engine fills in."""
    changed = message.attempts or message.losses or message.conflicts or message.requeues
    made = message.timestamp
    timed = (made is not None and made.tzinfo is None) or message.deadline or message.due
    placed = message.redis_message_id or message.stream_key
    if message.level == level and not (changed or timed or placed):
        return message
    return msgspec.structs.replace(
        message,
        level=level,
        timestamp=_in_utc(message.timestamp),
        deadline=_in_utc(message.deadline),
        due=None,
        attempts=0,
        losses=0,
        conflicts=0,
        requeues=0,
        redis_message_id=None,
        stream_key=None,
    )


def _in_utc(moment: datetime | None) -> datetime | None:
    """Take a moment without a time zone as UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
