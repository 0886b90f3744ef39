"""What becomes of a task that is due: its message, its next due time, and what happens to those it missed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from reverie.backends.triggers import GLOBAL_KEY, Firing
from reverie.message import Message
from reverie.triggers.schedule import schedule_of

if TYPE_CHECKING:
    from reverie.backends.triggers import DueTrigger
    from reverie.triggers.schedule import Schedule
    from reverie.triggers.settings import TaskSettings

__all__ = ["SYSTEM_USER", "jitter_ms", "plan", "run_id"]

SYSTEM_USER = "_system"
"""Whose work it is that belongs to no user. No client can name it: its id is reserved."""
MISSED_AFTER_MS = 60_000
"""With `misfire: skip`, a due time that is late by more than this is missed."""
LONGEST_ID = 200


def plan(task: DueTrigger, settings: TaskSettings, level: int, now: int) -> Firing:
    """Decide what a due task becomes."""
    schedule = schedule_of(settings)
    if schedule is None or task.user_key != GLOBAL_KEY:  # the latter was scheduled when activity made it run
        return Firing(trigger=task, message=message_of(task, task.anchor, level))
    if task.scheduled_at < task.anchor:  # a person wants it now: the schedule goes on as if nothing was
        following = task.anchor if task.anchor > now else schedule.after(task.anchor, now)
        return _firing(task, settings, task.scheduled_at, following, level)
    return _scheduled(task, settings, schedule, level, now)


def _scheduled(task: DueTrigger, settings: TaskSettings, schedule: Schedule, level: int, now: int) -> Firing:
    due, following = task.anchor, schedule.after(task.anchor, task.anchor)
    if settings.misfire == "run_all":
        return _firing(task, settings, due, following, level)
    if settings.misfire == "skip" and (following <= now or now - task.scheduled_at > MISSED_AFTER_MS):
        return _firing(task, settings, None, schedule.after(due, now), level)
    if following <= now:
        due, following = schedule.last(due, now), schedule.after(due, now)
    return _firing(task, settings, due, following, level)


def _firing(task: DueTrigger, settings: TaskSettings, due: int | None, following: int, level: int) -> Firing:
    return Firing(
        trigger=task,
        message=None if due is None else message_of(task, due, level),
        next_at=following + jitter_ms(settings, task.user_key, following),
        next_anchor=following,
    )


def message_of(task: DueTrigger, due: int, level: int) -> Message:
    """The message that a task becomes."""
    ids = {"device_id": task.device_id, "agent_id": task.agent_id}
    return Message(
        user_id=task.user_id or SYSTEM_USER,
        label=task.task_type,
        item_id=run_id(task, due),
        info={name: value for name, value in ids.items() if value is not None} or None,
        level=level,
        user_key=task.user_key,
    )


def run_id(task: DueTrigger, due: int) -> str:
    """The id of the run of a task at a due time: always the same, so that nobody can fire it twice."""
    text = f"{task.task_type}:{task.user_key}:{due}" if task.user_key else f"{task.task_type}:{due}"
    if len(text.encode()) > LONGEST_ID:
        text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    last = task.last_item_id or ""  # of the same moment only if a person asks for one run after the other
    return f"{last}+" if last.rstrip("+") == text else text


def jitter_ms(settings: TaskSettings, user_key: str, due: int) -> int:
    """By how much a due time is later: as if by chance, but the same for everyone who asks."""
    if not settings.jitter:
        return 0
    digest = hashlib.blake2b(f"{user_key}:{due}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (round(settings.jitter * 1000) + 1)
