"""The states of a message: which follows from which, and what each is called elsewhere."""

from __future__ import annotations

from enum import StrEnum

from reverie.backends.moves import Status

__all__ = ["STORED_AS", "TIMED_TASK", "TRANSITIONS", "Cause"]


class Cause(StrEnum):
    """What can happen to a message."""

    SUBMIT = "submit"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    """A run failed, and there are attempts left."""
    RELEASE = "release"
    """Handed back, no attempt used."""
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
    (Status.CANCELLED, Cause.DELETE): None,
    (Status.CANCELLED, Cause.EXPIRE): None,
    (Status.COMPLETED, Cause.EXPIRE): None,
}
"""Every move there is; None is a message that nobody knows. What is not here leaves the state as it is."""

STORED_AS: dict[Status, str] = {
    Status.WAITING: "pending",
    Status.IN_PROGRESS: "processing",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
"""In the table `pending_messages`; a cancelled message has the error `cancelled` there."""

TIMED_TASK: dict[Status, str] = {
    Status.WAITING: "pending",
    Status.IN_PROGRESS: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
"""As a run of a trigger."""
