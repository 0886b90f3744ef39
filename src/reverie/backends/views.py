"""The answers of the queue's views: the state of items, lanes, labels and the queue itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from reverie.backends.moves import Status
from reverie.errors import InvalidSelectionError
from reverie.message import Lane, Message

__all__ = [
    "LONGEST_PAGE",
    "MOST_KEPT",
    "Attempt",
    "ItemStatus",
    "LabelState",
    "LaneState",
    "Page",
    "QueueHealth",
    "StatusQuery",
    "check_cursor",
]

LONGEST_PAGE = 1000
"""Items on one page of statuses."""
LONGEST_CURSOR = 18
"""Digits of a cursor: more than any queue has numbers."""


class StatusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which items to read: one, those of a business task, all of a user, or dead letters of anyone."""

    user_id: str | None = None
    """None only together with `dead`."""
    item_id: str | None = None
    task_id: str | None = None
    label: str | None = None
    dead: bool = False
    """Only dead letters: failed messages, kept until someone decides about them."""
    with_message: bool = False
    """Also return the message itself, if the backend still has it."""
    limit: int = 1000
    after: str | None = None
    """The `next` of the page before."""


class ItemStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one message. Times are epoch milliseconds."""

    item_id: str
    user_id: str
    mem_cube_id: str
    task_type: str
    """The label of the message."""
    status: Status
    submitted_at: int
    task_id: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    attempts: int = 0
    losses: int = 0
    conflicts: int = 0
    message: Message | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the answer to a query, oldest first."""

    rows: list[ItemStatus]
    next: str | None = None
    """The `after` of the next page, if there is more."""


def check_cursor(name: str, cursor: str | None) -> None:
    """Refuse a text that is no `next` of a page; `name` is what the caller calls it."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= LONGEST_CURSOR):
        raise InvalidSelectionError(f"{name}={cursor[:80]!r}: give the `next` of the page before")


class LabelState(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of a label have which status. Ended ones count as long as their status is kept."""

    label: str
    waiting: int = 0
    """Waiting messages, delayed ones included."""
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    """Dead letters."""
    cancelled: int = 0
    completed_ever: int = 0
    """Messages completed since the queue exists; only grows."""
    failed_ever: int = 0
    """Messages that became dead letters since the queue exists; only grows."""
    handled: bool = False
    """Whether a live worker handles the label."""
    paused: str | None = None
    """Why the label is paused; None if it is not."""


class LaneState(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of a lane wait and run."""

    lane: Lane
    waiting: int
    in_progress: int


class QueueHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How old the queue's work is. Times are epoch milliseconds; None means that there is no such message."""

    oldest_waiting_at: int | None = None
    """When the longest wait began, among messages that could run now.

    If there are very many, only the first hundred are compared.
    """
    oldest_created_at: int | None = None
    """When the oldest of these messages was accepted. A message that was put off waits since a later time."""
    oldest_in_progress_at: int | None = None
    """When the oldest claim was made."""
    last_completed_at: int | None = None


MOST_KEPT = 20
"""How many runs of one message are remembered: the last ones."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a message, or a claim that was lost. Times are epoch milliseconds."""

    outcome: Literal["completed", "failed", "cancelled", "retry", "handed_back", "lost"]
    """`retry`: the run failed, the message waits again. `handed_back`: it waits again, no attempt is used."""
    ended_at: int
    started_at: int | None = None
    """When the message was claimed; None if it was not."""
    worker: str | None = None
    error: str | None = None
