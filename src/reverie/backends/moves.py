"""The values that a queue takes and returns: requests, claims, settlements and their answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from reverie.effect import Effect
from reverie.message import Key, Lane, Message

__all__ = [
    "OF_MEMORY",
    "Advance",
    "Claim",
    "ClaimRequest",
    "EndedMessage",
    "LevelRoom",
    "Lost",
    "Move",
    "Presence",
    "Pruned",
    "QueueLimits",
    "Renewal",
    "ScopeLimits",
    "Settled",
    "Settlement",
    "Status",
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
        """Whether the message has ended, so that only a person can move it."""
        return self in {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


class ScopeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one tenant, or everyone together, may have; None means no limit."""

    depth: int | None = None
    """Messages that have not ended. A submit beyond it is refused; retries and follow-ups never are."""
    rate: float | None = None
    """Messages submitted per second, with bursts of one second's worth. A submit beyond it is refused."""
    concurrency: int | None = None
    """Messages in progress at once. Further ones wait."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a queue applies by itself, without a worker."""

    tenant: ScopeLimits = ScopeLimits()
    """The limits of each tenant, a user's cube."""
    total: ScopeLimits = ScopeLimits(depth=1_000_000)
    """The limits of all tenants together."""
    max_wait_ms: int = 60_000
    """A lane that waits longer than this for its turn counts as one level higher, each time."""
    refuse_unhandled: bool = False
    """Whether messages that no live worker handles are refused; else they are kept and shown as unhandled."""

    max_labels: int = 1000
    """Labels that messages are kept of; a submit of one more is refused."""
    max_losses: int = 5
    """Claims that may end without an outcome before the message is buried as `killed_worker`."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """How long the status of completed and cancelled work is kept after its end; default 7 days."""
    dead_retention_ms: int | None = None
    """How long a dead letter is kept after its end; None: until a person deletes it."""
    max_attempts: int = 3
    """The `max_attempts` that a new message shows until a worker claims it, if its label has none."""
    label_attempts: dict[str, int] = {}
    """Label → its `max_attempts`, for labels that the settings name."""


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one submitted message."""

    item_id: str
    """The id of the message, or of the message that has its unique key."""
    status: Literal["accepted", "duplicate", "conflict", "spooled"]
    """spooled: the backend is away; the message is on disk here, and goes to the queue when it is back."""


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """How much work of one label a worker has room for.

    A slot is room for one running call. A slot of a plain handler works through messages of several lanes one
    after the other; a slot of a batch handler takes them as a batch.
    """

    slots: int
    per_slot: int = 1
    """The most messages that one slot takes."""
    quantum: int = 10
    """The most messages that one lane gives in one turn; 1 with `min_idle_ms`."""
    ordered: bool = True
    """Whether a lane of this label waits until all messages claimed from it are settled; true with
    `min_idle_ms`."""
    min_idle_ms: int = 0
    """The least time between the end of one run of a lane, also a lost one, and the start of the next. Each
    message is a run of its own."""
    level: int = 3
    """The level of the label."""
    max_attempts: int = 3
    """Runs in all before a message of this label is buried; kept with the message for people to see."""

    def __post_init__(self) -> None:
        """Let a lane with rests give one message, and no other before that has ended and the rest is over."""
        if self.min_idle_ms > 0:
            msgspec.structs.force_setattr(self, "quantum", 1)
            msgspec.structs.force_setattr(self, "ordered", True)  # noqa: FBT003  taken by position only

    @property
    def messages(self) -> int:
        """The most messages, and the most lanes, for all slots together."""
        return self.slots * self.per_slot


class LevelRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots the labels of one level may take."""

    share: int
    """Their slots by weight, if every level has enough work."""
    most: int
    """Their most slots if other levels have no work: slots reserved for those levels stay free."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request for work."""

    worker: str
    wants: dict[str, Want]
    """Label → want, for labels that the worker handles and has room for. Earlier ones are served first."""
    lease_ms: int = 30_000
    slots: int | None = None
    """Free slots in all; None means that only the wants limit the claims."""
    levels: dict[int, LevelRoom] = {}
    """With `slots`: how they are shared among the levels."""
    enough: int | None = None
    """A claim that brings this many messages has filled one of the wants: more of them may wait."""
    stands: bool = False
    """Whether the request stands while the worker waits, if there is no work now: see `Queue.wait`."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A message handed to one worker, until its lease runs out."""

    message: Message
    claim_id: str
    """128 random bits, compared for equality: the fence against a worker that lost its lease."""
    lease_until: int
    handle: tuple[int, ...] = ()
    """Numbers by which the backend finds the message again quickly."""
    submitted_at: int | None = None
    """When the message was accepted, in epoch milliseconds."""
    waiting_since: int | None = None
    """When the message last entered the queue: accepted, come due or put back. In epoch milliseconds."""
    min_idle_ms: int = 0
    """How long the lane rests after this run: that of the want for which the message was claimed."""

    @property
    def key(self) -> Key:
        """The identity of the message."""
        return self.message.key

    @property
    def lane(self) -> Lane:
        """The lane of the message."""
        return self.message.lane


class Lost(msgspec.Struct, frozen=True):
    """A claim that could not be renewed: it was handed on or ended without this worker."""

    key: Key
    claim_id: str


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's sign of life, with the labels it handles."""

    worker: str
    labels: tuple[str, ...]
    """Empty: the worker leaves."""
    lives_ms: int = 30_000
    """How long the worker counts as alive without a further sign."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal."""

    lost: list[Lost] = []
    cancelled: list[Key] = []
    """Messages whose claim is still valid, but whose cancellation was requested."""
    lease_until: int = 0
    """The new end of the leases that are not lost, by the queue's clock."""


class Move(StrEnum):
    """Where a settled message goes."""

    __hash__ = str.__hash__  # faster than the hash of an Enum, which is Python code; each message needs it

    COMPLETE = "complete"
    RETRY = "retry"
    RELEASE = "release"
    LOSE = "lose"
    """The process of the run died: a loss, as if the lease had run out."""
    CANCEL = "cancel"
    BURY = "bury"


OF_MEMORY = "memory:"
"""The prefix of memos whose step has read memory.

A conflict drops these memos, because the next run must not build on what has changed since.
"""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's report on how the run of one claim ended."""

    claim: Claim
    move: Move
    attempt: bool = True
    """Whether the run counts as an attempt."""
    delay_ms: int = 0
    """With RETRY and RELEASE: how long the lane (of an unordered label: the message) rests."""
    error: str | None = None
    effects: tuple[Effect, ...] = ()
    """Applied in the same step by a queue whose `applies_effects` is true; others must be given none."""
    prepared: Any = None
    """What the store has prepared for the effects; see `EffectStore.prepare`."""
    follow_ups: tuple[Message, ...] = ()
    """Submitted in the same step, if the message ends as completed or failed."""
    conflict: bool = False
    """Only with RELEASE, without an attempt and a delay: the effects met another version of an item. The
    conflict is counted in `Message.conflicts`, and memos of steps that read memory are dropped."""


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to one settlement."""

    state: Literal["applied", "stale", "rejected", "conflict"]
    """stale: the worker has lost the claim. rejected: the effects could not be applied. conflict: the effects
    met another version of an item, or those of an earlier settlement of the lane in the same call did. After
    rejected and conflict, nothing of the settlement has taken hold and the claim is still valid."""
    error: str | None = None
    """The reason; None if the conflict is that of an earlier settlement."""


class EndedMessage(msgspec.Struct, frozen=True):
    """A message that has failed without a settlement."""

    message: Message
    submitted_at: int
    """When the message was accepted, in epoch milliseconds."""


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of `Queue.advance` has done."""

    staged: int = 0
    """Messages that came due, and lanes whose rest is over."""
    reaped: int = 0
    """Claims whose lease ran out."""
    expired: int = 0
    """Ended messages whose status was kept long enough and is now removed."""
    ended: list[EndedMessage] = []
    """Messages that failed in this step: past their deadline, or lost too often."""
    next_due: int | None = None
    """When to call again, in epoch milliseconds; None when nothing waits for time."""
    more: bool = False
    """Whether the limit was reached, so that there is more to do at once."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of `Queue.prune` has done."""

    changed: int = 0
    """Rows that were removed, or that will be removed earlier."""
    after: str | None = None
    """The `after` of the next step; None: this step was the last one."""
