"""Cursors of callers that are bound to some users: sealed, and good for their own key alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import AsyncScheduler
from reverie.access.cursors import Cursors
from reverie.backends.memory.records import MemoryRecords
from reverie.errors import InvalidSelectionError
from reverie.principal import Principal, Role, current_principal
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx

LISTS = {
    "/product/scheduler/status": ("items", "task_id"),
    "/product/memories": ("memories", "id"),
}
NAMES = [f"n{number}" for number in range(5)]


@pytest.fixture
async def scheduler(clock) -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(queue={"url": "memory://"}, memory={"embedding": "none"})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await scheduler.open()
    for name in NAMES:
        for user_id, cube in (("ann", "ann"), ("ann", "vault"), ("bob", "bob")):
            ids = {"user_id": user_id, "mem_cube_id": cube}
            await scheduler.memory.add(f"tea {name}", **ids, item_id=f"{cube}-{name}")
    await scheduler.runtime.drain()
    yield scheduler
    await scheduler.stop()


async def page(client: httpx.AsyncClient, path: str, token: str, **query: Any) -> httpx.Response:
    headers = {"authorization": token}
    return await client.get(path, params={"user_id": "ann", "limit": 2, **query}, headers=headers)


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("cubes", [None, ["ann"]])
async def test_pages_by_sealed_cursors(scheduler: AsyncScheduler, path: str, cubes: list[str] | None) -> None:
    made = await scheduler.keys.create("ann", users=["ann"], cubes=cubes)
    other = await scheduler.keys.create("too", users=["ann"], cubes=cubes)
    boss = await scheduler.keys.create("boss", "admin")
    rows, name = LISTS[path]
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        seen, cursors, cursor = [], [], None
        while True:
            told = await page(client, path, made.token, **({} if cursor is None else {"cursor": cursor}))
            data = told.json()["data"]
            seen += [row[name].removesuffix(".0") for row in data[rows]]
            cursor = data["next"]
            if cursor is None:
                break
            cursors.append(cursor)
        expected = [f"{cube}-{n}" for n in NAMES for cube in cubes or ["ann", "vault"]]
        assert sorted(seen) == sorted(expected)
        assert {len(one) for one in cursors} == {110}
        assert len(set(cursors)) == len(cursors)
        for token, wrong in (
            (other.token, cursors[0]),
            (made.token, cursors[0][:-2] + "AA"),
            (made.token, "3"),
            (made.token, "s1_"),
            (made.token, "é" * 9),
        ):
            assert (await page(client, path, token, cursor=wrong)).status_code == 400
        plain = (await page(client, path, boss.token)).json()["data"]["next"]
        assert plain.replace("-", "").isdigit()
        assert (await page(client, path, boss.token, cursor=plain)).status_code == 200


async def test_another_process_opens_a_cursor(clock, tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    one, other = AsyncScheduler(url, clock=clock), AsyncScheduler(url, clock=clock)
    for scheduler in (one, other):
        await scheduler.open()
    made = await one.keys.create("ann", users=["ann"])
    for name in NAMES:
        await one.submit("import", user_id="ann", item_id=name)
    cursor, seen = None, []
    for scheduler in (one, other, one):
        async with documented_client(create_app(scheduler, run_worker=False)) as client:
            query = {} if cursor is None else {"cursor": cursor}
            data = (await page(client, "/product/scheduler/status", made.token, **query)).json()["data"]
            seen += [row["task_id"] for row in data["items"]]
            cursor = data["next"]
    assert (seen, cursor) == (NAMES, None)
    for scheduler in (one, other):
        await scheduler.stop()


@pytest.fixture
def own_key() -> Iterator[None]:
    before = current_principal.set(Principal(key="k", role=Role.USER, users=frozenset({"ann"})))
    yield
    current_principal.reset(before)


@pytest.mark.usefixtures("own_key")
@given(cursor=st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_cursor_of_any_length_is_sealed_and_opened(cursor: str) -> None:
    async def there_and_back() -> None:
        cursors = Cursors(MemoryRecords())
        sealed = await cursors.seal(cursor)
        assert sealed is not None
        assert await cursors.open(sealed) == cursor
        for wrong in (sealed[:-40], sealed + sealed[-40:], sealed[:30] + sealed[40:]):
            with pytest.raises(InvalidSelectionError):
                await cursors.open(wrong)

    asyncio.run(there_and_back())


@pytest.mark.usefixtures("own_key")
async def test_only_whole_blocks_of_a_length_are_told() -> None:
    cursors = Cursors(MemoryRecords())
    lengths = [len(await cursors.seal("x" * length) or "") for length in (0, 1, 63, 64, 127, 128)]
    assert [lengths.index(length) for length in lengths] == [0, 0, 0, 3, 3, 5]
