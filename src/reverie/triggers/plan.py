"""Decide what a due trigger becomes: its message, its next due time, and what happens to missed ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from reverie.backends.triggers import GLOBAL_KEY, Firing
from reverie.message import SYSTEM_USER, Message
from reverie.triggers.schedule import schedule_of

if TYPE_CHECKING:
    from reverie.backends.triggers import DueTrigger
    from reverie.triggers.schedule import Schedule
    from reverie.triggers.settings import TaskSettings

__all__ = ["jitter_ms", "plan"]

MISSED_AFTER_MS = 60_000
"""With `misfire: skip`, a due time that is late by more than this is missed."""
LONGEST_ID = 200


def plan(trigger: DueTrigger, settings: TaskSettings, level: int, now: int) -> Firing:
    """Decide what a due trigger becomes."""
    schedule = schedule_of(settings)
    if schedule is None or trigger.user_key != GLOBAL_KEY:  # activity has scheduled it
        return Firing(trigger=trigger, message=_message(trigger, trigger.anchor, level))
    if trigger.scheduled_at < trigger.anchor:  # a person wants it now, and the schedule goes on unchanged
        following = trigger.anchor if trigger.anchor > now else schedule.after(trigger.anchor, now)
        return _firing(trigger, settings, trigger.scheduled_at, following, level)
    return _scheduled(trigger, settings, schedule, level, now)


def _scheduled(
    trigger: DueTrigger, settings: TaskSettings, schedule: Schedule, level: int, now: int
) -> Firing:
    due, following = trigger.anchor, schedule.after(trigger.anchor, trigger.anchor)
    if settings.misfire == "run_all":
        return _firing(trigger, settings, due, following, level)
    if settings.misfire == "skip" and (following <= now or now - trigger.scheduled_at > MISSED_AFTER_MS):
        return _firing(trigger, settings, None, schedule.after(due, now), level)
    if following <= now:
        due, following = schedule.last(due, now), schedule.after(due, now)
    return _firing(trigger, settings, due, following, level)


def _firing(
    trigger: DueTrigger, settings: TaskSettings, due: int | None, following: int, level: int
) -> Firing:
    return Firing(
        trigger=trigger,
        message=None if due is None else _message(trigger, due, level),
        next_at=following + jitter_ms(settings, trigger.user_key, following),
        next_anchor=following,
    )


def _message(trigger: DueTrigger, due: int, level: int) -> Message:
    ids = {"device_id": trigger.device_id, "agent_id": trigger.agent_id}
    return Message(
        user_id=trigger.user_id or SYSTEM_USER,
        label=trigger.task_type,
        item_id=_run_id(trigger, due),
        info={name: value for name, value in ids.items() if value is not None} or None,
        level=level,
        user_key=trigger.user_key,
    )


def _run_id(trigger: DueTrigger, due: int) -> str:
    """The id of the run at a due time. It is always the same: a due time cannot be fired twice."""
    own = f"{trigger.task_type}:{trigger.user_key}" if trigger.user_key else trigger.task_type
    text = f"{own}:{due}"
    if len(text.encode()) > LONGEST_ID:
        text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    last = trigger.last_item_id or ""  # equal if a person asks for two runs within a millisecond
    return f"{last}+" if last.rstrip("+") == text else text


def jitter_ms(settings: TaskSettings, user_key: str, due: int) -> int:
    """Milliseconds to add to a due time: seemingly random, but the same in all processes."""
    if not settings.jitter:
        return 0
    digest = hashlib.blake2b(f"{user_key}:{due}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (round(settings.jitter * 1000) + 1)
