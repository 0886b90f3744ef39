"""The route table: what the application, its document and its rights have from it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from starlette.routing import compile_path

from reverie import AsyncScheduler, Message, Scheduler
from reverie.api.envelope import HTTP_STATUS, answer
from reverie.api.routes import ROUTES
from reverie.api.routing import Route
from reverie.memory.query import Found
from reverie.principal import LOCAL_ADMIN, Principal, Role, current_principal
from reverie.server import create_app

READER = Principal(key="k1", role=Role.READ_ONLY, users=frozenset({"ann"}))
FORM = "application/x-www-form-urlencoded"


async def who(scheduler: AsyncScheduler) -> JSONResponse:
    """The key of the principal that asks."""
    return answer(current_principal.get().key)


async def bug(scheduler: AsyncScheduler) -> JSONResponse:
    """Fails."""
    raise ZeroDivisionError


async def echo(scheduler: AsyncScheduler, request: Request, times: Annotated[int, Query(le=3)] = 1):
    """The body, as text."""
    return answer((await request.body()).decode() * times)


MORE = (
    Route("GET", "/who", who, role=Role.READ_ONLY, reach="own", answer=str),
    Route("GET", "/bug", bug, role=Role.READ_ONLY, reach="own", answer=str),
    Route("DELETE", "/who", who, role=Role.ADMIN, reach="own", answer=str),
    Route("POST", "/json", echo, role=Role.USER, reach="own", answer=str),
    Route("POST", "/form", echo, role=Role.READ_ONLY, reach="own", answer=str, bodies=("form",)),
    Route(
        "POST",
        "/any",
        echo,
        role=Role.READ_ONLY,
        reach="own",
        answer=str,
        bodies=("json", "form", "multipart"),
    ),
)


@pytest.fixture
async def scheduler(clock):
    scheduler = AsyncScheduler("memory://", clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


@asynccontextmanager
async def asking(
    scheduler: AsyncScheduler, caller: Principal = LOCAL_ADMIN
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that has the routes of this file, too."""
    app = create_app(scheduler, run_worker=False, routes=(*ROUTES, *MORE), caller=caller)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def refusal(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"code", "message", "data"}
    assert body["code"] == response.status_code
    return body["code"], body["message"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_no_route_is_hidden_by_one_before_it(route: Route) -> None:
    path = re.sub(r"{\w+}", "x", route.path)
    matching = [r for r in ROUTES if r.method == route.method and compile_path(r.path)[0].match(path)]
    assert matching[0] is route


async def test_another_method_is_answered_with_those_of_the_path(scheduler: AsyncScheduler) -> None:
    async with asking(scheduler) as client:
        for path in {route.path for route in ROUTES}:
            refused = await client.request("OPTIONS", path)
            assert refused.status_code == 405
            methods = {route.method for route in ROUTES if route.path == path}
            assert set(refused.headers["allow"].split(", ")) == methods, path


# -- the document ------------------------------------------------------------------------------------


@pytest.fixture
def document(scheduler: AsyncScheduler) -> dict[str, Any]:
    return create_app(scheduler, run_worker=False).openapi()


def test_the_document_has_the_routes_of_the_table_and_no_others(document) -> None:
    documented = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    assert documented == {(route.method, route.path) for route in ROUTES}
    assert len(documented) == len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_in_the_document(document, route: Route) -> None:
    operation = document["paths"][route.path][route.method.lower()]
    assert operation["x-role"] == route.role.title
    assert operation["description"].startswith(route.function.__doc__.strip()[:20])
    assert operation["summary"] == route.function.__doc__.splitlines()[0]
    assert operation["tags"] == [sys.modules[route.function.__module__].__doc__[: len(operation["tags"][0])]]
    responses = operation["responses"]
    assert {str(HTTP_STATUS[error]) for error in route.errors} < set(responses)
    assert {"200", "403", "413", "421", "500", "503"} <= set(responses)
    assert ("422" in responses) == bool({"parameters", "requestBody"} & set(operation))
    assert ("415" in responses) == (route.method != "GET")
    assert all(response["description"] for response in responses.values())
    shape = responses["403"]["content"]["application/json"]["schema"]
    assert shape == {"$ref": "#/components/schemas/Refusal"}


def test_every_reference_in_the_document_leads_somewhere(document) -> None:
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references == set(document["components"]["schemas"])
    refusal = document["components"]["schemas"]["Refusal"]
    assert list(refusal["properties"]) == refusal["required"] == ["code", "message", "data"]


def test_a_list_with_a_next_page_takes_it_as_its_cursor(document) -> None:
    lists = 0
    for path, operations in document["paths"].items():
        if "get" not in operations:
            continue
        answered = json.dumps(operations["get"]["responses"]["200"])
        names = re.findall(r"#/components/schemas/(\w+)", answered)
        if any("next" in document["components"]["schemas"][name].get("properties", {}) for name in names):
            query = {one["name"] for one in operations["get"]["parameters"] if one["in"] == "query"}
            assert {"cursor", "limit"} <= query, path
            assert "after" not in query, path
            lists += 1
    assert lists >= 12


def test_an_answer_in_the_document_is_in_the_one_shape_unless_it_is_plain(document) -> None:
    for route in ROUTES:
        responses = document["paths"][route.path][route.method.lower()]["responses"]
        content = responses["200"]["content"][route.media_type]
        assert (list(content["schema"].get("properties", {})) == ["code", "message", "data"]) != route.plain
        assert route.plain or route.path.startswith(("/product/", "/admin/", "/api/openmem/"))


# -- the rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
async def test_a_route_is_open_to_its_role_and_those_above(scheduler: AsyncScheduler, role: Role) -> None:
    async with asking(scheduler, Principal(key="k", role=role)) as client:
        for route in (*ROUTES, *MORE):
            response = await client.request(route.method, route.path, params={"timeout_seconds": 0})
            assert (response.status_code == 403) == (role < route.role), route
            if role < route.role:
                needed, has = route.role.title, role.title
                assert refusal(response)[1] == f"this needs the role {needed}; the caller has the role {has}"


async def test_the_principal_reaches_the_function_and_nothing_after_it(scheduler: AsyncScheduler) -> None:
    for caller, key in ((LOCAL_ADMIN, "local"), (READER, "k1")):
        async with asking(scheduler, caller) as client:
            assert (await client.get("/who")).json()["data"] == key
            assert current_principal.get() is LOCAL_ADMIN
            assert (await client.get("/bug")).status_code == 500
            assert (await client.get("/who", headers={"host": "evil.example"})).status_code == 421
            assert current_principal.get() is LOCAL_ADMIN


async def test_the_role_is_that_of_the_method(scheduler: AsyncScheduler) -> None:
    async with asking(scheduler, READER) as client:
        assert (await client.get("/who")).status_code == 200
        assert (await client.delete("/who")).status_code == 403
        refused = await client.put("/who")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, DELETE")


def test_a_caller_in_python_is_the_local_admin() -> None:
    seen = []
    scheduler = Scheduler("memory://")

    @scheduler.handler("work")
    def work(message: Message) -> None:
        seen.append(current_principal.get())

    with scheduler:
        receipt = scheduler.submit("work", user_id="ann")
        scheduler.wait(receipt.item_id, user_id="ann")
    assert seen == [LOCAL_ADMIN]
    assert current_principal.get() is LOCAL_ADMIN


def test_a_blocking_call_runs_for_the_principal_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def search(query: object) -> Found:
        seen.append(current_principal.get())
        return Found()

    with Scheduler("memory://") as scheduler:
        monkeypatch.setattr(scheduler.runtime.store, "search", search)
        before = current_principal.set(READER)
        scheduler.memory.search("tea", user_id="ann", note=False)
        current_principal.reset(before)
        scheduler.memory.search("tea", user_id="ann", note=False)
    assert seen == [READER, LOCAL_ADMIN]


# -- bodies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "code"),
    [
        ("/json", "application/json", 200),
        ("/json", "application/problem+json", 200),
        ("/json", FORM, 415),
        ("/json", "multipart/form-data; boundary=b", 415),
        ("/form", FORM, 200),
        ("/form", f"{FORM.upper()}; charset=utf-8", 200),
        ("/form", "application/json", 415),
        ("/form", "multipart/form-data; boundary=b", 415),
        ("/form", f"text/plain; {FORM}", 415),
        ("/any", "application/json", 200),
        ("/any", FORM, 200),
        ("/any", "multipart/form-data; boundary=b", 200),
        ("/any", "text/plain", 415),
        ("/any", "", 415),
    ],
)
async def test_a_route_takes_the_kinds_of_body_that_it_declares(scheduler, path, kind, code) -> None:
    async with asking(scheduler) as client:
        response = await client.post(path, content=b"a=1", headers={"content-type": kind})
    assert response.status_code == code
    if code == 200:
        assert response.json()["data"] == "a=1"
    else:
        assert f"a body of type {kind!r} is not taken" in refusal(response)[1]


async def test_a_refusal_names_what_the_route_takes(scheduler: AsyncScheduler) -> None:
    async with asking(scheduler) as client:
        response = await client.post("/any", content=b"a", headers={"content-type": "text/plain"})
    assert refusal(response)[1].endswith(
        "send JSON, 'Content-Type: application/json' "
        "or a form, 'Content-Type: application/x-www-form-urlencoded' "
        "or a multipart form, 'Content-Type: multipart/form-data'"
    )


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({"content-length": str(2**30)}, 413),
    ],
)
async def test_a_route_that_takes_forms_takes_none_from_other_sites(scheduler, headers, code) -> None:
    async with asking(scheduler) as client:
        response = await client.post("/form", content=b"a=1", headers={"content-type": FORM, **headers})
    assert refusal(response)[0] == code


@pytest.mark.parametrize(
    ("path", "kind", "code"), [("/json", b"application/json", 403), ("/form", b"text/plain", 415)]
)
async def test_a_refused_body_is_not_read(
    scheduler: AsyncScheduler, path: str, kind: bytes, code: int
) -> None:
    app: FastAPI = create_app(scheduler, run_worker=False, routes=MORE, caller=READER)
    sent = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"3"), (b"content-type", kind)]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    assert sent[0]["status"] == code


async def test_a_client_that_goes_before_its_body_has_arrived_is_no_bug(scheduler: AsyncScheduler) -> None:
    app: FastAPI = create_app(scheduler, run_worker=False)
    parts = [{"type": "http.request", "body": b'{"user_id', "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return parts.pop(0)

    async def send(message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"30"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/product/add",
        "query_string": b"",
        "headers": headers,
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 400
