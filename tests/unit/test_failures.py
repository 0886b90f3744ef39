"""The class of a failure, read from the errors that real clients raise."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message as Headers
from email.utils import format_datetime

import httpx
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import (
    BudgetError,
    CredentialsError,
    InvalidWorkError,
    QuotaError,
    RateLimitedError,
    TransientError,
)
from reverie.dispatch.classify import LONGEST_RETRY_AFTER_S, STATUS_KINDS, classify
from reverie.errors import BackendUnavailableError, InvalidMessageError, WaitTimeoutError
from reverie.failures import FailureKind

NOW = datetime(2026, 11, 5, 12, 0, 0, tzinfo=UTC)
REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")
OPENAI_REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")


def http_error(status: int, headers: dict | None = None) -> httpx.HTTPStatusError:
    """What httpx raises for an answer."""
    response = httpx.Response(status, headers=headers, request=REQUEST)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


def openai_error(status: int, headers: dict | None = None, **error) -> openai.APIStatusError:
    """What the openai client raises for an answer, made by the client itself."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            status, headers=headers, content=json.dumps({"error": error or {"message": "?"}})
        )

    transport = httpx2.MockTransport(answer)
    with (
        openai.OpenAI(
            api_key="none",
            base_url="http://127.0.0.1/v1",
            max_retries=0,
            http_client=httpx2.Client(transport=transport),
        ) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        client.models.list()
    return caught.value


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class LooksLikeAnthropic(Exception):  # noqa: N818
    def __init__(self, status_code: int, kind: str) -> None:
        super().__init__("refused")
        self.status_code = status_code
        self.body = {"type": "error", "error": {"type": kind, "message": "refused"}}


class LooksLikeAiohttp(Exception):  # noqa: N818
    def __init__(self, status: int, headers: dict) -> None:
        super().__init__("refused")
        self.status, self.headers = status, headers


class LooksLikeRequests(OSError):  # noqa: N818
    class Response:
        status_code = 503
        headers = {"Retry-After": "4"}  # noqa: RUF012

        def __bool__(self) -> bool:
            return False  # as that of requests for all that is not ok

    response = Response()


TABLE = [
    # statuses
    *[(http_error(status), kind) for status, kind in STATUS_KINDS.items()],
    *[(http_error(status), "transient") for status in (500, 502, 503, 504, 529)],
    (http_error(418), "bug"),
    # openai
    (openai_error(400, code="context_length_exceeded"), "invalid"),
    (openai_error(401, code="invalid_api_key"), "credentials"),
    (openai_error(403), "credentials"),
    (openai_error(404, code="model_not_found"), "invalid"),
    (openai_error(409), "transient"),
    (openai_error(422), "invalid"),
    (openai_error(429, code="rate_limit_exceeded"), "rate_limited"),
    (openai_error(429), "rate_limited"),
    (openai_error(429, code="insufficient_quota", type="insufficient_quota"), "quota"),
    (openai_error(403, code="billing_not_active"), "quota"),
    (openai_error(500), "transient"),
    (openai_error(503, code="insufficient_quota"), "transient"),
    (openai.APIConnectionError(request=OPENAI_REQUEST), "transient"),
    (openai.APITimeoutError(OPENAI_REQUEST), "transient"),
    # other clients
    (LooksLikeAnthropic(529, "overloaded_error"), "transient"),
    (LooksLikeAnthropic(429, "rate_limit_error"), "rate_limited"),
    (LooksLikeAnthropic(402, "billing_error"), "quota"),
    (LooksLikeAnthropic(401, "authentication_error"), "credentials"),
    (LooksLikeAiohttp(429, {}), "rate_limited"),
    (LooksLikeRequests("refused"), "transient"),
    (urllib.error.HTTPError("http://x", 429, "no", Headers(), None), "rate_limited"),
    (urllib.error.URLError(ConnectionRefusedError()), "transient"),
    (urllib.error.URLError("unknown url type"), "bug"),
    # the network
    (httpx.ConnectError("refused", request=REQUEST), "transient"),
    (httpx.ReadTimeout("slow", request=REQUEST), "transient"),
    (httpx.RemoteProtocolError("cut off", request=REQUEST), "transient"),
    (httpx.UnsupportedProtocol("htp://", request=REQUEST), "bug"),
    (httpx.InvalidURL("no"), "bug"),
    (httpx2.ConnectError("refused"), "transient"),
    (TimeoutError(), "transient"),
    (TimeoutError(), "transient"),
    (ConnectionResetError(), "transient"),
    (BrokenPipeError(), "transient"),
    (OSError(errno.ENETUNREACH, "no way"), "transient"),
    (socket.gaierror(-2, "unknown name"), "transient"),
    (ssl.SSLError("handshake"), "transient"),
    (ssl.SSLCertVerificationError("expired"), "bug"),
    (OSError(errno.ENOSPC, "no space: timed out"), "bug"),
    (FileNotFoundError("connection refused"), "bug"),
    (PermissionError("unauthorized"), "bug"),
    # our own
    (BackendUnavailableError(), "transient"),
    (WaitTimeoutError("1", "waiting", 1), "transient"),
    (InvalidMessageError("label", "", "rate limit"), "bug"),
    (TransientError(), "transient"),
    (RateLimitedError(retry_after=1), "rate_limited"),
    (QuotaError(), "quota"),
    (CredentialsError(), "credentials"),
    (BudgetError(retry_after=1), "budget"),
    (InvalidWorkError("no"), "invalid"),
    # causes
    (raised_from(RuntimeError("could not summarise"), openai_error(429)), "rate_limited"),
    (raised_from(ValueError("no answer"), httpx.ReadTimeout("slow")), "transient"),
    (raised_from(RuntimeError(), raised_from(RuntimeError(), QuotaError())), "quota"),
    (raised_from(InvalidWorkError("mine"), QuotaError()), "invalid"),
    (ExceptionGroup("two", [ValueError(), http_error(429)]), "rate_limited"),
    (ExceptionGroup("two", [InvalidWorkError("no"), ExceptionGroup("in", [TimeoutError()])]), "transient"),
    (ExceptionGroup("one", [InvalidWorkError("no")]), "invalid"),
    # bugs, whatever they say
    (ValueError("rate limit exceeded, 429 too many requests"), "bug"),
    (TypeError("connection refused"), "bug"),
    (KeyError("insufficient_quota"), "bug"),
    (AttributeError("timeout"), "bug"),
    (AssertionError("timed out"), "bug"),
    (ZeroDivisionError(), "bug"),
    (NotImplementedError("overloaded"), "bug"),
    (MemoryError("timed out"), "bug"),
    (json.JSONDecodeError("service unavailable", "", 0), "bug"),
    (SystemExit(429), "bug"),
    (KeyboardInterrupt(), "bug"),
    (asyncio.CancelledError("timed out"), "bug"),
    (Exception(), "bug"),
    (RuntimeError("something else"), "bug"),
    # words, where nothing else says anything
    (RuntimeError("You exceeded your current quota"), "quota"),
    (RuntimeError("Incorrect API key provided"), "credentials"),
    (Exception("Rate limit reached for requests"), "rate_limited"),
    (Exception("HTTP 429"), "rate_limited"),
    (Exception("the request was throttled"), "rate_limited"),
    (Exception("Please retry after 20 seconds"), "rate_limited"),
    (Exception("order 14290 is wrong"), "bug"),
    (Exception("upstream: Connection reset by peer"), "transient"),
    (Exception("request timed out"), "transient"),
]


@pytest.mark.parametrize(("error", "kind"), TABLE, ids=lambda value: repr(value)[:60])
def test_the_class_of_an_error(error: BaseException, kind: str) -> None:
    failure = classify(error)
    assert failure.kind == kind
    assert failure.cause == type(error).__name__


def test_every_class_is_in_the_table() -> None:
    assert {str(kind) for _, kind in TABLE} == {str(kind) for kind in FailureKind}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e400"}, LONGEST_RETRY_AFTER_S),
        ({"Retry-After": "99999999"}, LONGEST_RETRY_AFTER_S),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90),
        ({"Retry-After": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 0),
        ({"Retry-After": "Thu, 05 Nov 2026 12:00:30 -0000"}, 30),
        ({"retry-after-ms": "2500", "Retry-After": "9"}, 2.5),
        ({"retry-after-ms": "120000"}, 120),
        ({"retry-after-ms": "x", "Retry-After": "9"}, 9),
    ],
    ids=str,
)
def test_the_retry_after(headers: dict, seconds: float | None) -> None:
    for error in (http_error(429, headers), LooksLikeAiohttp(503, headers), openai_error(429, headers)):
        assert classify(error, NOW).retry_after_s == seconds


def test_what_an_error_of_ours_says() -> None:
    failure = classify(QuotaError(credential="openai", retry_after=5))
    assert (failure.retry_after_s, failure.credential) == (5, "openai")
    assert classify(LooksLikeRequests()).retry_after_s == 4
    assert str(BudgetError(retry_after=3)).startswith("A tenant's own budget is spent")


class Hostile(Exception):  # noqa: N818
    """An error that does what it can to break whoever looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str):
        raise RuntimeError("no")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        ["status_code", "status", "code", "type", "error", "body", "response", "headers", "retry_after"]
    ),
    ANYTHING | st.dictionaries(st.sampled_from(["error", "code", "retry-after", "Retry-After"]), ANYTHING),
)
ERRORS = st.sampled_from([Exception, RuntimeError, ValueError, OSError, SystemExit, KeyError, TransientError])


@given(ERRORS, st.text(), ATTRIBUTES, st.integers(0, 3))
def test_it_never_raises(kind: type[BaseException], text: str, attributes: dict, causes: int) -> None:
    error = kind(text)
    for name, value in attributes.items():
        setattr(error, name, value)
    for _ in range(causes):
        outer = RuntimeError(text)
        outer.__cause__, error = error, outer
    failure = classify(error)
    assert failure.kind in FailureKind
    assert failure.retry_after_s is None or 0 <= failure.retry_after_s <= LONGEST_RETRY_AFTER_S


def test_errors_that_resist_are_bugs() -> None:
    circle = RuntimeError()
    circle.__cause__ = RuntimeError()
    circle.__cause__.__cause__ = circle
    deep: BaseException = ValueError()
    for _ in range(5000):
        deep = ExceptionGroup("deep", [deep])
    for error in (Hostile(), circle, deep):
        assert classify(error).kind == "bug"
