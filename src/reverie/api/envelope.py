"""The one shape of answers, `{code, message, data}`, and how an error becomes an answer."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from reverie.backends.records import TooManyRecordsError
from reverie.base.logs import get_logger
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    BoundKeyError,
    ForeignDataError,
    ForwardedRequestError,
    IdempotencyError,
    InvalidMessageError,
    InvalidSelectionError,
    ItemTakenError,
    KeyNeededError,
    MemoryDeletedError,
    ModelFailedError,
    NotSupportedError,
    NoWorkerError,
    QueueFullError,
    ReadTimeoutError,
    ReverieError,
    RoleError,
    TaskTypeDisabledError,
    TooManyRequestsError,
    UnknownItemError,
    UnknownKeyError,
    UnknownMemoryError,
    UnknownSessionError,
    UnknownTaskTypeError,
    UnknownWebhookError,
    VersionConflictError,
    WaitTimeoutError,
)
from reverie.failures import BudgetError
from reverie.models.interface import ModelMissingError
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request
    from starlette.types import Scope

__all__ = [
    "HTTP_STATUS",
    "STOPPING",
    "TRACE_HEADER",
    "answer",
    "failure_of",
    "handle_errors",
    "refusal_of",
    "status_of",
    "words_of",
]

log = get_logger(__name__)

HTTP_STATUS: dict[type[ReverieError], int] = {
    InvalidMessageError: 400,
    InvalidSelectionError: 400,
    KeyNeededError: 401,
    BoundKeyError: 403,
    ForeignDataError: 403,
    ForwardedRequestError: 403,
    RoleError: 403,
    UnknownItemError: 404,
    UnknownKeyError: 404,
    UnknownMemoryError: 404,
    UnknownSessionError: 404,
    UnknownTaskTypeError: 404,
    UnknownWebhookError: 404,
    AmbiguousIdError: 409,
    IdempotencyError: 409,
    ItemTakenError: 409,
    TaskTypeDisabledError: 409,
    TooManyRecordsError: 409,
    VersionConflictError: 409,
    MemoryDeletedError: 410,
    BudgetError: 429,
    QueueFullError: 429,
    TooManyRequestsError: 429,
    NotSupportedError: 501,
    BackendUnavailableError: 503,
    ModelFailedError: 503,
    ModelMissingError: 503,
    NoWorkerError: 503,
    WaitTimeoutError: 504,
}
"""The HTTP status of each error; all others are 500."""
STOPPING = "the server stops: ask again when it is back"
TRACE_HEADER = "x-trace-id"
"""The header of every answer that names the trace of its request."""


class Answer(JSONResponse):
    """An answer that becomes JSON quickly: the event loop serves nobody else meanwhile."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return msgspec.json.encode(content)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers; no answer of ours is given any, or is without a body."""
        if headers is not None:
            super().init_headers(headers)
            return
        length = str(len(self.body)).encode("latin-1")
        self.raw_headers = [(b"content-length", length), (b"content-type", b"application/json")]


def answer(data: Any, message: str = "ok", code: int = 200) -> JSONResponse:
    """Make an answer; `code` is also its HTTP status."""
    return Answer({"code": code, "message": message, "data": data}, status_code=code)


def status_of(error: ReverieError) -> int:
    """The HTTP status of an error."""
    return next((code for kind, code in HTTP_STATUS.items() if isinstance(error, kind)), 500)


def words_of(error: ReverieError) -> str:
    """What a caller is told of an error. Only callers for all users learn where the backend is."""
    is_away = isinstance(error, BackendUnavailableError) and not isinstance(error, ReadTimeoutError)
    if is_away and current_principal.get().is_bound:
        return str(BackendUnavailableError())
    return str(error)


def refusal_of(error: ReverieError) -> JSONResponse:
    """The answer to a request that failed with this error."""
    refusal = answer(None, words_of(error), status_of(error))
    retry_after_s: float | None = getattr(error, "retry_after_s", None) or getattr(error, "retry_after", None)
    if retry_after_s is not None:
        refusal.headers["retry-after"] = str(math.ceil(retry_after_s))
    if isinstance(error, KeyNeededError):
        refusal.headers["www-authenticate"] = "Bearer"
    return refusal


def failure_of(error: Exception, scope: Scope) -> JSONResponse:
    """The answer to a request that has failed. What no route answers is logged, and no caller sees it."""
    if isinstance(error, ReverieError):
        return refusal_of(error)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, ClientDisconnect):
        error = HTTPException(400, "the client has gone before its body had arrived")
    if isinstance(error, HTTPException):
        refusal = answer(None, str(error.detail), error.status_code)
        refusal.headers.update(error.headers or {})
        return refusal
    log.error("request.failed", path=scope["path"], trace_id=scope["state"]["trace_id"], exc_info=error)
    return answer(None, "something went wrong inside the server; its log says what", 500)


def handle_errors(app: FastAPI) -> None:
    """Answer every error of an application in the one shape."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return failure_of(error, request.scope)

    for kind in (ReverieError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, failed)


def _invalid(error: RequestValidationError) -> JSONResponse:
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        message = _no_json(errors[0], str(error.body))
    else:
        message = f"{'.'.join(str(part) for part in errors[0]['loc'])}: {errors[0]['msg']}"
    detail = [{name: problem[name] for name in ("type", "loc", "msg")} for problem in errors]
    return Answer({"code": 422, "message": message, "data": None, "detail": detail}, 422)


def _no_json(problem: dict[str, Any], body: str) -> str:
    """Say at which line and column a body stops being JSON."""
    place = json.JSONDecodeError(problem["ctx"]["error"], body, problem["loc"][-1])
    return f"the body is no JSON: {place.msg} at line {place.lineno} column {place.colno}"
