"""What is extracted for a cube, and what the language model has cost, over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler
from reverie.models.usage import Spent
from reverie.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from reverie.testing import ManualClock

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
NOTHING = dict.fromkeys(("mission", "categories", "include", "exclude", "schema"))


@pytest.fixture
async def scheduler(tmp_path: Path, clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}"},
        extraction={"mission": "All.", "cubes": {"work": {"include": ["deadlines"]}}},
        llm={"tokens_per_day": 100},
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def ask(
    client: httpx.AsyncClient, method: str, path: str, body: Any = None, **query: Any
) -> tuple[int, str, Any]:
    content = None if body is None else json.dumps(body)
    headers = {"content-type": "application/json"}
    response = await client.request(
        method, f"/product/{path}", content=content, params=query, headers=headers
    )
    answer = response.json()
    assert answer["code"] == response.status_code
    return answer["code"], answer["message"], answer["data"]


async def test_without_settings_of_its_own_a_cube_follows_the_settings(client) -> None:
    code, _, data = await ask(client, "GET", "extraction", user_id="ann", mem_cube_id="work")
    assert code == 200
    expected = NOTHING | {"mission": "All.", "include": ["deadlines"]}
    assert data == expected | {"user_id": "ann", "mem_cube_id": "work", "own": []}


async def test_what_is_put_is_in_force_and_replaces_what_was_put_before(client, scheduler) -> None:
    body = {"user_id": "ann", "categories": ["food"], "exclude": [], "schema": SCHEMA}
    code, _, data = await ask(client, "PUT", "extraction", body)
    assert code == 200
    expected = NOTHING | {"mission": "All.", "categories": ["food"], "exclude": [], "schema": SCHEMA}
    own = ["categories", "exclude", "schema"]
    assert data == expected | {"user_id": "ann", "mem_cube_id": "ann", "own": own}
    assert (await ask(client, "GET", "extraction", user_id="ann"))[2] == data
    assert (await scheduler.extraction.get(user_id="ann")).categories == ("food",)
    _, _, data = await ask(client, "PUT", "extraction", {"user_id": "ann", "mission": "Meals."})
    assert (data["own"], data["mission"], data["categories"]) == (["mission"], "Meals.", None)
    assert (await ask(client, "GET", "extraction", user_id="bob"))[2]["own"] == []


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"categories": ["x" * 61]}, 400, "must have 1 to 60 characters"),
        ({"mission": "x" * 2001}, 400, "at most 2000 characters"),
        ({"schema": {"type": "string"}}, 400, 'must be the JSON schema of an object, with "type": "object"'),
        ({"schema": {"type": "object", "properties": 3}}, 400, "is no valid JSON schema at $.properties"),
        ({"schema": {"type": "object", "$ref": "http://a.example"}}, 400, "must not have $ref"),
        ({"schema": [1]}, 422, "body.schema"),
        ({"categories": "food"}, 422, "body.categories"),
        ({"include": ["\ud800"]}, 422, "is not valid Unicode text"),
        ({"schema": {"type": "object", "title": "\ud800"}}, 400, "cannot be kept as JSON"),
        ({"user_id": ""}, 400, "user_id"),
        ({"mem_cube_id": "x" * 600}, 400, "mem_cube_id"),
    ],
)
async def test_what_cannot_be_put(client, fields: dict[str, Any], code: int, words: str) -> None:
    given, message, _ = await ask(client, "PUT", "extraction", {"user_id": "ann", **fields})
    assert given == code
    assert words in message
    assert (await ask(client, "GET", "extraction", user_id="ann"))[2]["own"] == []


async def test_what_calls_have_cost(client, scheduler: AsyncScheduler) -> None:
    await scheduler.open()
    today, before = "2027-01-15", "2027-01-10"
    for key, (day, user, tokens) in enumerate(
        [(today, "ann", 90), (before, "ann", 10), (today, "bob", 5), (today, "ann", 20)]
    ):
        spent = Spent(
            key=str(key),
            day=day,
            user_id=user,
            mem_cube_id="home",
            label="mem_read",
            model="m",
            input_tokens=tokens,
            output_tokens=1,
        )
        await scheduler.runtime.gateway.ledger.write_spent([spent])
    code, _, data = await ask(client, "GET", "usage", user_id="ann")
    assert code == 200
    assert [(row["day"], row["calls"], row["input_tokens"]) for row in data["usage"]] == [
        (today, 2, 110),
        (before, 1, 10),
    ]
    assert data["budgets_spent"] == [
        {"user_id": "ann", "mem_cube_id": "home", "day": today, "what": "tokens"}
    ]
    _, _, data = await ask(client, "GET", "usage", days=1)
    assert {row["user_id"] for row in data["usage"]} == {"ann", "bob"}
    _, _, data = await ask(client, "GET", "usage", user_id="bob", mem_cube_id="home")
    assert (len(data["usage"]), data["budgets_spent"]) == (1, [])
    _, _, data = await ask(client, "GET", "usage", user_id="bob", mem_cube_id="other")
    assert data["usage"] == []
    days: list[str] = []
    query: dict[str, Any] = {"user_id": "ann", "limit": 1}
    while query.get("cursor", "") is not None:
        _, _, data = await ask(client, "GET", "usage", **query)
        days += [row["day"] for row in data["usage"]]
        query["cursor"] = data["next"]
    assert days == [today, before]
    code, _, _ = await ask(client, "GET", "usage", cursor="nonsense")
    assert code == 400


async def test_what_cannot_be_asked(client) -> None:
    code, message, _ = await ask(client, "GET", "usage", mem_cube_id="home")
    assert (code, message) == (400, "mem_cube_id needs a user_id: ids of cubes are per user")
    for query in ({"days": 0}, {"days": 3651}, {"limit": 0}):
        assert (await ask(client, "GET", "usage", **query))[0] == 422
    assert (await ask(client, "GET", "extraction"))[0] == 422
    assert (await ask(client, "GET", "usage", user_id="x" * 600))[0] == 400
