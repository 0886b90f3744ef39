"""The values that go into and come out of a queue: what is asked of it and what it answers."""

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
    "LevelRoom",
    "Lost",
    "Move",
    "Presence",
    "QueueLimits",
    "Renewal",
    "ScopeLimits",
    "Settled",
    "Settlement",
    "Status",
    "Submitted",
    "Want",
]


OF_MEMORY = "memory:"
"""Begins the names of memos whose step has read memory: a run after a conflict must not build on them."""


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


class ScopeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one tenant, or everyone together, may have; None means no limit."""

    depth: int | None = None
    """Messages that have not ended. A submit beyond it is refused; retries and follow-ups never are."""
    rate: float | None = None
    """Messages submitted per second, with bursts of one second's worth. A submit beyond it is refused."""
    concurrency: int | None = None
    """Messages in progress at once. What is beyond it waits."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue decides by itself, without a worker."""

    tenant: ScopeLimits = ScopeLimits()
    """For each tenant: a user's cube."""
    total: ScopeLimits = ScopeLimits(depth=1_000_000)
    """For all tenants together."""
    max_wait_ms: int = 60_000
    """A lane that waits longer than this for its turn counts as one level higher, each time."""
    refuse_unhandled: bool = False
    """Whether a label that no live worker handles is refused; else it is kept, and shown as unhandled."""

    max_losses: int = 5
    """Claims that may end without an outcome before the message is buried as `killed_worker`."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """How long the status of completed and cancelled work is kept after its end; default 7 days."""


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one submitted message."""

    item_id: str
    """The item that stands for the message: its own, or the one that has its unique key."""
    status: Literal["accepted", "duplicate", "conflict", "spooled"]
    """spooled: the backend is away; the message is on disk here, and goes to the queue when it is back."""


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has room for, of one label.

    A slot is room for one running call. One of a plain handler works through messages of several lanes one
    after the other, one of a batch handler takes them as a batch.
    """

    slots: int
    per_slot: int = 1
    """The most messages that one slot takes."""
    quantum: int = 10
    """The most messages that one lane gives in one turn."""
    ordered: bool = True
    """Whether a lane of this label waits until what was claimed from it is settled."""
    min_idle_ms: int = 0
    """The least time between the end of one run of a lane, a lost one too, and the start of the next."""
    level: int = 3
    """The level of the label."""

    @property
    def messages(self) -> int:
        """The most messages, and the most lanes, for all slots together."""
        return self.slots * self.per_slot


class LevelRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots the labels of one level may take."""

    share: int
    """Theirs by weight, if every level has enough work."""
    most: int
    """At most, if other levels have none: what is reserved for those stays free."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for work."""

    worker: str
    wants: dict[str, Want]
    """By label: only labels that the worker handles and has room for. Earlier ones are served first."""
    lease_ms: int = 30_000
    slots: int | None = None
    """Free slots in all; None: only the wants count."""
    levels: dict[int, LevelRoom] = {}
    """With `slots`: how they are shared among the levels."""
    enough: int | None = None
    """So many messages fill one of the wants: then there is surely more, and nobody need look."""
    stands: bool = False
    """Whether it stands while the worker waits, if there is nothing now: see `Queue.wait`."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A message handed to one worker, until its lease runs out."""

    message: Message
    claim_id: str
    """128 random bits, compared for equality: the fence against a worker that lost its lease."""
    lease_until: int
    handle: tuple[int, ...] = ()
    """What the backend itself wants to remember of it, to find it again quickly."""
    submitted_at: int | None = None
    """When it was accepted, in epoch milliseconds."""
    waiting_since: int | None = None
    """When it last came into the queue: accepted, come due, put back. In epoch milliseconds."""

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


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A worker says that it is there, and what it handles."""

    worker: str
    labels: tuple[str, ...]
    """None at all: it takes its leave."""
    lives_ms: int = 30_000
    """How long it counts as alive without saying so again."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal."""

    lost: list[Lost] = []
    cancelled: list[Key] = []
    """Claims that still stand, but whose message someone wants cancelled."""


class Move(StrEnum):
    """Where a settled message goes."""

    __hash__ = str.__hash__  # that of an Enum is Python code, and every message is looked up by its move

    COMPLETE = "complete"
    RETRY = "retry"
    RELEASE = "release"
    LOSE = "lose"
    """The process that ran it died: a loss, as if the lease had run out."""
    CANCEL = "cancel"
    BURY = "bury"


OF_MEMORY = "memory:"
"""How the names of memos begin that hold what a step has read from memory.

A conflict drops them: the next run must not build on what has changed since.
"""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    prepared: Any = None
    """What the store has prepared for the effects; see `EffectStore.prepare`."""
    follow_ups: tuple[Message, ...] = ()
    conflict: bool = False
    """Only with RELEASE, without an attempt and a delay: the effects met another version of an item. It is
    counted in `Message.conflicts`, and the memos of steps that read memory are dropped."""


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to one settlement."""

    state: Literal["applied", "stale", "rejected", "conflict"]
    """stale: the claim is no longer this worker's. rejected: its effects could not be applied; nothing
    of this settlement took hold and the claim still stands. conflict: its effects met another version of an
    item, or those of an earlier settlement of its lane in the same call did; nothing of this settlement
    took hold and the claim still stands."""
    error: str | None = None
    """Why; None if the conflict is that of an earlier settlement."""


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What the passing of time has moved."""

    staged: int = 0
    """Messages that came due, and lanes whose rest is over."""
    reaped: int = 0
    """Claims whose lease ran out."""
    expired: int = 0
    """Ended messages whose status was kept long enough."""
    ended: list[Message] = []
    """Messages that failed in this step: past their deadline, or lost too often."""
    next_due: int | None = None
    """When to call again, in epoch milliseconds; None when nothing waits for time."""
    more: bool = False
    """Whether the limit was reached, so that there is more to do at once."""
