"""Idempotency keys: the same request is carried out once, another one with its key is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.message import current_ids, new_item_id
from reverie.server import create_app
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADD = {"user_id": "ann", "messages": [{"role": "user", "content": "I keep bees"}]}
SUBMIT = {"messages": [{"user_id": "ann", "label": "import", "content": n} for n in range(3)]}
PUSH = {"user_id": "ann", "content": "I play chess"}
CALLS = {"/product/add": ADD, "/product/scheduler/submit": SUBMIT, "/api/push/chat/message": PUSH}


@pytest.fixture
async def scheduler(clock, tmp_path) -> AsyncIterator[AsyncScheduler]:
    scheduler = AsyncScheduler(f"sqlite:///{tmp_path / 'r.db'}", clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


async def post(client: httpx.AsyncClient, path: str, body: Any, key: str | None, token: str = "") -> Any:
    headers = {**({} if key is None else {"Idempotency-Key": key}), "authorization": token}
    return await client.post(path, json=body, headers=headers)


def ids_in(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    told = response.json()
    return [row["item_id"] for row in told.get("data", [told])]


@pytest.mark.parametrize("path", CALLS)
async def test_the_same_request_is_carried_out_once(client, scheduler: AsyncScheduler, path: str) -> None:
    body = CALLS[path]
    first = ids_in(await post(client, path, body, "k-1"))
    assert ids_in(await post(client, path, body, "k-1")) == first
    async with documented_client(create_app(scheduler, run_worker=False)) as other_process:
        assert ids_in(await post(other_process, path, body, "k-1")) == first
    assert [row.item_id for row in await scheduler.status("ann")] == first
    for key in ("k-2", None, None):
        assert not set(ids_in(await post(client, path, body, key))) & set(first)
    assert len(await scheduler.status("ann")) == 4 * len(first)


OTHER: list[tuple[str, Any]] = [
    ("/product/add", {**ADD, "messages": "I keep goats"}),
    ("/product/add", {**ADD, "writable_cube_ids": ["work"]}),
    ("/product/scheduler/submit", {"messages": SUBMIT["messages"][::-1]}),
    ("/api/push/chat/message", {**PUSH, "content": "I play go"}),
]
OF_PROCESS: list[tuple[str, Any]] = [
    ("/product/add", {**ADD, "user_id": "bob"}),
    ("/product/scheduler/submit", {"messages": SUBMIT["messages"][:2]}),
    ("/product/scheduler/submit", {"messages": [*SUBMIT["messages"], {"user_id": "ann", "label": "x"}]}),
]
"""Bodies whose messages do not contradict the first ones: the process that answered the first knows them."""


@pytest.mark.parametrize(("path", "body"), OTHER + OF_PROCESS)
async def test_another_body_with_the_same_key_is_refused(client, scheduler, path: str, body: Any) -> None:
    before = ids_in(await post(client, path, CALLS[path], "k-1"))
    refused = await post(client, path, body, "k-1")
    assert refused.status_code == 409
    assert "Idempotency-Key" in refused.json()["message"]
    assert [row.item_id for row in await scheduler.status("ann")] == before
    assert await scheduler.status("bob") == []
    if (path, body) in OTHER:  # a process that has not seen the first body refuses it, too
        async with documented_client(create_app(scheduler, run_worker=False)) as other_process:
            assert (await post(other_process, path, body, "k-1")).status_code == 409


async def test_a_key_belongs_to_its_caller_and_its_path(scheduler: AsyncScheduler) -> None:
    tokens = [(await scheduler.keys.create(str(n), users=["ann"])).token for n in range(2)]
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        one, other = [ids_in(await post(client, "/product/add", ADD, "k", token)) for token in tokens]
        pushed = ids_in(await post(client, "/api/push/chat/message", PUSH, "k", tokens[0]))
    assert len({*one, *other, *pushed}) == 3


async def test_a_request_that_failed_may_be_mended(client) -> None:
    assert (await post(client, "/product/add", {**ADD, "user_id": ""}, "k")).status_code == 400
    assert ids_in(await post(client, "/product/add", ADD, "k"))


async def test_an_item_id_of_the_client_stays(client) -> None:
    for _ in range(2):
        assert ids_in(await post(client, "/product/add", {**ADD, "item_id": "mine"}, "k")) == ["mine"]


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "\x7f"])
async def test_a_key_that_is_none_is_refused(client, key: str) -> None:
    refused = await post(client, "/product/add", ADD, key)
    assert refused.status_code == 422
    assert "idempotency-key" in refused.json()["message"]


async def test_ids_are_random_again_after_the_request(client) -> None:
    await post(client, "/product/add", ADD, "k")
    assert current_ids.get() is None
    assert new_item_id() != new_item_id()
