"""What a client gets of messages, labels and timed tasks: the types of answers not of another room."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from reverie.api.readiness import Dependency
from reverie.backends.moves import Status
from reverie.backends.triggers import TriggerState
from reverie.backends.views import Attempt, ItemStatus, LabelState
from reverie.observe.alert import Alert
from reverie.triggers.overview import TypeOverview
from reverie.triggers.service import Who

__all__ = [
    "Alerts",
    "Backlog",
    "Cancelled",
    "ChangedItems",
    "DeadLetter",
    "DeadLetters",
    "ItemKey",
    "ItemState",
    "LabelPage",
    "PausedLabel",
    "Progress",
    "Pushed",
    "Ran",
    "Readiness",
    "StatusPage",
    "Switched",
    "TypeAndTasks",
    "Waited",
    "Wellbeing",
]


class Pushed(TypedDict):
    """A chat message that is kept."""

    status: Literal["success"]
    item_id: str
    message_status: str
    scheduled: bool
    """Whether the user's activity has scheduled a run of a timed task."""
    not_noted: NotRequired[str]
    """Why the activity could not be noted."""


class ItemState(TypedDict):
    """The status of an item or of a business task."""

    task_id: str
    status: Status


class StatusPage(TypedDict):
    """A page of the items of a user, oldest first."""

    items: list[ItemState]
    next: str | None
    """What `cursor` must be for the next page; None on the last one."""


class Backlog(TypedDict):
    """The lanes of a user that have work; `pending` is claimed and not settled, `remaining` waits."""

    user_id: str
    user_name: str | None
    mem_cube_id: str | None
    stream_keys: list[str]
    users_count: int
    pending_tasks_count: int
    remaining_tasks_count: int
    pending_tasks_detail: list[str]
    remaining_tasks_detail: list[str]


class Waited(TypedDict):
    """The end of waiting for a user."""

    running_tasks: int
    waited_seconds: float
    timed_out: bool
    user_name: str


class Progress(TypedDict):
    """One event of a stream that waits for a user."""

    user_name: str
    active_tasks: int
    elapsed_seconds: float
    status: str
    instance_id: str
    """The server process that answers."""


class TypeAndTasks(TypeOverview, frozen=True, kw_only=True):
    """A type of timed tasks, and one page of its tasks."""

    tasks: list[TriggerState]
    next: str | None
    """What `cursor` must be for the next page; None on the last one."""


class Ran(Who):
    """A timed task that was told to run."""

    task_type: str
    run: Literal[True]


class Cancelled(Who):
    """A timed task whose next run was cancelled, if it had one."""

    task_type: str
    cancelled: bool


class Switched(TypedDict):
    """A type of timed tasks that was enabled or disabled."""

    task_type: str
    enabled: bool


class Readiness(TypedDict):
    """Whether the process can do its work, and the state of each thing that it depends on."""

    ready: bool
    dependencies: list[Dependency]


class Wellbeing(TypedDict):
    """Whether the queue is well."""

    status: Literal["ok", "unwell"]


class Alerts(TypedDict):
    """What is wrong now, worst first."""

    alerts: list[Alert]


class DeadLetters(TypedDict):
    """Messages that have failed for good, oldest first."""

    items: list[ItemStatus]
    next: str | None


class DeadLetter(ItemStatus, frozen=True, kw_only=True):
    """A message that has failed for good, with its content and its runs."""

    history: list[Attempt]


class ItemKey(TypedDict):
    """Which item."""

    user_id: str
    item_id: str


class ChangedItems(TypedDict):
    """The items that a command has changed."""

    changed: list[ItemKey]
    requested: list[ItemKey]
    """For a cancel: running items that were asked to stop."""
    more: bool
    """Whether the limit was reached, and there are more such items."""


class LabelPage(TypedDict):
    """Labels by name."""

    labels: list[LabelState]
    next: str | None


class PausedLabel(TypedDict):
    """A label that was paused or resumed."""

    label: str
    paused: str | None
    """Why the label is paused; None if it is not."""
