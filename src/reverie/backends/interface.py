"""What every backend does: the queue's moves, its views, what workers share, and the backend that holds them.

A backend is done when `tests/conformance` passes on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from reverie.backends.breaker_state import DEFAULT_RULES, LEASE_MS
from reverie.backends.lane_keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reverie.backends.breaker_state import Grant, Rules, Signal
    from reverie.backends.control import Command, ControlResult
    from reverie.backends.moves import (
        Advance,
        Claim,
        ClaimRequest,
        Presence,
        Renewal,
        Settled,
        Settlement,
        Submitted,
    )
    from reverie.backends.triggers import (
        Activity,
        Definition,
        Due,
        Firing,
        KnownType,
        TriggerCommand,
        TriggerState,
        TypeStatistics,
    )
    from reverie.backends.views import Attempt, LabelState, LaneState, Page, QueueHealth, StatusQuery
    from reverie.message import Key, Message

__all__ = [
    "Backend",
    "Broadcast",
    "Capabilities",
    "Queue",
    "QueueViews",
    "SharedState",
    "SubmitsHere",
    "TriggerStore",
]


class Queue(Protocol):
    """Every move a message can make. Its status is written in the same step as the move itself.

    Each call is one atomic step over its whole batch, may be made from any event loop, and leaves nothing
    half done if the process dies inside it. Answers come in the order of what was given.
    """

    async def submit(self, messages: Sequence[Message]) -> list[Submitted]:
        """Accept messages: when this returns they are kept, at the backend's durability.

        A known (user_id, item_id) is not written again: `duplicate` if its fingerprint is the same, else
        `conflict`. A message that is due takes its place at the end of its lane, one that is due later or
        depends on others takes it then. The messages were checked, and their level is set. All are kept, or
        none: `QueueFullError` if a limit is reached, `InvalidMessageError` if one depends on what nobody
        knows or (`refuse_unhandled`) nobody handles it.
        """
        ...

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """Hand waiting messages to a worker under a lease.

        Serves the ready lanes of each wanted label in turn, each at most `quantum` messages, in the order
        of the lane. A lane of an ordered label is not served again until all it gave is settled or lost.
        A message that was lost comes alone. Nothing comes of a paused label, nor of a tenant that has as
        much in progress as it may. Free slots are shared among the levels; see `reverie.backends.fair_share`.
        A claim that brings something, but less than a label has room for, lets the next `wait` for a label
        that still has ready lanes return at once: nobody needs a second claim to see that there is no more.
        A worker's next request takes the place of one that stands, and answers also what was claimed for that
        and not answered yet; one without wants does only this.
        """
        ...

    async def renew(
        self, claims: Sequence[Claim], lease_ms: int, presence: Presence | None = None
    ) -> Renewal:
        """Extend the leases; answer those that are no longer the worker's, and those to be cancelled.

        With `presence`, also note that the worker is alive and which labels it handles.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Take in how runs ended. Only the holder of a claim is heard; others are answered `stale`.

        A settlement holds whole or not at all: state, effects, follow-ups. A retried or released message
        of an ordered lane keeps its place at the front and its lane rests for `delay_ms`; one of an
        unordered label goes to the end when its delay is over. One whose cancellation was asked for ends
        as cancelled instead of waiting again or being buried; a completed one stays completed. Whoever
        depends on a message that ends becomes eligible, or fails with it. If the effects of a settlement meet
        another version of an item, it is answered `conflict`, and with it every later one of its lane.
        """
        ...

    async def save_memo(self, claim: Claim, step: str, value: str) -> bool:
        """Keep the result of one step of a run until its message has ended; False if the claim is lost."""
        ...

    async def load_memos(self, claim: Claim) -> dict[str, str]:
        """What earlier runs of this message have kept, by step."""
        ...

    async def control(self, command: Command) -> ControlResult:
        """Do what a person asks for."""
        ...

    async def advance(self, limit: int) -> Advance:
        """Do what time asks for, at most `limit` of each kind.

        Stages messages that came due, wakes lanes whose rest is over, fails what was not started before
        its deadline, hands claims on whose lease ran out (or buries their message after `max_losses`),
        removes what was kept long enough.
        """
        ...

    async def wait(self, labels: Sequence[str], until: int | None) -> list[Claim]:
        """Return when there may be work for one of `labels`, or at `until`.

        Without labels it returns when it is time to call `advance`: at `until`, or earlier if a later step
        has set up something that falls due earlier.

        If the last request for work stands, whoever submits may claim for it in the same step: then that is
        the answer, and the request stands no more. Most queues leave it to the next claim. A wait that is
        cancelled after that still answers, instead of ending as cancelled.

        The label `CANCELLED` stands for requests to cancel what runs. It may also return for no reason.
        `until` is in epoch milliseconds of the queue's own clock.
        """
        ...


@runtime_checkable
class SubmitsHere(Protocol):
    """A queue that also takes messages from threads without an event loop."""

    def submit_here(self, messages: Sequence[Message]) -> list[Submitted]:
        """Submit from a thread that may block; when it returns it is durable."""
        ...


class QueueViews(Protocol):
    """Looking at the queue without moving anything."""

    async def read(self, query: StatusQuery) -> Page:
        """How the items stand that the query names."""
        ...

    async def labels(self) -> list[LabelState]:
        """How much work each label has, and whether anyone does it; by name."""
        ...

    async def workers(self) -> list[Presence]:
        """The workers that are alive, by name."""
        ...

    async def lanes(self, user_id: str) -> list[LaneState]:
        """The lanes of a user that have work, by cube and label."""
        ...

    async def health(self) -> QueueHealth:
        """How old the work is. It costs the same however much there is."""
        ...

    async def history(self, key: Key) -> list[Attempt]:
        """The runs of a message so far, oldest first: as many as its status is kept, the last `MOST_KEPT`.

        A completion is the message's last entry. What is unknown has no history.
        """
        ...


class Broadcast(Protocol):
    """Telling other processes of this queue something that nobody must rely on, such as events."""

    @property
    def is_heard(self) -> bool:
        """Whether anyone outside of this process listens. Cheap; may lag by a second."""
        ...

    def say(self, news: bytes) -> None:
        """Send a few kilobytes to all who listen. Never blocks, never fails; what is too much is lost."""
        ...

    def listen(self) -> AsyncGenerator[bytes]:
        """What others say, from the first step of the generator on. Closing it ends the listening."""
        ...


class SharedState(Protocol):
    """What all workers share about a thing they call: a circuit breaker, and a limiter that learns.

    A key is any text; all who use it give the same rules. A key about which nothing is known costs nothing,
    and one that means nothing any more is forgotten. `backends/breaker_state.py` says what the
    answers mean.
    """

    async def acquire(
        self, key: str, n: int = 1, lease_ms: int = LEASE_MS, rules: Rules = DEFAULT_RULES
    ) -> Grant:
        """Ask to make `n` calls; as many as were granted may be made, and are reported under one permit.

        After `lease_ms` without a report the permit is taken back: its worker is thought dead.
        """
        ...

    async def report(self, key: str, permit: str, signal: Signal, rules: Rules = DEFAULT_RULES) -> Grant:
        """Say what became of the calls of a permit, which is thereby given back.

        A call that was made without asking is reported with an empty permit. The answer grants nothing; its
        `retry_at` is the moment before which nothing will be granted, None when there is no such moment.
        """
        ...

    async def open_breakers(self) -> dict[str, int]:
        """The keys whose breaker is not closed, and from when on a probe may try; a thousand at most."""
        ...


class TriggerStore(Protocol):
    """The trigger types in force and the triggers of their users.

    Each call is one atomic step over its whole batch, and any number of instances may make it at once.
    `backends/triggers.py` describes the values, `backends/trigger_state.py` has the rules. The queue itself
    writes the end of a run, in the step that ends its message.
    """

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """Bring trigger types into force; the answer is what is in force then, in the order given.

        The higher version wins, and forgets what a person has switched. With `whole`, the definitions have
        one version and are a whole configuration: types of lower versions that are not among them are
        disabled, and come last in the answer.
        """
        ...

    async def types(self) -> list[KnownType]:
        """All trigger types that are known, by name."""
        ...

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """Note activity; for each, whether that has scheduled a run. Unknown and disabled types: False."""
        ...

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """At most `limit` triggers of these types that are due and not running, the longest due first.

        `types` maps each type to those that it depends on. A trigger is not due while a trigger of one of
        these is scheduled or running for the same user key and has not ended well since the first was fired.
        """
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """Submit the messages of due triggers and move their due times; False where another was quicker.

        The messages are kept whatever the limits say.
        """
        ...

    async def states(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TriggerState]:
        """The triggers of a type by user key, those after `after`; or only the one of `user_key`."""
        ...

    async def statistics(self) -> list[TypeStatistics]:
        """The statistics of each type, by name."""
        ...

    async def control(self, command: TriggerCommand) -> bool:
        """Do what a person asks for; False if there is no such type or trigger, or nothing to do."""
        ...


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between backends."""

    applies_effects: bool
    """`settle` applies effects in its own transaction; otherwise the effect store's inbox does."""
    durability: str
    """What survives: `full`, `normal`, `always`, `everysec`, `none` …"""
    lane_prefix: str = DEFAULT_PREFIX
    """What the names of its lanes begin with."""


class Backend(Protocol):
    """One place where messages wait."""

    @property
    def queue(self) -> Queue:
        """The moves."""
        ...

    @property
    def views(self) -> QueueViews:
        """The views."""
        ...

    @property
    def triggers(self) -> TriggerStore:
        """Rules that turn time or activity into messages."""
        ...

    @property
    def shared(self) -> SharedState:
        """What all workers share."""
        ...

    @property
    def broadcast(self) -> Broadcast:
        """What other processes hear at once."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    async def open(self) -> None:
        """Connect, create or upgrade what is missing, refuse what is unsafe. Idempotent."""
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent, safe when never opened."""
        ...
