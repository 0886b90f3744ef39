"""Carrying out a person's commands: cancel, requeue, delete, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reverie.backends.control import CancelItems, ControlResult, DeleteItems, PauseLabel, RequeueItems
from reverie.backends.moves import Status
from reverie.backends.sqlite.attempts import forget_attempts
from reverie.backends.sqlite.rows import load_statements, status_of, to_json
from reverie.backends.wakeup import CANCELLED
from reverie.message import Key

if TYPE_CHECKING:
    import apsw

    from reverie.backends.control import Command, Selection
    from reverie.backends.sqlite.step import Step

__all__ = ["control"]

SQL = load_statements("control.sql")


class _Row(NamedTuple):
    """The columns of a message that commands need."""

    row: int
    user_id: str
    item_id: str
    lane: int
    status: str
    error: str | None
    label: str

    @property
    def key(self) -> Key:
        return Key(self.user_id, self.item_id)


def control(step: Step, command: Command) -> ControlResult:
    """Carry out a command."""
    if isinstance(command, CancelItems):
        result = _cancel(step, command.which)
    elif isinstance(command, RequeueItems):
        result = _requeue(step, command.which)
    elif isinstance(command, DeleteItems):
        result = _delete(step, command.which)
    elif isinstance(command, PauseLabel):
        step.rows(SQL["pause"], (command.label, command.reason))
        result = ControlResult()
    else:
        step.rows(SQL["resume"], (command.label,))
        step.woken.add(command.label)
        result = ControlResult()
    step.finish()
    return result


def _choose(
    step: Step, which: Selection, *statuses: str, without_cancelled: bool = False
) -> tuple[list[_Row], bool]:
    name = "by_ids" if which.item_ids is not None else "of_user" if which.user_id is not None else "of_anyone"
    bindings = {
        "user_id": which.user_id,
        "item_ids": to_json(which.item_ids),
        "task_id": which.task_id,
        "project_id": which.mem_cube_id,
        "label": which.label,
        "statuses": to_json(statuses),
        "without_cancelled": without_cancelled,
        "limit": which.limit + 1,
    }
    rows = [_Row(*row) for row in step.rows(SQL[name], bindings)]
    return rows[: which.limit], len(rows) > which.limit


def _cancel(step: Step, which: Selection) -> ControlResult:
    chosen, more = _choose(step, which, "pending", "processing")
    changed, requested = [], []
    for item in chosen:
        if item.status == "processing":
            step.rows(SQL["request_cancel"], (item.row, step.now))
            requested.append(item.key)
        else:
            step.end_waiting(item.row, item.user_id, item.item_id, item.lane, "cancelled")
            changed.append(item.key)
    if requested:
        step.woken.add(CANCELLED)
    return ControlResult(changed=changed, requested=requested, more=more)


def _requeue(step: Step, which: Selection) -> ControlResult:
    chosen, more = _choose(step, which, "failed")
    places = step.take_places(len(chosen)) if chosen else range(0)
    step.many(SQL["add_lane"], [(item.row,) for item in chosen])
    for item, place in zip(chosen, places, strict=True):
        ((lane,),) = step.rows(SQL["requeue"], (item.row, place, step.now))
        step.lane(lane).depth += 1
        step.counts.move(item.label, status_of(item.status, item.error), Status.WAITING)
    return ControlResult(changed=[item.key for item in chosen], more=more)


def _delete(step: Step, which: Selection) -> ControlResult:
    chosen, more = _choose(step, which, "failed", without_cancelled=True)
    step.many(SQL["delete"], [(item.row,) for item in chosen])
    step.many(SQL["delete_memos"], [item.key for item in chosen])
    forget_attempts(step, [item.key for item in chosen])
    for item in chosen:
        step.counts.move(item.label, status_of(item.status, item.error), None)
    return ControlResult(changed=[item.key for item in chosen], more=more)


def blank_turn(connection: apsw.Connection, user_id: str, item_id: str, turn: int) -> None:
    """Remove the words of one turn from a message that waits, runs or has ended: its memory was deleted."""
    connection.execute(SQL["blank_turn"], {"user_id": user_id, "id": item_id, "turn": turn})
