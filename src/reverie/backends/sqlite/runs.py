"""What the end of a message, or its return to the queue, means for the trigger that has made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reverie.backends.moves import Status
from reverie.backends.sqlite.tasks import Tasks
from reverie.backends.triggers import TRIGGERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.sqlite.step import Step
    from reverie.backends.sqlite.tasks import Task

__all__ = ["Run", "write_runs"]


class Run(NamedTuple):
    """How a message stands now that a trigger has made."""

    task_type: str
    user_key: str
    item_id: str
    status: Status
    attempts: int
    error: str | None


def write_runs(step: Step, runs: Sequence[Run]) -> None:
    """Write into the tasks what has become of their runs."""
    tasks = Tasks(step, [(run.task_type, run.user_key) for run in runs])
    for run in runs:
        task = tasks.get(run.task_type, run.user_key)
        if task is None or task.fired_at is None or task.item_id != run.item_id:
            continue  # another run is under way by now, or none
        if run.status.ended:
            _end(step, tasks, task, run)
        else:
            task.retry_count = run.attempts
    tasks.write()


def _end(step: Step, tasks: Tasks, task: Task, run: Run) -> None:
    now, good = step.now, run.status is Status.COMPLETED
    change = tasks.change(task.task_type)
    change.runs += 1
    change.duration_ms += now - (task.fired_at or now)
    change.last_run_at = now
    if not good:
        change.failures += 1
        change.last_error = run.error
    task.fired_at, task.ended = None, "completed" if good else "failed"
    task.last_exec = now if good else task.last_exec
    if task.touched:
        if task.user_id is None:
            task.scheduled_at = now  # the schedule goes on from its anchor
        else:
            tasks.schedule(task, now + (task.interval_ms or 0))
    task.touched = 0
    task.rest(now)
    step.woken.add(TRIGGERS)
