"""The interface of every backend: the queue's moves and views, shared state, triggers, broadcast.

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
        Pruned,
        Renewal,
        Settled,
        Settlement,
        Submitted,
    )
    from reverie.backends.records import AuditEntry, Dropped, Record
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
    from reverie.message import Key, Lane, Message

__all__ = [
    "Backend",
    "Broadcast",
    "Capabilities",
    "Queue",
    "QueueViews",
    "Records",
    "SharedState",
    "SubmitsHere",
    "TakesIn",
    "TriggerStore",
]


class Queue(Protocol):
    """Every move a message can make. Its status is written in the same step as the move itself.

    Each call is one atomic step over its whole batch, may be made from any event loop, and leaves nothing
    half done if the process dies inside it. Answers come in the order of the arguments.
    """

    async def submit(self, messages: Sequence[Message]) -> list[Submitted]:
        """Accept messages: when this returns they are kept, at the backend's durability.

        A known (user_id, item_id) is not written again: the answer is `duplicate` if its fingerprint is the
        same, else `conflict`. A message that is due takes its place at the end of its lane now; one that is
        due later or depends on others takes it then. The caller has checked the messages and set their
        levels. All are kept, or none: `QueueFullError` if a limit is reached, `InvalidMessageError` if a
        message depends on an unknown item or (`refuse_unhandled`) no live worker handles its label.
        """
        ...

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """Hand waiting messages to a worker under a lease.

        Serves the ready lanes of each wanted label in turn, each at most `quantum` messages, in the order of
        the lane. A lane of an ordered label is not served again until everything claimed from it is settled
        or lost. A message whose claim was lost is claimed alone. Paused labels are not served, nor tenants
        that have as much in progress as they may. Free slots are shared among the levels; see
        `reverie.backends.fair_share`. If a claim returns messages, but fewer than a label has room for, and
        a wanted label still has ready lanes, the next `wait` for that label returns at once: a worker need
        not claim a second time to see whether there is more.

        A standing request (`stands`) is replaced by the worker's next request, whose answer also has the
        messages that were claimed for the standing one and not yet returned. A request without wants does
        only this.
        """
        ...

    async def renew(
        self, claims: Sequence[Claim], lease_ms: int, presence: Presence | None = None
    ) -> Renewal:
        """Extend the leases; answer which claims the worker has lost, and which messages to cancel.

        With `presence`, also note that the worker is alive and which labels it handles.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Record how runs ended. Only the holder of a claim may settle it; others are answered `stale`.

        A settlement takes hold whole or not at all: state, effects, follow-ups. A retried or released message
        of an ordered lane keeps its place at the front, and its lane rests for `delay_ms`; one of an
        unordered label goes to the end when its delay is over. A message whose cancellation was requested
        ends as cancelled instead of waiting again or being buried; a completed one stays completed. Messages
        that depend on a message that ends become eligible, or fail with it. If the effects of a settlement
        meet another version of an item, it is answered `conflict`, and so is every later one of its lane.
        """
        ...

    async def save_memo(self, claim: Claim, step: str, value: str) -> bool:
        """Keep the result of one step of a run until its message has ended; False if the claim is lost."""
        ...

    async def load_memos(self, claim: Claim) -> dict[str, str]:
        """The results that earlier runs of this message have kept, by step."""
        ...

    async def control(self, command: Command) -> ControlResult:
        """Carry out a person's command."""
        ...

    async def advance(self, limit: int) -> Advance:
        """Do everything that time has made due, at most `limit` of each kind.

        Stages messages that came due, wakes lanes whose rest is over, fails messages that were not started
        before their deadline, hands on claims whose lease ran out (or buries their message after
        `max_losses`), and removes statuses that were kept long enough.
        """
        ...

    async def prune(self, limit: int, after: str | None = None) -> Pruned:
        """Look through at most `limit` rows, and remove what is left over from work that has ended long ago.

        These are drained lanes. If `retention_ms` is shorter than before, also let statuses expire earlier
        that were dated by the longer time. A pass begins without `after`, and each further step has the
        `after` of the answer before it.
        """
        ...

    async def wait(self, labels: Sequence[str], until: int | None) -> list[Claim]:
        """Return when there may be work for one of `labels`, or at `until`.

        Without labels it returns when it is time to call `advance`: at `until`, or earlier if a later step
        has set up something that falls due earlier.

        If the worker's last request stands, a submit may claim for it in the same step. Then the wait returns
        these claims, and the request no longer stands. Most queues leave this to the next claim. A wait that
        is cancelled after such a step still returns the claims, instead of ending as cancelled.

        The label `CANCELLED` is for requests to cancel running messages. A wait may also return for no
        reason. `until` is in epoch milliseconds of the queue's own clock.
        """
        ...


@runtime_checkable
class TakesIn(Protocol):
    """A queue whose submits wait while it settles."""

    @property
    def takes_in(self) -> bool:
        """Whether messages were submitted here a moment ago, or another process waits to submit some."""
        ...


@runtime_checkable
class SubmitsHere(Protocol):
    """A queue that also accepts messages from threads without an event loop."""

    def submit_here(self, messages: Sequence[Message]) -> list[Submitted]:
        """Submit from a thread that may block; when this returns, the messages are durable."""
        ...


class QueueViews(Protocol):
    """Read-only views of the queue."""

    async def read(self, query: StatusQuery) -> Page:
        """The status of the items that a query selects."""
        ...

    async def labels(self) -> list[LabelState]:
        """How much work each label has, and whether a live worker handles it; by name."""
        ...

    async def workers(self) -> list[Presence]:
        """The workers that are alive, by name."""
        ...

    async def lanes(self, user_id: str) -> list[LaneState]:
        """The lanes of a user that have work, by cube and label."""
        ...

    async def due_later(self, lane: Lane, unique_key: str) -> int | None:
        """When the message that waits in a lane with this unique key is due; None: none waits for later."""
        ...

    async def health(self) -> QueueHealth:
        """How old the work is. The cost does not grow with the amount of work."""
        ...

    async def history(self, key: Key) -> list[Attempt]:
        """The last `MOST_KEPT` runs of a message, oldest first, for as long as its status is kept.

        A completion is the message's last entry. An unknown message has no history.
        """
        ...


class Broadcast(Protocol):
    """Sends news, such as events, to other processes of this queue. Delivery is not promised."""

    @property
    def is_heard(self) -> bool:
        """Whether any other process listens. Cheap; the answer may be a second old."""
        ...

    def say(self, news: bytes) -> None:
        """Send a few kilobytes to all listeners. Never blocks, never fails; news that is too much is lost."""
        ...

    def listen(self) -> AsyncGenerator[bytes]:
        """Yield the news of other processes, from the generator's first step until it is closed."""
        ...


class SharedState(Protocol):
    """The state that all workers share about a thing they call: a circuit breaker, and a limiter that learns.

    A key is any text; everyone who uses it gives the same rules. A key costs nothing while nothing is known
    about it, and is forgotten when its state means nothing any more. `backends/breaker_state.py` explains the
    answers.
    """

    async def acquire(
        self, key: str, n: int = 1, lease_ms: int = LEASE_MS, rules: Rules = DEFAULT_RULES
    ) -> Grant:
        """Ask to make `n` calls; those that are granted are made and reported under one permit.

        After `lease_ms` without a report the permit is taken back, because its worker is thought dead.
        """
        ...

    async def report(self, key: str, permit: str, signal: Signal, rules: Rules = DEFAULT_RULES) -> Grant:
        """Report how the calls of a permit ended; this gives the permit back.

        A call that was made without asking is reported with an empty permit. The answer grants nothing; its
        `retry_at` is the moment before which nothing will be granted, None when there is no such moment.
        """
        ...

    async def open_breakers(self) -> dict[str, int]:
        """Key → when a probe may try, for keys whose breaker is not closed; at most a thousand."""
        ...


class TriggerStore(Protocol):
    """The trigger types in force and the triggers of their users.

    Each call is one atomic step over its whole batch, and any number of instances may make it at once.
    `backends/triggers.py` describes the values, `backends/trigger_state.py` has the rules. The queue itself
    writes the end of a run, in the step that ends its message.
    """

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """Bring trigger types into force; the answer is the types in force then, in the order given.

        The higher version wins, and undoes what a person has enabled or disabled. With `whole`, the
        definitions have one version and are a whole configuration: types of lower versions that are not among
        them are disabled, and come last in the answer.
        """
        ...

    async def types(self) -> list[KnownType]:
        """All trigger types that are known, by name."""
        ...

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """Note activity; answer for each whether it scheduled a run. Unknown and disabled types: False."""
        ...

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """At most `limit` triggers of these types that are due and not running, the longest due first.

        `types` maps each type to the types that it depends on. A trigger is not due while, for the same user
        key, a trigger of one of these is scheduled or running and has not ended well since the first was
        fired. One call looks at a limited number of triggers that wait for others; if there may be due ones
        behind them, `next_due` is now.
        """
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """Submit the messages of due triggers and move their due times; False if another call was quicker.

        The messages are kept whatever the limits say.
        """
        ...

    async def held(self, task_type: str, user_key: str) -> Claim | None:
        """The claim that holds the message of a trigger's last run; None if nobody holds it."""
        ...

    async def states(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TriggerState]:
        """The triggers of a type after the user key `after`, by user key; or only the one of `user_key`."""
        ...

    async def statistics(self) -> list[TypeStatistics]:
        """The statistics of each type, by name."""
        ...

    async def control(self, command: TriggerCommand) -> bool:
        """Carry out a person's command; False if there is no such type or trigger, or nothing to do."""
        ...


class Records(Protocol):
    """The things that people set up, and the audit log. `backends/records.py` describes the values."""

    async def get(self, kind: str, record_id: str) -> Record | None:
        """One record; None if there is none."""
        ...

    async def page(self, kind: str, *, after: str = "", limit: int = 1000) -> list[Record]:
        """The records of a kind after the id `after`, by id."""
        ...

    async def change(self, changes: Sequence[Record | Dropped], entries: Sequence[AuditEntry] = ()) -> None:
        """Write and remove records, and add entries to the audit log: all of it, or nothing.

        `TooManyRecordsError` if a kind would have more than `MOST_RECORDS`.
        """
        ...

    async def audited(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """Entries of the audit log, newest first; `before` is the number of the last one of a page."""
        ...


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between backends."""

    applies_effects: bool
    """`settle` applies effects in its own transaction; otherwise the effect store's inbox does."""
    durability: str
    """What survives: `full`, `normal`, `always`, `everysec`, `none` …"""
    lane_prefix: str = DEFAULT_PREFIX
    """The prefix of the names of the lanes."""


class Backend(Protocol):
    """A place where messages wait: one queue and everything around it."""

    @property
    def queue(self) -> Queue:
        """The moves of messages."""
        ...

    @property
    def views(self) -> QueueViews:
        """The views of the queue."""
        ...

    @property
    def triggers(self) -> TriggerStore:
        """The triggers: rules that turn time or activity into messages."""
        ...

    @property
    def shared(self) -> SharedState:
        """The breakers and limiters that all workers share."""
        ...

    @property
    def records(self) -> Records:
        """The things that people set up, and the audit log."""
        ...

    @property
    def broadcast(self) -> Broadcast:
        """The way to send news to other processes."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    async def open(self) -> None:
        """Connect, create or upgrade what the backend needs, refuse what is unsafe. Idempotent."""
        ...

    async def close(self) -> None:
        """Close everything. Idempotent, safe when never opened."""
        ...
