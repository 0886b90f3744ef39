"""The tasks of triggers as one step sees them: read together, changed by plain rules, written together."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.sqlite.rows import decode_json, to_json
from reverie.backends.triggers import TRIGGERS, TaskStatus, kept_ms, standing
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.backends.sqlite.step import Step
    from reverie.backends.triggers import Activity

__all__ = ["Task", "Tasks", "TypeChange"]

SQL = load_queries(__package__ or "", "tasks.sql")


class Task(msgspec.Struct, array_like=True):
    """One trigger for one user key: the columns of `trigger_tasks`, in their order."""

    task_type: str
    user_key: str
    user_id: str | None
    """None if it belongs to no user."""
    device_id: str | None
    agent_id: str | None
    interval_ms: int | None
    ttl_ms: int | None
    created_at: int
    scheduled_at: int | None = None
    anchor: int | None = None
    last_activity: int | None = None
    touched: int = 0
    """1 if there was activity, or someone asked for a run, since its present run was fired."""
    item_user_id: str | None = None
    item_id: str | None = None
    """With it: the message of its run that is under way, or of the last one."""
    fired_at: int | None = None
    """Set while its run is under way."""
    ended: TaskStatus | None = None
    """How its last run ended."""
    expires_at: int | None = None
    retry_count: int = 0
    last_exec: int | None = None
    previous_run: int | None = None
    """When the run before the next one was fired."""

    @property
    def status(self) -> TaskStatus:
        """See `standing`."""
        return standing(self.fired_at, self.scheduled_at, self.ended)

    def belong_to(self, activity: Activity) -> None:
        """Take over what an activity says."""
        self.user_id, self.device_id, self.agent_id = activity.user_id, activity.device_id, activity.agent_id
        self.interval_ms, self.ttl_ms = activity.interval_ms, activity.ttl_ms

    def schedule(self, now: int, moment: int) -> None:
        """Let its next run be due at this moment."""
        self.created_at, self.scheduled_at, self.anchor = now, moment, moment
        self.retry_count, self.expires_at = 0, None

    def rest(self, now: int) -> None:
        """Say when it is forgotten, if nothing is to come. One without a user never is."""
        if self.user_id is not None and self.scheduled_at is None and self.fired_at is None:
            self.expires_at = now + kept_ms(self.ttl_ms or 0, self.interval_ms or 0)


class TypeChange(msgspec.Struct):
    """What a step adds to the statistics of a type."""

    pending: int = 0
    running: int = 0
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    duration_ms: int = 0
    lateness_ms: int = 0
    max_lateness_ms: int = 0
    fired: int = 0
    last_run_at: int | None = None
    last_error: str | None = None
    """Counts only with `failures`."""

    def stand(self, status: TaskStatus, number: int) -> None:
        """So many tasks more stand so; those that have ended are not counted."""
        if status == "pending":
            self.pending += number
        elif status == "running":
            self.running += number


_decode_tasks = msgspec.json.Decoder(list[Task]).decode


class Tasks:
    """Those tasks that a step is about; it ends with `write`."""

    def __init__(self, step: Step, keys: Iterable[tuple[str, str]]) -> None:
        self._step = step
        ((tasks, enabled),) = step.rows(SQL["read_tasks"], {"keys": to_json(list(dict.fromkeys(keys)))})
        self._tasks = {(task.task_type, task.user_key): task for task in _decode_tasks(tasks)}
        self._before = {key: copy(task) for key, task in self._tasks.items()}
        self.enabled: frozenset[str] = frozenset(decode_json(enabled))
        """The types whose tasks run."""
        self._changes: defaultdict[str, TypeChange] = defaultdict(TypeChange)

    def get(self, task_type: str, user_key: str) -> Task | None:
        """A task, if there is one."""
        return self._tasks.get((task_type, user_key))

    def of(self, task_type: str, user_key: str, activity: Activity | None) -> Task:
        """A task; one that is unknown is made, and belongs to whoever was active."""
        task = self._tasks.get((task_type, user_key))
        if task is None:
            task = Task(task_type, user_key, None, None, None, None, None, self._step.now)
            if activity is not None:
                task.belong_to(activity)
            self._tasks[task_type, user_key] = task
        return task

    def schedule(self, task: Task, moment: int) -> None:
        """Let the next run of a task be due at this moment, and tell those who wait for it."""
        task.schedule(self._step.now, moment)
        self._step.woken.add(TRIGGERS)

    def remove(self, task: Task) -> None:
        """Forget a task."""
        key = task.task_type, task.user_key
        del self._tasks[key]
        before = self._before.pop(key, None)
        if before is not None:
            self._step.rows(SQL["remove_task"], key)
            self.change(task.task_type).stand(before.status, -1)

    def forget_old(self, limit: int) -> None:
        """Remove what has ended long ago, at most so much."""
        rows = self._step.rows(SQL["forget_tasks"], {"now": self._step.now, "limit": limit})
        for task_type, never_ran in rows:
            if never_ran:
                self.change(task_type).stand("pending", -1)

    def change(self, task_type: str) -> TypeChange:
        """What the step adds to the statistics of a type."""
        return self._changes[task_type]

    def write(self) -> None:
        """Write the tasks that have changed, and the statistics of their types."""
        moved: list[Task] = []
        quiet: list[Task] = []
        for key, task in self._tasks.items():
            before = self._before.get(key)
            if before == task:
                continue
            (quiet if before is not None and _times(before) == _times(task) else moved).append(task)
            change = self._changes[task.task_type]
            change.stand(task.status, 1)
            if before is not None:
                change.stand(before.status, -1)
        for statement, tasks in (("write_tasks", moved), ("write_quietly", quiet)):
            if tasks:
                self._step.rows(SQL[statement], {"tasks": to_json(tasks)})
        for name, change in self._changes.items():
            if change != NOTHING:
                self._step.rows(SQL["write_type_counts"], {"name": name} | msgspec.structs.asdict(change))


NOTHING = TypeChange()


def _times(task: Task) -> tuple[object, ...]:
    """All that `write_quietly` does not write."""
    return (
        task.created_at,
        task.scheduled_at,
        task.anchor,
        task.item_user_id,
        task.item_id,
        task.fired_at,
        task.ended,
        task.expires_at,
        task.last_exec,
        task.previous_run,
    )
