"""The classes of failure, and an error for each that a handler can raise.

Most handlers need none of these errors: the errors of HTTP clients and model providers are recognised by
their types (`reverie.dispatch.classify`). `docs/failures.md` says what follows from each class.
"""

from __future__ import annotations

from enum import StrEnum

from reverie.errors import ReverieError

__all__ = [
    "ERRORS",
    "BudgetError",
    "CredentialsError",
    "FailureKind",
    "InvalidWorkError",
    "QuotaError",
    "RateLimitedError",
    "TransientError",
    "WorkError",
    "without_traceback",
]


TREE = " |+-"
"""What stands before and after the lines of a group of exceptions."""


class FailureKind(StrEnum):
    """The classes of failure."""

    TRANSIENT = "transient"
    """The other side, or the way to it, is in trouble: retried after a backoff."""
    RATE_LIMITED = "rate_limited"
    """Too many calls: handed back for at least two seconds or a Retry-After, no attempt is used."""
    QUOTA = "quota"
    """The credential is used up: its label is paused, no attempt is used."""
    CREDENTIALS = "credentials"
    """The credential is refused: its label is paused, no attempt is used."""
    BUDGET = "budget"
    """A tenant's own budget is spent: only its lane waits, no attempt is used."""
    INVALID = "invalid"
    """The work itself is refused and always will be: buried at once."""
    BUG = "bug"
    """Anything else: retried after a backoff, with an alert."""


class WorkError(ReverieError):
    """A run failed."""

    kind = FailureKind.BUG

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after: float | None = None,
        credential: str | None = None,
    ) -> None:
        """Say what is wrong; `retry_after` is in seconds from now."""
        self.retry_after, self.credential = retry_after, credential
        super().__init__(message)


class TransientError(WorkError):
    """The other side is in trouble; it is tried again after a backoff."""

    kind = FailureKind.TRANSIENT


class RateLimitedError(WorkError):
    """Too many calls; the message is handed back for `retry_after` seconds and no attempt is used."""

    kind = FailureKind.RATE_LIMITED


class QuotaError(WorkError):
    """The quota of a credential is used up; its label is paused and no attempt is used.

    `credential` is the name of the credential, not the secret; default: the one of the handler.
    """

    kind = FailureKind.QUOTA


class CredentialsError(WorkError):
    """A credential is refused; its label is paused and no attempt is used.

    `credential` is as in `QuotaError`.
    """

    kind = FailureKind.CREDENTIALS


class BudgetError(WorkError):
    """A tenant's own budget is spent; its lane waits `retry_after` seconds and no attempt is used."""

    kind = FailureKind.BUDGET


class InvalidWorkError(WorkError):
    """No retry will help: the message is buried at once."""

    kind = FailureKind.INVALID


ERRORS: dict[FailureKind, type[WorkError]] = {
    error.kind: error
    for error in (
        TransientError,
        RateLimitedError,
        QuotaError,
        CredentialsError,
        BudgetError,
        InvalidWorkError,
        WorkError,
    )
}
"""Class of failure → the error that a handler raises for it."""


def without_traceback(error: str) -> str:
    """The last line of an error, which has its kind and message: a traceback names files of the server."""
    if "\n" not in error:
        return error
    lines = (line.strip(TREE) for line in reversed(error.splitlines()))
    return next((line for line in lines if line), "")
