"""Whether an answer over HTTP is one that the OpenAPI document names for its route."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import FastAPI
from starlette.routing import compile_path

from reverie.api.routes import ROUTES


def documented_client(app: FastAPI, **options: Any) -> httpx.AsyncClient:
    """A client of an application whose answers must be those that the document names."""

    async def check(response: httpx.Response) -> None:
        check_documented(app, response)

    transport = httpx.ASGITransport(app, **options)
    return httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", event_hooks={"response": [check]}
    )


def check_documented(app: FastAPI, response: httpx.Response) -> None:
    """Fail if a route of the table has answered with a status or a type that its document does not have."""
    for route in ROUTES:
        is_path = compile_path(route.path)[0].match(response.request.url.path)
        if is_path and route.method == response.request.method:
            responses = app.openapi()["paths"][route.path][route.method.lower()]["responses"]
            documented = responses.get(str(response.status_code))
            assert documented, f"{route.method} {route.path} may not answer {response.status_code}"
            kind = response.headers["content-type"].partition(";")[0]
            assert kind in documented["content"]
            return


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a JSON value is of the type that a schema of the document describes."""
    if reference := schema.get("$ref"):
        return fits(value, document["components"]["schemas"][reference.rpartition("/")[2]], document)
    if choices := schema.get("anyOf"):
        return any(fits(value, choice, document) for choice in choices)
    if "enum" in schema:
        return value in schema["enum"]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return (
            schema.get("type", "object") == "object"
            and set(schema.get("required", ())) <= set(value)
            and all(fits(value[name], known[name], document) for name in value if name in known)
        )
    if isinstance(value, list):
        return schema.get("type", "array") == "array" and all(
            fits(item, schema.get("items", {}), document) for item in value
        )
    kinds = {bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",)}
    allowed = kinds.get(type(value), ("null",))
    return "type" not in schema or schema["type"] in allowed
