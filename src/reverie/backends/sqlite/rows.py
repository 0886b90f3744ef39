"""Converting rows of `pending_messages` to messages, and values to JSON."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from reverie.backends.moves import Status
from reverie.backends.states import STORED_AS
from reverie.base.clock import from_epoch_ms
from reverie.message import Message, UniquePolicy
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decode_json", "extra_of", "load_statements", "message_from_row", "status_of", "to_json"]

MESSAGE_COLUMNS = (
    "user_id, id, message_type, memory_session_id, project_id, payload, level, retry_count, losses, "
    "conflicts, task_id, trace_id, user_name, info, timestamp_epoch, requeues, extra"
)
"""The columns that `message_from_row` takes, in this order; statements name them `message_columns`."""

STATUS = {stored: status for status, stored in STORED_AS.items() if status is not Status.CANCELLED}


class _Rare(msgspec.Struct, omit_defaults=True):
    """Fields that most messages leave out; they are stored together, as JSON."""

    deadline: datetime | None = None
    depends_on: tuple[str, ...] = ()
    if_dependency_fails: Literal["fail", "run"] = "fail"
    unique_key: str | None = None
    unique_window_s: float = 0
    unique_policy: UniquePolicy = "skip"
    user_key: str | None = None


decode_json = msgspec.json.decode
_decode_rare = msgspec.json.Decoder(_Rare).decode


def to_json(value: Any) -> str:
    """A value as JSON text: statements take a whole batch as one JSON parameter."""
    return msgspec.json.encode(value).decode()


def load_statements(filename: str) -> dict[str, str]:
    """Read the statements of one file of this backend."""
    statements = load_queries(__package__ or "", filename)
    return {name: text.replace("message_columns", MESSAGE_COLUMNS) for name, text in statements.items()}


def status_of(stored: str, error: str | None) -> Status:
    """The engine's status of a message, from the status and error of its row."""
    return Status.CANCELLED if stored == "failed" and error == "cancelled" else STATUS[stored]


def extra_of(message: Message) -> str | None:
    """The rare fields of a message as JSON; None if the message has none of them."""
    common = message.unique_key is None and not message.depends_on and message.deadline is None
    if common and message.user_key is None:
        return None
    rare = _Rare(*(getattr(message, name) for name in _Rare.__struct_fields__))
    return msgspec.json.encode(rare).decode()


def message_from_row(row: Sequence[Any]) -> Message:
    """Build a message from the columns of `MESSAGE_COLUMNS`."""
    (
        user_id, item_id, label, session_id, cube, payload, level, attempts, losses,
        conflicts, task_id, trace_id, user_name, info, timestamp, requeues, extra,
    ) = row  # fmt: skip
    message = Message(
        user_id=user_id,
        item_id=item_id,
        label=label,
        session_id=session_id,
        mem_cube_id=cube,
        content=payload,
        level=level,
        attempts=attempts,
        losses=losses,
        conflicts=conflicts,
        task_id=task_id,
        trace_id=trace_id,
        user_name=user_name,
        info=None if info is None else msgspec.json.decode(info),
        timestamp=from_epoch_ms(timestamp),
        requeues=requeues,
    )
    if extra is None:
        return message
    return msgspec.structs.replace(message, **msgspec.structs.asdict(_decode_rare(extra)))
