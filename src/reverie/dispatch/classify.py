"""Classify a failure by the error that a handler raised.

The type of the error decides: first Reverie's own errors (`reverie.failures`), then an HTTP status and the
provider's error code, then the error's class and its causes. No provider's library is imported, because
providers are recognised by the shape of their errors. Words in a message count only if nothing else decides,
and never for Python's own errors.
"""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from reverie.errors import BackendUnavailableError, ReverieError, WaitTimeoutError
from reverie.failures import FailureKind, WorkError

__all__ = ["Failure", "classify"]

LONGEST_RETRY_AFTER_S = 24 * 3600.0
"""A provider that asks for more than a day is asked again after a day."""
DEEPEST_CAUSE = 10
"""The most causes of an error, and the most errors of a group, that are examined."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed."""

    kind: FailureKind
    cause: str
    """The class name of the error, or a word in its place."""
    retry_after_s: float | None = None
    credential: str | None = None
    """The credential that the error itself names."""


STATUS_KINDS = {
    **dict.fromkeys((400, 404, 405, 410, 413, 415, 422), FailureKind.INVALID),
    **dict.fromkeys((408, 409, 425), FailureKind.TRANSIENT),
    **dict.fromkeys((401, 403), FailureKind.CREDENTIALS),
    402: FailureKind.QUOTA,
    429: FailureKind.RATE_LIMITED,
}
"""HTTP status → class. Any 5xx is transient. Any other 4xx is a bug, because the request was wrong."""

CODE_KINDS = {
    **dict.fromkeys(
        (
            "insufficient_quota",
            "quota_exceeded",
            "billing_error",
            "billing_not_active",
            "billing_hard_limit_reached",
            "insufficient_balance",
        ),
        FailureKind.QUOTA,
    ),
    **dict.fromkeys(("invalid_api_key", "authentication_error", "permission_error"), FailureKind.CREDENTIALS),
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error"), FailureKind.RATE_LIMITED),
    **dict.fromkeys(("overloaded_error", "server_error", "api_error"), FailureKind.TRANSIENT),
}
"""A provider's error code → class, for errors without a listed status. A quota code decides for any 4xx."""

NAME_KINDS = {
    # A client's own mistake is a bug, though some libraries derive its class from a network error.
    **dict.fromkeys(("UnsupportedProtocol", "LocalProtocolError", "InvalidURL"), FailureKind.BUG),
    **dict.fromkeys(
        (
            "TransportError",
            "NetworkError",
            "TimeoutException",
            "APIConnectionError",
            "APITimeoutError",
            "ConnectionError",
            "ConnectionTimeout",
            "ConnectTimeout",
            "ReadTimeout",
            "Timeout",
            "TimeoutError",
            "ClientConnectionError",
            "ServerTimeoutError",
            "ServerDisconnectedError",
            "ProtocolError",
            "IncompleteRead",
            "RemoteDisconnected",
        ),
        FailureKind.TRANSIENT,
    ),
}
"""Name of a library's error class → class of failure. Base classes count too, the nearest first."""

NETWORK_ERRNOS = {
    getattr(errno, name)
    for name in [
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENOTCONN",
        "EPIPE",
        "ESHUTDOWN",
        "ETIMEDOUT",
        "EADDRNOTAVAIL",
    ]
    if hasattr(errno, name)
}
BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    NotImplementedError,
    OSError,
    RecursionError,
    ReverieError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Python's own errors and Reverie's: their messages say nothing about a provider."""

WORDS = (
    (FailureKind.QUOTA, r"insufficient.quota|exceeded your current quota|quota (is )?(exceeded|exhausted)"),
    (FailureKind.CREDENTIALS, r"(invalid|incorrect|expired) api.key|unauthori[sz]ed|authentication failed"),
    (FailureKind.RATE_LIMITED, r"rate.?limit|too many requests|\b429\b|throttl|retry after"),
    (FailureKind.TRANSIENT, r"timed? ?out|connection (was )?(reset|refused|aborted|closed|error)"),
    (FailureKind.TRANSIENT, r"(temporarily|service) unavailable|bad gateway|overloaded"),
)
SEVERITY = (
    FailureKind.QUOTA,
    FailureKind.CREDENTIALS,
    FailureKind.BUDGET,
    FailureKind.RATE_LIMITED,
    FailureKind.TRANSIENT,
    FailureKind.BUG,
    FailureKind.INVALID,
)
"""The error that decides for a group is the first in this order: failures that concern other messages come
first, and `INVALID`, which buries the message, comes last."""


def classify(error: BaseException, now: datetime | None = None) -> Failure:
    """Classify any error. Never raises. Dates in the error's headers are compared with `now`."""
    now = now or datetime.now(UTC)
    for cause in _causes(error):
        failure = _typed(cause, now)
        if failure is not None:
            return msgspec.structs.replace(failure, cause=type(error).__name__)
    return Failure(kind=_kind_by_words(error), cause=type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and then its chain of causes."""
    cause: BaseException | None = error
    for _ in range(DEEPEST_CAUSE):
        if cause is None:
            return
        yield cause
        reason = _get(cause, "reason")  # urllib keeps the wrapped error here
        cause = cause.__cause__ or (reason if isinstance(reason, BaseException) else None)


def _members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors of a group and of the groups in it, at most `DEEPEST_CAUSE`."""
    members: list[BaseException] = []
    groups = [group]
    for one in groups:
        groups += [inner for inner in one.exceptions if isinstance(inner, BaseExceptionGroup)]
        members += [inner for inner in one.exceptions if not isinstance(inner, BaseExceptionGroup)]
        if len(members) >= DEEPEST_CAUSE:
            break
    return members[:DEEPEST_CAUSE]


def _typed(error: BaseException, now: datetime) -> Failure | None:
    """The failure by the type and the attributes of an error; None if they do not decide."""
    name = type(error).__name__
    if isinstance(error, WorkError):
        return Failure(
            kind=error.kind,
            cause=name,
            retry_after_s=_seconds(error.retry_after),
            credential=error.credential if isinstance(error.credential, str) else None,
        )
    if isinstance(error, BaseExceptionGroup):
        inner = [classify(one, now) for one in _members(error)]
        return min(inner, key=lambda failure: SEVERITY.index(failure.kind), default=None)
    if not isinstance(error, Exception):
        return None  # SystemExit has an attribute `code`, too
    kind = _kind_by_answer(error) or _kind_by_type(error)
    return None if kind is None else Failure(kind=kind, cause=name, retry_after_s=_retry_after(error, now))


def _kind_by_answer(error: Exception) -> FailureKind | None:
    """The class by the status and the error codes that the provider answered."""
    status = _status(error)
    by_code = next((CODE_KINDS[code] for code in _codes(error) if code in CODE_KINDS), None)
    if status is None:
        return by_code
    if status >= 500:
        return FailureKind.TRANSIENT
    if by_code is FailureKind.QUOTA:
        return by_code
    return STATUS_KINDS.get(status) or by_code or FailureKind.BUG


def _kind_by_type(error: Exception) -> FailureKind | None:
    if isinstance(error, (TimeoutError, ConnectionError, BackendUnavailableError, WaitTimeoutError)):
        return FailureKind.TRANSIENT
    if isinstance(error, ssl.SSLCertVerificationError):
        return FailureKind.BUG
    if isinstance(error, (socket.gaierror, socket.herror, ssl.SSLError)):
        return FailureKind.TRANSIENT
    if isinstance(error, OSError) and error.errno in NETWORK_ERRNOS:
        return FailureKind.TRANSIENT
    for base in type(error).__mro__:
        if base.__module__ != "builtins" and base.__name__ in NAME_KINDS:
            return NAME_KINDS[base.__name__]
    return None


def _kind_by_words(error: BaseException) -> FailureKind:
    if isinstance(error, BUGS) or not isinstance(error, Exception):
        return FailureKind.BUG
    try:
        text = str(error).lower()
    except Exception:  # noqa: BLE001  an error whose `__str__` fails
        return FailureKind.BUG
    return next((kind for kind, words in WORDS if re.search(words, text)), FailureKind.BUG)


def _status(error: Exception) -> int | None:
    """The HTTP status, from the attributes in which libraries keep it."""
    response = _get(error, "response")
    places = ((error, "status_code"), (response, "status_code"), (error, "status"), (error, "code"))
    for holder, name in places:
        status = _get(holder, name)
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return int(status)
    return None


def _codes(error: Exception) -> Iterator[str]:
    """Yield the provider's own error codes, from the error or from the body of the answer."""
    body = _get(error, "body")
    inner = body.get("error") if isinstance(body, Mapping) else None
    for holder in (error, _get(error, "error"), body, inner):
        for name in ("code", "type"):
            code = holder.get(name) if isinstance(holder, Mapping) else _get(holder, name)
            if isinstance(code, str):
                yield code.lower()


def _retry_after(error: Exception, now: datetime) -> float | None:
    """The seconds that the provider asked us to wait."""
    headers = _headers(_get(_get(error, "response"), "headers")) or _headers(_get(error, "headers"))
    precise = _seconds(headers.get("retry-after-ms"), unit=0.001)
    if precise is not None:
        return precise
    for value in (headers.get("retry-after"), _get(error, "retry_after")):
        seconds = _seconds(value)
        if seconds is None and isinstance(value, str):
            seconds = _until(value, now)
        if seconds is not None:
            return seconds
    return None


def _headers(headers: Any) -> dict[str, Any]:
    """Headers by lower-case name, from any kind of mapping."""
    try:
        return {str(name).lower(): value for name, value in headers.items()}
    except Exception:  # noqa: BLE001  not a mapping: no headers
        return {}


def _seconds(value: Any, unit: float = 1.0) -> float | None:
    """A value as seconds, between 0 and `LONGEST_RETRY_AFTER_S`; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value) * unit
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)


def _until(date: str, now: datetime) -> float | None:
    """Seconds from now until an HTTP date."""
    try:
        moment = parsedate_to_datetime(date)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return _seconds((moment - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _get(holder: Any, name: str) -> Any:
    """An attribute; None if it is missing or cannot be read."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a property of a foreign class that fails
        return None
