"""What goes into and comes out of a trigger store, and the rules that all of them follow.

A task is one trigger for one user key: at most one run of it is unsettled, and it has at most one next due
time. Three things happen to it, each in one step with what it means for the queue:

- `touch`: activity schedules a run `interval_ms` later, unless one is scheduled. While a run is under way it
  is only noted, and leads to one more run, `interval_ms` after the end of this one.
- `fire`: the due time has come. Its message is submitted, the task is running, the next due time is written.
- the end of that message: the task is completed or failed. This is part of the queue's own step.

Tasks without a user (periodic, cron) have the user key "" and always a next due time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from reverie.message import Message

__all__ = [
    "GLOBAL_KEY",
    "TRIGGERS",
    "Activity",
    "CancelTask",
    "Definition",
    "Due",
    "DueTask",
    "Firing",
    "KnownType",
    "RunTask",
    "SwitchType",
    "TaskCommand",
    "TaskState",
    "TaskStatus",
    "TypeStatistics",
    "kept_ms",
    "standing",
]

GLOBAL_KEY = ""
"""The user key of tasks that belong to no user."""
TRIGGERS = "_triggers"
"""Stands among the labels of `Queue.wait` for an earlier due time of a task, or the end of a run."""
LAST_RUN_KEPT_MS = 86_400_000
"""A finished task is remembered for at least a day."""

TaskStatus = Literal["pending", "running", "completed", "failed"]


def kept_ms(ttl_ms: int, interval_ms: int) -> int:
    """How long a task is remembered after its end."""
    return max(LAST_RUN_KEPT_MS, ttl_ms, interval_ms)


def standing(fired_at: int | None, scheduled_at: int | None, ended: TaskStatus | None) -> TaskStatus:
    """How a task stands, as the seed calls it: by when its run began, when it is due, how the last ended."""
    if fired_at is not None:
        return "running"
    return "pending" if scheduled_at is not None else ended or "pending"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A task type as one configuration has it."""

    name: str
    fields: dict[str, str]
    """As they stand in `scheduler:task_type:{name}`; `enabled` is not among them."""
    enabled: bool
    version: int = 0
    first_due: int | None = None
    """Of a periodic or cron type: when it is due first, if nothing is known of it."""


class KnownType(msgspec.Struct, frozen=True, kw_only=True):
    """A task type as it is in force for everyone."""

    name: str
    fields: dict[str, str]
    enabled: bool
    version: int
    differs: bool = False
    """Whether what was put had the same version and said something else; then this stays in force."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Someone was active, and what that means for one task."""

    task_type: str
    user_key: str
    user_id: str
    device_id: str | None = None
    agent_id: str | None = None
    interval_ms: int
    """The run is due so long after the activity; a jitter is part of it."""
    debounce: bool = False
    """Whether more activity moves a run that is scheduled."""
    max_wait_ms: int | None = None
    """With `debounce`: at most so long after the first activity; None: any time."""
    ttl_ms: int = 7_200_000
    """How long a finished task is shown."""


class DueTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose time has come."""

    task_type: str
    user_key: str
    user_id: str | None
    device_id: str | None
    agent_id: str | None
    scheduled_at: int
    """What `fire` compares: whoever is late finds another."""
    anchor: int
    """The due time by the schedule, without jitter."""
    last_item_id: str | None = None
    """Its last run, whose id the next one must not have."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """What is due."""

    now: int
    """By the store's own clock."""
    tasks: list[DueTask]
    """Those that are due longest come first."""
    next_due: int | None
    """When the next one is; None if nothing is scheduled; in the past if there are more than `limit`."""


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A due task becomes a message."""

    task: DueTask
    message: Message | None
    """None: this due time is skipped."""
    next_at: int | None = None
    """When it is due next; None if only activity schedules it."""
    next_anchor: int | None = None


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """How a task stands."""

    task_type: str
    user_key: str
    status: TaskStatus
    user_id: str | None = None
    device_id: str | None = None
    agent_id: str | None = None
    created_at: int
    """When its present run, or the last one, was scheduled first."""
    scheduled_at: int | None = None
    """When it is due next."""
    last_activity: int | None = None
    item_id: str | None = None
    """Its run that is under way, or the last one."""
    retry_count: int = 0
    last_exec: int | None = None
    """When a run of it last ended well."""


class TypeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the runs of a task type, since it exists."""

    task_type: str
    pending: int = 0
    running: int = 0
    runs: int = 0
    """That have ended, however."""
    failures: int = 0
    skipped: int = 0
    """Due times that were missed and not made up for."""
    duration_ms: int = 0
    """Of all runs that ended, from the due time's message to its end."""
    lateness_ms: int = 0
    """Of all runs that were fired, after their due time."""
    max_lateness_ms: int = 0
    fired: int = 0
    last_run_at: int | None = None
    last_error: str | None = None


class CancelTask(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget the next run of a user's task. One that is under way is cancelled through the queue."""

    task_type: str
    user_key: str


class RunTask(msgspec.Struct, frozen=True, tag="run"):
    """Let a task be due now, or if it runs, once more when that has ended. One that is unknown is made."""

    activity: Activity
    """Of a task without a user only the type and the key count."""


class SwitchType(msgspec.Struct, frozen=True, tag="switch"):
    """Enable or disable a type for everyone, whatever configurations of the version in force say."""

    task_type: str
    enabled: bool


TaskCommand = CancelTask | RunTask | SwitchType
