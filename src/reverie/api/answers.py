"""What a client gets: the types of answers that are not values of another room."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from reverie.api.readiness import Dependency
from reverie.backends.moves import Status
from reverie.backends.triggers import TriggerState
from reverie.observe.alert import Alert
from reverie.triggers.overview import TypeOverview
from reverie.triggers.service import Who

__all__ = [
    "Added",
    "Alerts",
    "Backlog",
    "Cancelled",
    "Found",
    "FoundMemory",
    "ItemState",
    "Metadata",
    "Progress",
    "Pushed",
    "Ran",
    "Readiness",
    "StatusPage",
    "Switched",
    "TypeAndTasks",
    "Waited",
]


class Added(TypedDict):
    """A memory that will be written."""

    memory: str
    memory_id: str
    memory_type: str
    cube_id: str
    item_id: str
    status: str


class Metadata(TypedDict):
    """What is known of a memory besides its text."""

    memory_type: str
    kind: str
    relativity: float
    user_id: str
    session_id: str | None
    tags: list[str]
    info: dict[str, Any] | None
    sources: list[dict[str, Any]]
    created_at: str
    updated_at: str


class FoundMemory(TypedDict):
    """A memory that fits a query."""

    id: str
    memory: str
    metadata: Metadata


class FoundInCube(TypedDict):
    """The memories of one cube that fit a query, best first."""

    cube_id: str
    memories: list[FoundMemory]


class Found(TypedDict):
    """The memories that fit a query."""

    text_mem: list[FoundInCube]
    act_mem: list[FoundInCube]
    para_mem: list[FoundInCube]
    pref_mem: list[FoundInCube]
    words_left_out: int
    """How many words of a long query were not searched for; the rarest were."""


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


class TypeAndTasks(TypeOverview, frozen=True, kw_only=True):
    """A type of timed tasks, and one page of its tasks."""

    tasks: list[TriggerState]
    next: str | None
    """What `after` must be for the next page; None on the last one."""


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


class Alerts(TypedDict):
    """What is wrong now, worst first."""

    alerts: list[Alert]
