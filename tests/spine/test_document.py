"""The OpenAPI document names every status that a real server answers, with its type."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reverie.api.routes import ROUTES
from support.documented import fits
from support.places import Place, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie.api.routing import Route

REQUESTS = 600
LIMITS = {
    "REVERIE_QUEUE__MAX_DEPTH": "20",
    "REVERIE_SERVER__MAX_BODY_BYTES": "100000",
    "API_SCHEDULER_ON": "false",
}
ODD: list[Any] = [
    "",
    None,
    7,
    -1,
    2.5,
    True,
    [],
    {},
    ["\x00"],
    "x" * 600,
    "\ud800",
    "a\x00b",
    "_system",
    1e400,
]
GOOD: dict[str, list[Any]] = {
    "/product/add": [
        {"user_id": "ann", "memory_content": "tea"},
        {"user_id": "ann", "memory_content": "tea", "item_id": "1"},
        {"user_id": "ann", "memory_content": "coffee", "item_id": "1"},
    ],
    "/product/search": [
        {"user_id": "ann", "query": "tea"},
        {"user_id": "ann", "query": "tea", "filter": {"and": [{"tags": {"contains": "a"}}]}},
        {"user_id": "ann", "query": "tea", "since": "2026-01-01", "explain": True, "kinds": ["turn"]},
    ],
    "/product/get_memory_by_ids": [["1.0", "2.0"]],
    "/product/delete_memory": [
        {"user_id": "ann", "memory_ids": ["1.0"]},
        {"user_id": "ann", "memory_ids": ["nothing"], "writable_cube_ids": ["ann"]},
        {"user_id": "ann", "session_id": "s"},
    ],
    "/product/extraction": [
        {"user_id": "ann", "mission": "A diary of meals.", "categories": ["food"]},
        {"user_id": "ann", "schema": {"type": "object", "properties": {"place": {"type": "string"}}}},
        {"user_id": "ann", "schema": {"type": "nothing"}, "include": ["x" * 3000]},
    ],
    "/api/push/chat/message": [{"user_id": "ann", "content": "tea", "item_id": "2"}, {"content": "tea"}],
    "/product/scheduler/submit": [
        {"messages": [{"user_id": "ann", "label": "work", "content": {"doc": 7}}]},
        {"messages": [{"user_id": "ann", "label": "work", "item_id": "3", "content": "a"}]},
        {"messages": [{"user_id": "ann", "label": "work"}] * 30},
    ],
}
QUERY: dict[str, list[str]] = {
    "user_id": ["ann", "", "x" * 600, "a\x00b", "bob"],
    "task_id": ["3", "nothing", "x" * 600],
    "user_name": ["ann", "", "x" * 600, "bob"],
    "timeout_seconds": ["0", "0.05", "-1", "nan", "x"],
    "poll_interval": ["0.05", "0", "x"],
    "limit": ["1", "0", "x"],
    "mem_cube_id": ["ann", "x" * 600],
    "days": ["1", "0", "99999999"],
    "after": ["x", ""],
}
RAW = [None, b"", b"{}", b"[]", b"null", b"{", b"\xff", b"[" * 20_000, b"x" * 200_000]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with sqlite(tmp_path) as opened:
        yield opened


def request_for(route: Route, chance: random.Random) -> dict[str, Any]:
    """A request that may be good, odd or hostile."""
    names = ["memory_compression", "1.0", "nothing", "x" * 600, "%00", "%ED%A0%80"]
    path = re.sub(r"{\w+}", lambda _: chance.choice(names), route.path)
    query = {name: chance.choice(values) for name, values in QUERY.items() if chance.random() < 0.8}
    query["timeout_seconds"] = chance.choice(QUERY["timeout_seconds"])
    headers = {"content-type": "application/json"}
    if chance.random() < 0.15:
        headers |= chance.choice(
            [
                {"content-type": "text/plain"},
                {"content-type": "application/x-www-form-urlencoded"},
                {"host": "evil.example"},
                {"origin": "http://evil.example"},
                {"sec-fetch-site": "cross-site"},
            ]
        )
    body = chance.choice(RAW) if chance.random() < 0.3 else None
    if body is None and route.path in GOOD:
        fields = copy(chance.choice(GOOD[route.path]))
        if isinstance(fields, list):
            fields += [chance.choice(ODD)] * (chance.random() < 0.5)
        elif chance.random() < 0.5:
            fields[chance.choice([*fields, "top_k", "item_id", "mem_cube_id"])] = chance.choice(ODD)
        messages = fields.get("messages") if isinstance(fields, dict) else None
        if (
            chance.random() < 0.3
            and isinstance(messages, list)
            and messages
            and isinstance(messages[0], dict)
        ):
            fields["messages"] = [{**messages[0], chance.choice(["content", "due"]): chance.choice(ODD)}]
        body = json.dumps(fields).encode()
    return {"method": route.method, "url": path, "params": query, "headers": headers, "content": body}


def test_a_server_answers_nothing_that_its_document_does_not_name(place: Place) -> None:
    chance = random.Random(14)
    seen: Counter[int] = Counter()
    with place.server(**LIMITS) as server:
        document = server.client.get("/openapi.json").json()
        good = [route for route in ROUTES if route.path in GOOD]
        for number in range(REQUESTS):
            routes = good if number % 2 else ROUTES
            route = routes[number // 2 % len(routes)]
            request = request_for(route, chance)
            response = server.client.request(**request)
            seen[response.status_code] += 1
            check(document, route, request, response)
    assert {200, 400, 403, 404, 409, 413, 415, 421, 422, 429} <= set(seen), seen
    assert 500 not in seen


def check(document: dict[str, Any], route: Route, request: dict[str, Any], response: httpx.Response) -> None:
    told = document["paths"][route.path][route.method.lower()]["responses"]
    asked = {name: str(value)[:200] for name, value in request.items()}
    assert str(response.status_code) in told, (asked, response.text[:500])
    content = told[str(response.status_code)]["content"]
    kind = response.headers["content-type"].partition(";")[0]
    assert kind in content, asked
    if kind == "application/json":
        assert fits(response.json(), content[kind]["schema"], document), (asked, response.text[:500])
