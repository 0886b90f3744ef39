"""The values that go into and come out of a trigger store.

A trigger type is a rule that turns time or activity into messages. A trigger is one type for one user key,
and each message that it makes is a run. The seed calls them task type and timed task; these words stay in
field names, keys, tables, settings and everything public. `trigger_state.py` has the rules.

Triggers without a user (periodic, cron) have the user key "" and always a next due time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from reverie.message import Message

__all__ = [
    "GLOBAL_KEY",
    "TRIGGERS",
    "Activity",
    "CancelTrigger",
    "Definition",
    "Due",
    "DueTrigger",
    "Firing",
    "KnownType",
    "RunTrigger",
    "SwitchType",
    "TriggerCommand",
    "TriggerState",
    "TriggerStatus",
    "TypeStatistics",
]

GLOBAL_KEY = ""
"""The user key of triggers that belong to no user."""
TRIGGERS = "_triggers"
"""Among the labels of `Queue.wait`: wake at a new or earlier due time, and at the end of a run."""

TriggerStatus = Literal["pending", "running", "completed", "failed"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger type as one configuration has it."""

    name: str
    fields: dict[str, str]
    """The fields of `scheduler:task_type:{name}`, without `enabled`."""
    enabled: bool
    version: int = 0
    first_due: int | None = None
    """The first due time of a periodic or cron type that has none yet."""


class KnownType(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger type as it is in force for everyone."""

    name: str
    fields: dict[str, str]
    enabled: bool
    version: int
    differs: bool = False
    """Whether the definition that was put has the same version but says something else. It is ignored."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of a user, and when it makes one trigger run."""

    task_type: str
    user_key: str
    user_id: str
    device_id: str | None = None
    agent_id: str | None = None
    interval_ms: int
    """Milliseconds from the activity to the run, jitter included."""
    debounce: bool = False
    """Whether more activity moves a run that is scheduled."""
    max_wait_ms: int | None = None
    """With `debounce`: milliseconds from the first activity to the run at most; None: without limit."""
    ttl_ms: int = 7_200_000
    """How long a finished trigger is shown; default two hours."""


class DueTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger whose due time has come."""

    task_type: str
    user_key: str
    user_id: str | None = None
    device_id: str | None = None
    agent_id: str | None = None
    scheduled_at: int
    """The due time. `fire` compares it: if it has changed, another instance was quicker."""
    anchor: int
    """The due time by the schedule, without jitter."""
    last_item_id: str | None = None
    """The message of the last run. The next one needs another id."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """The triggers that are due."""

    now: int
    """The time by the store's own clock."""
    triggers: list[DueTrigger]
    """The longest due first."""
    next_due: int | None
    """The next due time; None if nothing is scheduled; in the past if more than `limit` are due."""


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A due trigger, the message of its run and its next due time."""

    trigger: DueTrigger
    message: Message | None
    """None: this due time is skipped."""
    next_at: int | None = None
    """The next due time; None if only activity schedules it."""
    next_anchor: int | None = None


class TriggerState(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger as people see it."""

    task_type: str
    user_key: str
    status: TriggerStatus
    user_id: str | None = None
    device_id: str | None = None
    agent_id: str | None = None
    created_at: int
    """When the present run, or the last one, was first scheduled."""
    scheduled_at: int | None = None
    """The next due time."""
    last_activity: int | None = None
    item_id: str | None = None
    """The message of the present run, or of the last one."""
    retry_count: int = 0
    last_exec: int | None = None
    """When a run last ended well."""


class TypeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The triggers of a type by status, and its runs since the type exists."""

    task_type: str
    pending: int = 0
    running: int = 0
    runs: int = 0
    """Runs that have ended, well or not."""
    failures: int = 0
    skipped: int = 0
    """Due times that were missed and not made up for."""
    duration_ms: int = 0
    """The time that all ended runs took together, from firing to end."""
    lateness_ms: int = 0
    """The time from due to fired, of all fired runs together."""
    max_lateness_ms: int = 0
    fired: int = 0
    last_run_at: int | None = None
    last_error: str | None = None


class CancelTrigger(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget the next run of a user's trigger. A run that is under way is cancelled through the queue."""

    task_type: str
    user_key: str


class RunTrigger(msgspec.Struct, frozen=True, tag="run"):
    """Let a trigger be due now, or if it is running, once more after that. An unknown trigger is made."""

    activity: Activity
    """Of a trigger without a user, only the type and the key count."""


class SwitchType(msgspec.Struct, frozen=True, tag="switch"):
    """Enable or disable a type for everyone, until a configuration of a higher version comes."""

    task_type: str
    enabled: bool


TriggerCommand = CancelTrigger | RunTrigger | SwitchType
