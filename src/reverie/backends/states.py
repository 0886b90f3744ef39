"""The states of a message, the moves between them, and their names elsewhere."""

from __future__ import annotations

from enum import StrEnum

from reverie.backends.moves import Status

__all__ = ["STORED_AS", "TIMED_TASK", "TRANSITIONS", "Cause"]


class Cause(StrEnum):
    """The reasons for a change of status."""

    SUBMIT = "submit"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    """A run failed, and there are attempts left."""
    RELEASE = "release"
    """The message was handed back, and no attempt is used."""
    LOSE = "lose"
    """The claim ended without an outcome, and there are losses left."""
    BURY = "bury"
    """A run failed for good."""
    LOSE_LAST = "lose_last"
    CANCEL = "cancel"
    DEADLINE = "deadline"
    PARENT_FAILS = "parent_fails"
    REQUEUE = "requeue"
    DELETE = "delete"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[Status | None, Cause], Status | None] = {
    (None, Cause.SUBMIT): Status.WAITING,
    (Status.WAITING, Cause.CLAIM): Status.IN_PROGRESS,
    (Status.WAITING, Cause.CANCEL): Status.CANCELLED,
    (Status.WAITING, Cause.DEADLINE): Status.FAILED,
    (Status.WAITING, Cause.PARENT_FAILS): Status.FAILED,
    (Status.IN_PROGRESS, Cause.COMPLETE): Status.COMPLETED,
    (Status.IN_PROGRESS, Cause.RETRY): Status.WAITING,
    (Status.IN_PROGRESS, Cause.RELEASE): Status.WAITING,
    (Status.IN_PROGRESS, Cause.LOSE): Status.WAITING,
    (Status.IN_PROGRESS, Cause.BURY): Status.FAILED,
    (Status.IN_PROGRESS, Cause.LOSE_LAST): Status.FAILED,
    (Status.IN_PROGRESS, Cause.CANCEL): Status.CANCELLED,
    (Status.FAILED, Cause.REQUEUE): Status.WAITING,
    (Status.FAILED, Cause.DELETE): None,
    (Status.CANCELLED, Cause.REQUEUE): Status.WAITING,
    (Status.CANCELLED, Cause.EXPIRE): None,
    (Status.COMPLETED, Cause.EXPIRE): None,
}
"""Every change of status; None is an unknown message. A pair that is missing here changes nothing."""

STORED_AS: dict[Status, str] = {
    Status.WAITING: "pending",
    Status.IN_PROGRESS: "processing",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
"""Status → its name in the table `pending_messages`, where a cancelled one has the error `cancelled`."""

TIMED_TASK: dict[Status, str] = {
    Status.WAITING: "pending",
    Status.IN_PROGRESS: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
"""Status → its name for the run of a trigger."""
