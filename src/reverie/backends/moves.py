"""The values that go into and come out of a queue: what is asked of it and what it answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from reverie.effect import Effect
from reverie.message import Key, Lane, Message

__all__ = [
    "Accepted",
    "Advance",
    "Claim",
    "ClaimRequest",
    "ItemStatus",
    "Lost",
    "Move",
    "Page",
    "QueueLimits",
    "Settled",
    "Settlement",
    "Status",
    "StatusQuery",
    "Submitted",
    "Want",
]


class Status(StrEnum):
    """How a message stands. The last three are ends."""

    WAITING = "waiting"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it unless a person asks."""
        return self in {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue decides by itself, without a worker."""

    max_losses: int = 5
    """Claims that may end without an outcome before the message is buried as `killed_worker`."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """How long the status of completed and cancelled work is kept after its end; default 7 days."""


class Submitted(msgspec.Struct, frozen=True):
    """The answer to one submitted message."""

    item_id: str
    status: Literal["accepted", "duplicate", "conflict"]


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a submit."""

    answers: list[Submitted]
    """One for each message, in their order."""
    claims: list[Claim] = []
    """What was claimed in the same step, if that was asked for; not only of these messages."""


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has room for, of one label.

    A slot of a plain handler works through a prefix of one lane; a slot of a batch handler takes a batch
    that may span lanes. So both are said: how many lanes, and how many messages in all.
    """

    lanes: int
    messages: int
    quantum: int = 10
    """The most messages that one lane gives in one turn."""
    ordered: bool = True
    """Whether a lane of this label waits until what was claimed from it is settled."""
    min_idle_ms: int = 0
    """The least time between the end of one run of a lane, a lost one too, and the start of the next."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for work."""

    worker: str
    wants: dict[str, Want]
    """By label: only labels that the worker handles and has room for."""
    lease_ms: int = 30_000


class Claim(msgspec.Struct, frozen=True):
    """A message handed to one worker, until its lease runs out."""

    message: Message
    claim_id: str
    """128 random bits, compared for equality: the fence against a worker that lost its lease."""
    lease_until: int
    handle: tuple[int, ...] = ()
    """What the backend itself wants to remember of it, to find it again quickly."""

    @property
    def key(self) -> Key:
        """The identity of its message."""
        return self.message.key

    @property
    def lane(self) -> Lane:
        """The lane of its message."""
        return self.message.lane


class Lost(msgspec.Struct, frozen=True):
    """A claim that could not be renewed: it was handed on or ended without this worker."""

    key: Key
    claim_id: str


class Move(StrEnum):
    """Where a settled message goes."""

    COMPLETE = "complete"
    RETRY = "retry"
    RELEASE = "release"
    CANCEL = "cancel"
    BURY = "bury"


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports of one claim."""

    claim: Claim
    move: Move
    attempt: bool = True
    """Whether the run counts as an attempt."""
    delay_ms: int = 0
    """With RETRY and RELEASE: how long its lane (an unordered label: the message) rests."""
    error: str | None = None
    effects: tuple[Effect, ...] = ()
    """Applied in the same step by a queue whose `applies_effects` is true; others must be given none."""
    follow_ups: tuple[Message, ...] = ()


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one settlement."""

    key: Key
    state: Literal["applied", "stale", "rejected"]
    """stale: the claim is no longer this worker's. rejected: its effects could not be applied; nothing
    of this settlement took hold and the claim still stands."""
    error: str | None = None


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What the passing of time has moved."""

    staged: int = 0
    """Messages that came due, and lanes whose rest is over."""
    reaped: int = 0
    """Claims whose lease ran out."""
    expired: int = 0
    """Ended messages whose status was kept long enough."""
    next_due: int | None = None
    """When to call again, in epoch milliseconds; None when nothing waits for time."""
    more: bool = False
    """Whether the limit was reached, so that there is more to do at once."""


class StatusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which items to look at: one, those of a business task, or all of a user."""

    user_id: str
    item_id: str | None = None
    task_id: str | None = None
    with_message: bool = False
    """Also bring the message itself, where the backend still has it."""
    limit: int = 1000


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
    message: Message | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query, oldest first."""

    rows: list[ItemStatus]
    truncated: bool = False
    """Whether there were more than the limit."""
