"""What can go wrong in a hook: one table of the classes of errors, and what follows from each.

No class blocks the agent: a hook ends with exit code 0, and at most leaves its context out. Errors are
written to the log of hooks. `reverie doctor`, and a notice in the next session, tell those that a person must
know of. Only the standard library.
"""

from __future__ import annotations

__all__ = ["TABLE", "ErrorClass", "class_of", "class_of_status"]


class ErrorClass:
    """A row of the table."""

    __slots__ = ("agent_sees", "failure", "is_noticed", "log_level", "name", "when")

    def __init__(
        self, name: str, when: str, agent_sees: str, log_level: str, failure: str, *, is_noticed: bool
    ) -> None:
        """`failure` is the class of `reverie.failures.FailureKind`; `is_noticed`: a person is told."""
        self.name = name
        self.when = when
        self.agent_sees = agent_sees
        self.log_level = log_level
        self.failure = failure
        self.is_noticed = is_noticed


NOTHING = "nothing: it goes on, without context"
TRANSPORT = ErrorClass(
    "transport", "connection refused, or host or socket not found", NOTHING, "warning", "transient",
    is_noticed=False,
)  # fmt: skip
CLIENT = ErrorClass(
    "client", "an answer 4xx other than 408 and 429, or a call of the hook that cannot be right",
    "nothing now; a notice in the next session", "error", "invalid",
    is_noticed=True,
)  # fmt: skip
SERVER = ErrorClass(
    "server", "an answer 5xx or 429, or an answer that no worker of this version gives", NOTHING, "error",
    "transient",
    is_noticed=False,
)  # fmt: skip
TIMEOUT = ErrorClass(
    "timeout", "no answer in time, or an answer 408", NOTHING, "warning", "transient", is_noticed=False
)
UNKNOWN = ErrorClass(
    "unknown", "anything else", "nothing now; a notice in the next session", "error", "bug", is_noticed=True
)
TABLE = {row.name: row for row in (TRANSPORT, CLIENT, SERVER, TIMEOUT, UNKNOWN)}
"""The classes by name."""
ERRORS = {
    "AnswerError": SERVER,
    "BadCallError": CLIENT,
    "BrokenPipeError": TRANSPORT,
    "ConnectionAbortedError": TRANSPORT,
    "ConnectionRefusedError": TRANSPORT,
    "ConnectionResetError": TRANSPORT,
    "FileNotFoundError": TRANSPORT,
    "TimeoutError": TIMEOUT,
    "BlockingIOError": TIMEOUT,
    "gaierror": TRANSPORT,
}
"""Errors by the name of their type, so that no type must be imported to know it."""


def class_of(error: BaseException) -> ErrorClass:
    """The class of an error, by its status if it has one, else by its type."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return class_of_status(status)
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS:
            return ERRORS[kind.__name__]
    return UNKNOWN


def class_of_status(status: int) -> ErrorClass:
    """The class of an answer with this HTTP status."""
    if status == 408:
        return TIMEOUT
    if status == 429 or status >= 500:
        return SERVER
    return CLIENT if status >= 400 else UNKNOWN
