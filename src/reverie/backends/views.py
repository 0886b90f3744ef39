"""What the queue's views answer: how items, lanes, labels and the queue itself stand."""

from __future__ import annotations

from typing import Literal

import msgspec

from reverie.backends.moves import Status
from reverie.message import Lane, Message

__all__ = [
    "MOST_KEPT",
    "Attempt",
    "ItemStatus",
    "LabelState",
    "LaneState",
    "Page",
    "QueueHealth",
    "StatusQuery",
]


class StatusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which items to look at: one, those of a business task, all of a user, or dead letters of anyone."""

    user_id: str | None = None
    """None only together with `dead`."""
    item_id: str | None = None
    task_id: str | None = None
    label: str | None = None
    dead: bool = False
    """Only dead letters: what has failed and is kept until someone decides about it."""
    with_message: bool = False
    """Also bring the message itself, where the backend still has it."""
    limit: int = 1000
    after: str | None = None
    """Go on behind the page whose `next` this was."""


class ItemStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one message stands. Times are epoch milliseconds."""

    item_id: str
    user_id: str
    mem_cube_id: str
    task_type: str
    """Its label."""
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
    """The answer to a query, oldest first."""

    rows: list[ItemStatus]
    next: str | None = None
    """Where to go on, if there were more than the limit."""


class LabelState(msgspec.Struct, frozen=True, kw_only=True):
    """How the work of one label stands. What has ended counts as long as its status is kept."""

    label: str
    waiting: int = 0
    """Delayed ones included."""
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    """Dead letters."""
    cancelled: int = 0
    completed_ever: int = 0
    """Completed since the queue exists; only grows."""
    failed_ever: int = 0
    """The same of those that became dead letters."""
    handled: bool = False
    """Whether a live worker handles it."""
    paused: str | None = None
    """Why nothing of it is claimed, if someone has paused it."""


class LaneState(msgspec.Struct, frozen=True, kw_only=True):
    """How the work of one lane stands."""

    lane: Lane
    waiting: int
    in_progress: int


class QueueHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How old the queue's work is. Times are epoch milliseconds; None: there is no such message."""

    oldest_waiting_at: int | None = None
    """Since when the message waits that has waited longest of those that could run now.

    Where there are very many, only the first hundred are compared.
    """
    oldest_in_progress_at: int | None = None
    """Since when the longest claim of all is held."""
    last_completed_at: int | None = None


MOST_KEPT = 20
"""How many runs of one message are remembered, the last ones."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a message, or a claim that was lost. Times are epoch milliseconds."""

    outcome: Literal["completed", "failed", "cancelled", "retry", "handed_back", "lost"]
    """`retry`: it failed and came again. `handed_back`: it came again without using up an attempt."""
    ended_at: int
    started_at: int | None = None
    """When it was claimed; None if nobody had."""
    worker: str | None = None
    error: str | None = None
