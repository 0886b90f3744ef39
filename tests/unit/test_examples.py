"""Every route has an example in the OpenAPI document, and a server answers it with success."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler
from reverie.api.routes import ROUTES
from reverie.api.routing import Example, Route
from reverie.errors import NotSupportedError
from reverie.models.interface import ModelMissingError
from reverie.server import create_app
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

FIRST = next(route for route in ROUTES if route.path == "/product/add")
"""Its example is sent before each of the others, which are about the memory `tea.0` of its user `ann`."""

ABOUT_OTHERS = (
    "/product/scheduler/dead_letters/{item_id}",
    "/product/sessions/{session_id}",
    "/admin/keys/{key_id}",
    "/admin/keys/{key_id}/rotate",
    "/admin/webhooks/{webhook_id}",
    "/admin/webhooks/{webhook_id}/test",
)
"""Routes about things that are not there at first; the tests of these things ask them."""


@pytest.fixture
async def scheduler() -> AsyncIterator[AsyncScheduler]:
    scheduler = AsyncScheduler("memory://")
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


async def send(client: httpx.AsyncClient, route: Route) -> httpx.Response:
    example = route.example
    return await client.request(
        route.method, route.path.format(**example.path), params=example.query, json=example.body
    )


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.path not in ABOUT_OTHERS],
    ids=lambda route: f"{route.method} {route.path}",
)
async def test_the_example_of_a_route_is_answered_with_success(
    scheduler: AsyncScheduler, route: Route
) -> None:
    app = create_app(scheduler, routes=(FIRST,) if route is FIRST else (FIRST, route))
    operation: dict[str, Any] = app.openapi()["paths"][route.path][route.method.lower()]
    example = route.example
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "header"]
    if parameters or "requestBody" in operation:
        assert example != Example(), "give this Route an example"
    assert (example.body is None) <= ("requestBody" not in operation), "show a body"
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    assert {*example.path, *example.query} <= names
    async with documented_client(app) as client:
        assert (await send(client, FIRST)).status_code == 200
        await scheduler.observe.wait_idle("ann", timeout=30)
        answer = await send(client, route)
    if NotSupportedError in route.errors and route.answer is None:
        assert answer.status_code == 501
        return
    if ModelMissingError in route.errors:  # there is none here
        assert answer.status_code == 503
        return
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "application/json":
        assert answer.json() != {"code": 200, "message": answer.json().get("message"), "data": None}


async def test_examples_are_in_the_document(scheduler: AsyncScheduler) -> None:
    paths = create_app(scheduler).openapi()["paths"]
    body = paths["/product/add"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"] == FIRST.example.body
    parameters = paths["/product/get_memory/{memory_id}"]["get"]["parameters"]
    assert {parameter["name"]: parameter["example"] for parameter in parameters} == {
        "memory_id": "tea.0",
        "user_id": "ann",
    }


async def test_the_document_says_how_to_send_a_key(scheduler: AsyncScheduler) -> None:
    document = create_app(scheduler).openapi()
    ((name, scheme),) = document["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for route in ROUTES:
        security = document["paths"][route.path][route.method.lower()]["security"]
        assert ({name: []} in security, {} in security) == (True, route.reach == "open")
