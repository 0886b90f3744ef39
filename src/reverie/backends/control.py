"""The commands that a person can give to a queue: cancel, requeue, delete, pause, resume."""

from __future__ import annotations

import msgspec

from reverie.message import Key

__all__ = [
    "CancelItems",
    "Command",
    "ControlResult",
    "DeleteItems",
    "PauseLabel",
    "RequeueItems",
    "ResumeLabel",
    "Selection",
]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which items a command is about: those that match every field that is given."""

    user_id: str | None = None
    item_ids: tuple[str, ...] | None = None
    """Item ids of this user."""
    task_id: str | None = None
    mem_cube_id: str | None = None
    label: str | None = None
    limit: int = 1000
    """The most items in one step; the answer says if there are more."""


class CancelItems(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel messages. A waiting one ends at once; the handler of a running one sees `ctx.cancelled`.

    Running messages that were asked to stop before are left out, unless their ids are given.
    """

    which: Selection


class RequeueItems(msgspec.Struct, frozen=True, tag="requeue"):
    """Let failed or cancelled messages wait again, at the end of their lanes, as if they were new.

    Messages that failed because they depended on one of these stay failed.
    """

    which: Selection


class DeleteItems(msgspec.Struct, frozen=True, tag="delete"):
    """Delete dead letters: failed messages, but no cancelled ones, whose status goes by itself."""

    which: Selection


class PauseLabel(msgspec.Struct, frozen=True, tag="pause"):
    """Stop claims of a label. Running messages go on, new messages are kept."""

    label: str
    reason: str = "paused"


class ResumeLabel(msgspec.Struct, frozen=True, tag="resume"):
    """Allow claims of a label again."""

    label: str


Command = CancelItems | RequeueItems | DeleteItems | PauseLabel | ResumeLabel


class ControlResult(msgspec.Struct, frozen=True, kw_only=True):
    """The items that a command has changed."""

    changed: list[Key] = []
    requested: list[Key] = []
    """For a cancel: running items that were asked to stop."""
    more: bool = False
    """Whether the limit was reached and there is more to change."""
