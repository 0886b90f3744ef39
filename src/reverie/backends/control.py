"""What a person can ask of a queue: cancel, requeue, delete, pause, resume."""

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
    """Which items: all that fit everything that is given."""

    user_id: str | None = None
    item_ids: tuple[str, ...] | None = None
    """Ids of this user."""
    task_id: str | None = None
    mem_cube_id: str | None = None
    label: str | None = None
    limit: int = 1000
    """At most so many in one step; the answer says if there are more."""


class CancelItems(msgspec.Struct, frozen=True, tag="cancel"):
    """What waits ends as cancelled. What runs is asked to stop: its handler sees `ctx.cancelled`.

    What was asked to stop before is left out, unless its id is given.
    """

    which: Selection


class RequeueItems(msgspec.Struct, frozen=True, tag="requeue"):
    """What has failed or was cancelled waits again, at the end of its lane, as if it were new.

    What depended on it stays as it ended.
    """

    which: Selection


class DeleteItems(msgspec.Struct, frozen=True, tag="delete"):
    """What has failed or was cancelled is forgotten."""

    which: Selection


class PauseLabel(msgspec.Struct, frozen=True, tag="pause"):
    """Nothing of this label is claimed any more; what runs goes on, what comes is kept."""

    label: str
    reason: str = "paused"


class ResumeLabel(msgspec.Struct, frozen=True, tag="resume"):
    """Work of this label is claimed again."""

    label: str


Command = CancelItems | RequeueItems | DeleteItems | PauseLabel | ResumeLabel


class ControlResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has changed."""

    changed: list[Key] = []
    requested: list[Key] = []
    """With a cancel: those that run and were asked to stop."""
    more: bool = False
    """Whether the limit was reached and there is more to change."""
