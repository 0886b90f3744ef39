"""Doing what time has made due: deadlines, due messages, rests of lanes, lost claims, retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.backends.moves import Advance, EndedMessage, Status
from reverie.backends.sqlite.attempts import forget_attempts, note_run
from reverie.backends.sqlite.rows import load_statements, message_from_row, status_of
from reverie.backends.trigger_state import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.sqlite.step import Step
    from reverie.message import Message

__all__ = ["advance", "fail_overdue", "lose"]

SQL = load_statements("advance.sql")


def advance(step: Step, limit: int) -> Advance:
    """Do everything that time has made due, at most `limit` of each kind."""
    window: dict[str, Any] = {"now": step.now, "limit": limit}
    overdue = fail_overdue(step, limit)
    due = step.rows(SQL["due_messages"], window)
    if due:
        for place, (row,) in zip(step.take_places(len(due)), due, strict=True):
            for (lane,) in step.rows(SQL["stage"], {"row": row, "place": place, "now": step.now}):
                step.lane(lane)
    rested = step.rows(SQL["end_rests"], window)
    for (lane,) in rested:
        step.lane(lane)
    reaped = step.rows(SQL["lost_claims"], window)
    buried = []
    for *identity, lane in reaped:
        lost = lose(step, identity, lane)
        if lost is not None and lost[0].ended:
            buried.append(EndedMessage(*lost[1:]))
    step.finish()
    expired, dead = step.rows(SQL["expire"], window), _expire_dead(step, limit)
    expired += dead
    for _, _, label, stored, error in expired:
        step.counts.move(label, status_of(stored, error), None)
    forget_attempts(step, [row[:2] for row in expired])
    step.rows(SQL["forget_workers"], {"now": step.now})
    step.rows(SQL["forget_arrivals"], {"now": step.now})
    ((next_due,),) = step.rows(SQL["next_due"], {"dead_retention": step.limits.dead_retention_ms})
    return Advance(
        staged=len(due) + len(rested),
        reaped=len(reaped),
        expired=len(expired),
        ended=[*overdue, *buried],
        next_due=next_due,
        more=limit in (len(overdue), len(due), len(rested), len(reaped), len(expired) - len(dead), len(dead)),
    )


def _expire_dead(step: Step, limit: int) -> list[tuple[Any, ...]]:
    """Remove the dead letters whose retention is over, if they have one, with their memos."""
    kept_ms = step.limits.dead_retention_ms
    if kept_ms is None:
        return []
    bindings = {"now": step.now, "dead_retention": kept_ms, "limit": limit}
    dead = step.rows(SQL["expire_dead"], bindings)
    step.many(SQL["forget_memos"], [row[:2] for row in dead])
    return dead


def fail_overdue(step: Step, limit: int) -> list[EndedMessage]:
    """Fail messages that were not started before their deadline. The caller finishes the step."""
    messages = []
    for row, lane, submitted_at, *columns in step.rows(SQL["overdue"], {"now": step.now, "limit": limit}):
        message = message_from_row(columns)
        step.end_waiting(row, message.user_id, message.item_id, lane, "deadline")
        messages.append(EndedMessage(message, submitted_at))
    return messages


def lose(step: Step, identity: Sequence[Any], lane: int) -> tuple[Status, Message, int] | None:
    """Count a claim that ended without an outcome as a loss; None if the claim is no longer valid.

    The answer is the new status, the message, and when it was accepted. The caller finishes the step.
    """
    note_run(step, identity, "lost")
    expires = step.now + step.limits.retention_ms
    names = ("row", "user_id", "id", "claim_id")
    bindings = dict(zip(names, identity, strict=True)) | {
        "max_losses": step.limits.max_losses,
        "now": step.now,
        "expires": expires,
    }
    rows = step.rows(SQL["lose"], bindings)
    if not rows:
        return None
    stored, error, submitted_at, *columns = rows[0]
    status, message = status_of(stored, error), message_from_row(columns)
    change = step.lane(lane)
    change.release(0)
    step.counts.move(message.label, Status.IN_PROGRESS, status)
    if status.ended:
        change.depth -= 1
        step.ended.append((message.user_id, message.item_id, status))
        if message.user_key is not None:
            run = Run(message.label, message.user_key, message.item_id, status, message.attempts, error)
            step.runs.append(run)
        step.expect(expires)
    return status, message, submitted_at
