"""The OpenAPI document: FastAPI describes requests; the route table adds examples, answers and rights."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.api.envelope import HTTP_STATUS
from reverie.api.repeatable import KEY_PATTERN, LONGEST_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.api.routing import Route

__all__ = ["complete_document"]

EVERY_ROUTE = {
    401: "The server has API keys, and the request has none that is valid.",
    403: "The caller's key does not allow this, or a web page of another site asks.",
    413: "The body is larger than `server.max_body_bytes`.",
    421: "The request is for another host.",
    429: "The caller's key has sent too many requests; `Retry-After` says when to try again.",
    500: "A bug: the log has it, with the trace id.",
    503: "The server stops.",
}
"""HTTP status → when any route may answer it."""
EVENTS = "text/event-stream"
"""The content type of server-sent events."""
WITH_PARAMETERS = {422: "A field is missing, of the wrong kind or out of its range."}
WITH_MODEL = {400: "The body is no text in UTF-8, or is nested too deeply.", **WITH_PARAMETERS}
WITH_BODY = {
    409: "The `Idempotency-Key` was used for another request.",
    408: "The body did not arrive within `server.receive_timeout_s`.",
    415: "The body is of a kind that the route does not take.",
}
EVENTS = "text/event-stream"
API_KEY = "ApiKey"
SECURITY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key. The server needs none until the first key was made.",
}


IDEMPOTENCY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A text of yours: the same request again, with the same key, submits nothing "
    "twice and answers with the same ids; another request with it is refused (409).",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": KEY_PATTERN},
}


class Refusal(msgspec.Struct):
    """The answer to a request that was refused or has failed."""

    code: int
    """The HTTP status."""
    message: str
    data: None


class Detail(msgspec.Struct):
    """A field that was refused, in the words of FastAPI, which clients of MemOS read."""

    type: str
    loc: list[str | int]
    """Where it is: body or query, and the path to the field."""
    msg: str


class InvalidRequest(msgspec.Struct):
    """The answer to a request with fields that were refused."""

    code: int
    message: str
    data: None
    detail: list[Detail] = []
    """All fields that were refused."""


def complete_document(document: dict[str, Any], routes: Sequence[Route]) -> dict[str, Any]:
    """Add the example, answers, errors and role of each route to the document that FastAPI has made."""
    types = [
        kind
        for route in routes
        for kind in (*_answers(route), *_events(route), *route.other_answers.values())
    ]
    (refusal, invalid, *schemas), components = msgspec.json.schema_components(
        [Refusal, InvalidRequest, *types], ref_template="#/components/schemas/{name}"
    )
    named = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's shape of a 422, which is not ours
        named.pop(unused, None)
    named.update(components)
    document["components"]["securitySchemes"] = {API_KEY: SECURITY_SCHEME}
    for route in routes:
        operation = document["paths"][route.path][route.method.lower()]
        if route.method != "GET":
            operation.setdefault("parameters", []).append(IDEMPOTENCY_PARAMETER)
        possible = [schemas.pop(0) for _ in _answers(route)]
        schema = possible[0] if len(possible) == 1 else {"anyOf": possible}
        if route.media_type == EVENTS:
            schema = _event(schema)
        responses = {200: _response("The answer.", schema if route.plain else _envelope(schema), route)}
        for _ in _events(route):
            responses[200]["content"][EVENTS] = {"schema": schemas.pop(0)}
        others = {status: schemas.pop(0) for status in route.other_answers}
        for status, reasons in sorted(_reasons(route, operation).items()):
            schema = invalid if status == 422 else refusal
            if status in others:
                schema = {"anyOf": [others[status], schema]}
            responses[status] = _response(" ".join(reasons), schema)
        operation["responses"] = {str(status): response for status, response in responses.items()}
        operation["summary"] = (route.function.__doc__ or "").splitlines()[0]
        operation["tags"] = [_chapter(route)]
        _add_example(operation, route)
        operation["security"] = [{API_KEY: []}, *([{}] if route.reach == "open" else [])]
        operation["x-role"] = route.role.title
        operation["x-reach"] = route.reach
    return document


def _add_example(operation: dict[str, Any], route: Route) -> None:
    """Put the values of the route's example beside the parameters and the body."""
    example = route.example
    given = {"path": example.path, "query": example.query}
    for parameter in operation.get("parameters", ()):
        values = given.get(parameter["in"], {})
        if parameter["name"] in values:
            parameter["example"] = values[parameter["name"]]
    if example.body is not None:
        for content in operation["requestBody"]["content"].values():
            content["example"] = example.body


def _chapter(route: Route) -> str:
    """What the file of a route calls its subject: the first words of its docstring."""
    words = sys.modules[route.function.__module__].__doc__ or ""
    return re.split(r"[:,.\n]", words)[0]


def _answers(route: Route) -> tuple[Any, ...]:
    """The types that a successful answer of a route may have."""
    return route.answer if isinstance(route.answer, tuple) else (route.answer,)


def _events(route: Route) -> tuple[Any, ...]:
    """The type of the events that a route sends to clients which ask for them, if it does."""
    return () if route.events is None else (route.events,)


def _reasons(route: Route, operation: dict[str, Any]) -> dict[int, list[str]]:
    """HTTP status → sentences that say when this route answers with it."""
    reasons: dict[int, list[str]] = defaultdict(list)
    for status, kind in [(HTTP_STATUS[error], error) for error in route.errors] + [
        *route.other_answers.items()
    ]:
        reasons[status].append((kind.__doc__ or "").splitlines()[0])
    applicable = dict(EVERY_ROUTE)
    if "requestBody" in operation:
        applicable |= WITH_MODEL
    elif "parameters" in operation:
        applicable |= WITH_PARAMETERS
    if route.method != "GET":
        applicable |= WITH_BODY
    for status, reason in applicable.items():
        reasons[status].append(reason)
    return reasons


def _envelope(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": data},
        "required": ["code", "message", "data"],
    }


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream, whose data is JSON."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": text}}
    return event | {"required": ["data"]}


def _response(description: str, schema: dict[str, Any], route: Route | None = None) -> dict[str, Any]:
    media_type = route.media_type if route else "application/json"
    return {"description": description, "content": {media_type: {"schema": schema}}}
