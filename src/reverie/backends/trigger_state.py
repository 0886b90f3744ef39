"""The rules of triggers and their types: pure functions from one plain state to the next.

A trigger is one trigger type for one user key. At most one run of it has not ended, and it has at most one
next due time. Each function takes the state of one trigger (None: there is none yet) and answers the next:

- `touch`: activity schedules a run `interval_ms` later, unless one is scheduled. Activity during a run is
  noted, and schedules one more run, `interval_ms` after the end of this one.
- `fire`: the due time has come. The trigger is running from now on, and its next due time is known.
- `move_run`: the message of its run has ended, or waits for another attempt.
- `cancel`, `run_now`: a person forgets the next run, or wants one now.
- `schedule_first`: a type that belongs to no user is due for the first time, or by another schedule.

The memory store and the SQLite store read states, call these functions, and write what comes of them, in one
atomic step with what happens to the queue. On Redis, `redis/lua/triggers.lua` and the files that it names
follow the same rules in their own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from reverie.backends.moves import Status
from reverie.backends.triggers import (
    GLOBAL_KEY,
    Definition,
    DueTrigger,
    KnownType,
    TriggerState,
    TriggerStatus,
    TypeStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.backends.triggers import Activity, Firing
    from reverie.message import Message

__all__ = [
    "LEAST_KEPT_MS",
    "OPEN",
    "Moved",
    "Run",
    "Trigger",
    "TypeState",
    "added",
    "cancel",
    "due_of",
    "fire",
    "is_blocked",
    "is_forgotten",
    "is_news",
    "known_run",
    "known_type",
    "left_out",
    "move_run",
    "put_type",
    "run_now",
    "schedule_first",
    "state_of",
    "touch",
]

LEAST_KEPT_MS = 86_400_000
"""The time at which a run last ended well is remembered for at least a day, apart from the trigger itself."""
KNOWN = "its message was known already"
OPEN: frozenset[TriggerStatus] = frozenset({"pending", "running"})
"""The statuses of triggers that others may have to wait for."""


class Trigger(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of one trigger. The SQLite store has a column for each field, in this order."""

    task_type: str
    user_key: str
    user_id: str | None
    """Whose activity was last, as are the four that follow; None if the trigger belongs to no user."""
    device_id: str | None
    agent_id: str | None
    interval_ms: int | None
    ttl_ms: int | None
    created_at: int
    """When the present run, or the last one, was first scheduled."""
    scheduled_at: int | None = None
    """The next due time."""
    anchor: int | None = None
    """The next due time by the schedule, without jitter."""
    last_activity: int | None = None
    touched: bool = False
    """Whether there was activity, or a person asked for a run, since the present run was fired."""
    item_user_id: str | None = None
    item_id: str | None = None
    """With `item_user_id`: the message of the present run, or of the last one."""
    fired_at: int | None = None
    """When the present run was fired; None if the trigger is not running."""
    ended: TriggerStatus | None = None
    """How the last run ended."""
    expires_at: int | None = None
    """When `last_exec` is forgotten, too (see `is_forgotten`); None while it is scheduled or running."""
    retry_count: int = 0
    last_exec: int | None = None
    """When a run last ended well."""
    previous_run: int | None = None
    """When the present run, or the last one, was fired."""

    @property
    def status(self) -> TriggerStatus:
        """The seed's word for how the trigger is."""
        if self.fired_at is not None:
            return "running"
        return "pending" if self.scheduled_at is not None else self.ended or "pending"


class Moved(msgspec.Struct, frozen=True):
    """What comes of one move of a trigger."""

    trigger: Trigger | None
    """The next state; None: there is no such trigger, or it is to be forgotten."""
    answer: bool = True
    """What the caller is told."""
    counted: TypeStatistics | None = None
    """What the move adds to the statistics of the type. `pending` and `running` are not among it."""


class Run(NamedTuple):
    """The message of a run as the queue has it now."""

    task_type: str
    user_key: str | None
    """None: no trigger has made it."""
    item_id: str
    status: Status
    attempts: int
    error: str | None


class TypeState(msgspec.Struct, frozen=True):
    """A trigger type: its newest configuration, and what a person has set."""

    name: str
    fields: dict[str, str]
    configured: bool
    """Whether the configuration enables it."""
    version: int
    switched: bool | None = None
    """What a person has set instead; None: nothing."""

    @property
    def enabled(self) -> bool:
        """Whether its triggers run."""
        return self.configured if self.switched is None else self.switched


# -- triggers -------------------------------------------------------------------------------------------


def touch(trigger: Trigger | None, activity: Activity, now: int) -> Moved:
    """Note activity of a user; the answer is whether it has scheduled a run. The type must be enabled."""
    trigger = _owned(_known(trigger, activity, now), activity, now)
    if trigger.fired_at is not None:
        return Moved(replace(trigger, touched=True), answer=not trigger.touched)
    moment = now + activity.interval_ms
    if trigger.scheduled_at is None:
        return Moved(_scheduled(trigger, now, moment))
    if activity.debounce:
        if activity.max_wait_ms is not None:
            moment = min(moment, trigger.created_at + activity.max_wait_ms)
        trigger = replace(trigger, scheduled_at=moment, anchor=moment)
    return Moved(trigger, answer=False)


def fire(trigger: Trigger | None, firing: Firing, now: int) -> Moved:
    """Let a due trigger run, or skip this due time; False if another was quicker.

    The type must be enabled.
    """
    due_at = firing.trigger.scheduled_at
    if trigger is None or trigger.fired_at is not None or trigger.scheduled_at != due_at:
        return Moved(trigger, answer=False)
    if firing.message is None:
        skipped = replace(trigger, scheduled_at=firing.next_at, anchor=firing.next_anchor)
        return Moved(_resting(skipped, now), counted=TypeStatistics(task_type=trigger.task_type, skipped=1))
    user_id, item_id = firing.message.key
    running = replace(
        trigger,
        scheduled_at=firing.next_at,
        anchor=firing.next_anchor,
        item_user_id=user_id,
        item_id=item_id,
        fired_at=now,
        previous_run=now,
        touched=False,
        retry_count=0,
    )
    late = max(0, now - due_at)
    counted = TypeStatistics(task_type=trigger.task_type, fired=1, lateness_ms=late, max_lateness_ms=late)
    return Moved(running, counted=counted)


def known_run(message: Message, found: Run) -> Run | None:
    """The end of a run that was fired with a message that the queue had before, as `found`.

    None if that message is of this trigger and has not ended: its end will be the end of the run. Any other
    never ends this run, which therefore ends now.
    """
    if not found.status.ended and (found.task_type, found.user_key) == (message.label, message.user_key):
        return None
    status = found.status if found.status.ended else Status.FAILED
    own = (message.label, message.user_key, message.item_id)
    return Run(*own, status, found.attempts, found.error or KNOWN)


def move_run(trigger: Trigger | None, run: Run, now: int) -> Moved:
    """Take over what became of the message of a run; False if this trigger does not wait for that run."""
    if trigger is None or trigger.fired_at is None or trigger.item_id != run.item_id:
        return Moved(trigger, answer=False)
    if not run.status.ended:
        return Moved(replace(trigger, retry_count=run.attempts))
    good = run.status is Status.COMPLETED
    ended = replace(
        trigger,
        fired_at=None,
        ended="completed" if good else "failed",
        last_exec=now if good else trigger.last_exec,
        touched=False,
    )
    if trigger.touched:
        ended = (
            _due_now(ended, now)
            if trigger.user_id is None
            else _scheduled(ended, now, now + (trigger.interval_ms or 0))
        )
    counted = TypeStatistics(
        task_type=trigger.task_type,
        runs=1,
        failures=0 if good else 1,
        duration_ms=now - trigger.fired_at,
        last_run_at=now,
        last_error=None if good else run.error,
    )
    return Moved(_resting(ended, now), counted=counted)


def cancel(trigger: Trigger | None, now: int) -> Moved:
    """Forget the next run of a user's trigger; False if there is none to forget.

    A run that is under way is cancelled through the queue.
    """
    if trigger is None or trigger.user_id is None:
        return Moved(trigger, answer=False)
    if trigger.scheduled_at is None and not trigger.touched:
        return Moved(trigger, answer=False)
    if trigger.fired_at is None and trigger.ended is None:
        return Moved(None)
    return Moved(_resting(replace(trigger, scheduled_at=None, anchor=None, touched=False), now))


def run_now(trigger: Trigger | None, activity: Activity, now: int) -> Moved:
    """Let a trigger be due now, or if it is running, once more after that. The type must be enabled.

    Of a trigger without a user, only the type and the key of the activity count.
    """
    belongs_to_user = activity.user_key != GLOBAL_KEY
    if trigger is None or is_forgotten(trigger, now):
        trigger = _known(trigger, activity, now)
        trigger = _owned(trigger, activity, None) if belongs_to_user else trigger
    if trigger.fired_at is not None:
        return Moved(replace(trigger, touched=True))
    return Moved(_scheduled(trigger, now, now) if belongs_to_user else _due_now(trigger, now))


def schedule_first(trigger: Trigger | None, definition: Definition, now: int, *, anew: bool) -> Moved:
    """Let a type that belongs to no user be due, if it has no due time yet or (`anew`) another schedule."""
    first = definition.first_due
    if first is None:
        return Moved(trigger)
    trigger = trigger or _new(definition.name, GLOBAL_KEY, now)
    if trigger.scheduled_at is None or anew:
        trigger = replace(trigger, scheduled_at=first, anchor=first, expires_at=None)
    return Moved(trigger)


def is_blocked(trigger: Trigger, others: Iterable[Trigger]) -> bool:
    """Whether a trigger must wait for others, those of the types that it depends on for the same user key.

    It waits for one that is scheduled or running and has not ended well since this trigger was fired last.
    """
    since = trigger.previous_run or 0
    return any(other.status in OPEN and (other.last_exec or 0) <= since for other in others)


def is_forgotten(trigger: Trigger, now: int) -> bool:
    """Whether the `ttl_ms` after the end of a trigger is over: only its `last_exec` still counts."""
    if trigger.expires_at is None:
        return False
    return trigger.expires_at - _kept_ms(trigger) + (trigger.ttl_ms or 0) <= now


def is_news(before: Trigger | None, after: Trigger | None) -> bool:
    """Whether a move concerns the trigger clocks, which sleep until the first due time that they know.

    It does if a due time is new or earlier, or if a run has ended or was forgotten: a trigger that depends on
    it may be due now.
    """
    was, now = _waits_until(before), _waits_until(after)
    if now is not None:
        return was is None or now < was
    is_running = after is not None and after.fired_at is not None
    return not is_running and before is not None and before.status in OPEN


def state_of(trigger: Trigger) -> TriggerState:
    """A trigger as people see it."""
    return TriggerState(
        task_type=trigger.task_type,
        user_key=trigger.user_key,
        status=trigger.status,
        user_id=trigger.user_id,
        device_id=trigger.device_id,
        agent_id=trigger.agent_id,
        created_at=trigger.created_at,
        scheduled_at=trigger.scheduled_at,
        last_activity=trigger.last_activity,
        item_id=trigger.item_id,
        retry_count=trigger.retry_count,
        last_exec=trigger.last_exec,
    )


def due_of(trigger: Trigger) -> DueTrigger:
    """A scheduled trigger as it is fired."""
    assert trigger.scheduled_at is not None
    return DueTrigger(
        task_type=trigger.task_type,
        user_key=trigger.user_key,
        user_id=trigger.user_id,
        device_id=trigger.device_id,
        agent_id=trigger.agent_id,
        scheduled_at=trigger.scheduled_at,
        anchor=trigger.scheduled_at if trigger.anchor is None else trigger.anchor,
        last_item_id=trigger.item_id,
    )


def _new(task_type: str, user_key: str, now: int) -> Trigger:
    return Trigger(task_type, user_key, None, None, None, None, None, now)


def _known(trigger: Trigger | None, activity: Activity, now: int) -> Trigger:
    """The trigger of an activity: a new one if there is none, or the last one is forgotten."""
    if trigger is not None and not is_forgotten(trigger, now):
        return trigger
    new = _new(activity.task_type, activity.user_key, now)
    last = None if trigger is None else trigger.last_exec
    if trigger is None or last is None or last + max(LEAST_KEPT_MS, trigger.interval_ms or 0) <= now:
        return new
    return replace(new, last_exec=last // 1000 * 1000)  # it is kept in whole seconds


def _owned(trigger: Trigger, activity: Activity, last_activity: int | None) -> Trigger:
    """The trigger of the user who was active."""
    return replace(
        trigger,
        user_id=activity.user_id,
        device_id=activity.device_id,
        agent_id=activity.agent_id,
        interval_ms=activity.interval_ms,
        ttl_ms=activity.ttl_ms,
        last_activity=last_activity,
    )


def _scheduled(trigger: Trigger, now: int, moment: int) -> Trigger:
    """A user's trigger with a new run."""
    return replace(
        trigger, created_at=now, scheduled_at=moment, anchor=moment, retry_count=0, expires_at=None
    )


def _due_now(trigger: Trigger, now: int) -> Trigger:
    """A trigger without a user that runs now; its schedule goes on from its anchor."""
    return replace(trigger, scheduled_at=now, expires_at=None)


def _resting(trigger: Trigger, now: int) -> Trigger:
    """The trigger with the moment at which it is forgotten, if nothing is to come. One of no user stays."""
    if trigger.user_id is None or trigger.scheduled_at is not None or trigger.fired_at is not None:
        return trigger
    return replace(trigger, expires_at=now + _kept_ms(trigger))


def _kept_ms(trigger: Trigger) -> int:
    """How long a store keeps a trigger after its end."""
    return max(LEAST_KEPT_MS, trigger.ttl_ms or 0, trigger.interval_ms or 0)


def _waits_until(trigger: Trigger | None) -> int | None:
    """The due time for which a clock waits: none while the trigger is running."""
    return None if trigger is None or trigger.fired_at is not None else trigger.scheduled_at


# -- types ----------------------------------------------------------------------------------------------


def put_type(known: TypeState | None, definition: Definition) -> TypeState:
    """Bring a definition into force, unless one of the same or a higher version is.

    A newer one forgets what a person has switched.
    """
    if known is not None and definition.version <= known.version:
        return known
    return TypeState(definition.name, definition.fields, definition.enabled, definition.version)


def left_out(known: Iterable[TypeState], definitions: Sequence[Definition]) -> list[Definition]:
    """The definitions that disable those known types which a whole, newer configuration leaves out."""
    names = {definition.name for definition in definitions}
    version = max((definition.version for definition in definitions), default=0)
    return [
        Definition(name=one.name, fields=one.fields, enabled=False, version=version)
        for one in known
        if one.name not in names and one.version < version
    ]


def known_type(state: TypeState, put: Definition | None = None) -> KnownType:
    """A type as it is in force, and whether `put` has the same version but says something else."""
    differs = (
        put is not None
        and put.version == state.version
        and (put.fields, put.enabled) != (state.fields, state.configured)
    )
    return KnownType(
        name=state.name, fields=state.fields, enabled=state.enabled, version=state.version, differs=differs
    )


def added(one: TypeStatistics, more: TypeStatistics) -> TypeStatistics:
    """The statistics of a type with what has happened since."""
    return TypeStatistics(
        task_type=one.task_type,
        pending=one.pending + more.pending,
        running=one.running + more.running,
        runs=one.runs + more.runs,
        failures=one.failures + more.failures,
        skipped=one.skipped + more.skipped,
        duration_ms=one.duration_ms + more.duration_ms,
        lateness_ms=one.lateness_ms + more.lateness_ms,
        max_lateness_ms=max(one.max_lateness_ms, more.max_lateness_ms),
        fired=one.fired + more.fired,
        last_run_at=one.last_run_at if more.last_run_at is None else more.last_run_at,
        last_error=more.last_error if more.failures else one.last_error,
    )
