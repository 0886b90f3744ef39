"""A search that was enhanced in the background is used by the next one, until a memory changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler, Done
from reverie.effect import Link, Remember
from reverie.memory.kept_searches import MOST_KEPT, mix_message, query_key
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client
from support.extractor import extract
from support.scripted_model import scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from reverie.memory.query import Found
    from reverie.testing import ManualClock
    from support.scripted_model import ScriptedModel

TEXTS = {"tea": "Ann drinks green tea", "cup": "The cup is blue", "sea": "Lisbon is by the sea", "dog": "Rex"}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = extract
        yield model


@pytest.fixture(params=["no model", "model"])
async def scheduler(request, tmp_path, model, clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    llm = {} if request.param == "no model" else {"preset": "custom", "url": model.url, "model": "tiny"}
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, memory={"embedding": "none"}, llm=llm
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)

    @scheduler.handler("fill")
    async def fill(message):
        items = [Remember(memory_id=name, text=text) for name, text in TEXTS.items()]
        return Done(effects=[*items, Link(source_id="tea", relation="about", target_id="cup")])

    for cube in ("ann", "work"):
        await scheduler.submit("fill", user_id="ann" if cube == "ann" else "bob", mem_cube_id=cube)
    await scheduler.runtime.drain()
    yield scheduler
    await scheduler.stop()


async def mix(scheduler: AsyncScheduler, query: str = "tea") -> None:
    await scheduler.submit_messages([mix_message(query, user_id="ann")])
    await scheduler.runtime.drain()


def ids(found: Found) -> list[str]:
    return [hit.item.id for hit in found]


async def test_the_next_search_has_what_further_queries_and_links_have_found(scheduler, request) -> None:
    has_model = request.node.callspec.params["scheduler"] == "model"
    before = await scheduler.memory.search("Tea?", user_id="ann")
    assert (ids(before), before.enhanced) == (["tea"], False)
    await mix(scheduler)
    for query in ("Tea?", "  tea "):
        found = await scheduler.memory.search(query, user_id="ann")
        assert found.enhanced
        assert set(ids(found)) == ({"tea", "cup", "sea"} if has_model else {"tea", "cup"})
        scores = [hit.score for hit in found]
        assert scores == sorted(scores, reverse=True)
    assert ids(await scheduler.memory.search("tea", user_id="ann", limit=1)) == ids(found)[:1]
    few = await scheduler.memory.search("tea", user_id="ann", threshold=scores[1])
    assert (ids(few), few.dropped) == (ids(found)[: scores.count(scores[1]) + 1], len(ids(found)) - len(few))


async def test_it_is_dropped_when_a_memory_of_the_tenant_changes_and_not_when_others_do(scheduler) -> None:
    async def is_kept() -> bool:
        return (await scheduler.memory.search("tea", user_id="ann")).enhanced

    changes = [
        lambda: scheduler.memory.add("Rain", user_id="ann"),
        lambda: scheduler.memory.update("dog", user_id="ann", text="Rex is a dog"),
        lambda: scheduler.memory.update("dog", user_id="ann", importance=0.9),
        lambda: scheduler.memory.delete("dog", user_id="ann"),
    ]
    for change in changes:
        await mix(scheduler)
        assert await is_kept()
        await scheduler.submit("query", user_id="ann", content={"query": "tea", "found": ["tea"]})
        await scheduler.memory.add("Rain", user_id="bob", mem_cube_id="work")
        await scheduler.runtime.drain()
        assert await is_kept()  # an access, a move to working memory and others' changes do not matter
        await change()
        await scheduler.runtime.drain()
        assert not await is_kept()


async def test_other_questions_are_not_answered_by_it(scheduler) -> None:
    await mix(scheduler)
    for options in ({"kinds": ["fact"]}, {"as_of": 1}, {"rerank": False}, {"hops": 1}, {"diversity": "no"}):
        assert not (await scheduler.memory.search("tea", user_id="ann", **options)).enhanced
    assert not (await scheduler.memory.search("green tea", user_id="ann")).enhanced
    assert not (await scheduler.memory.search("tea", user_id="bob")).enhanced
    with_preferences = await scheduler.memory.search("tea", user_id="ann", preferences=3, neighbours=1)
    assert with_preferences.enhanced


async def test_a_change_while_it_is_enhanced_makes_it_worthless(scheduler) -> None:
    store = scheduler.runtime.store
    search = store.search

    async def change_first(query):
        await store.change(("ann", "ann"), [Remember(memory_id="late", text="Ann now prefers coffee to tea")])
        return await search(query)

    store.search = change_first
    await mix(scheduler)
    store.search = search
    assert await store.kept_searches("ann", (), query_key("tea")) == {}
    found = await scheduler.memory.search("tea", user_id="ann")
    assert (found.enhanced, set(ids(found))) == (False, {"tea", "late"})


@pytest.mark.parametrize("scheduler", ["no model"], indirect=True)
async def test_only_the_last_searches_are_kept(scheduler, clock) -> None:
    for number in range(MOST_KEPT + 3):
        await mix(scheduler, f"tea {number}")
        clock.advance(1)
    kept = [
        number
        for number in range(MOST_KEPT + 3)
        if await scheduler.runtime.store.kept_searches("ann", ["ann"], query_key(f"tea {number}"))
    ]
    assert kept == list(range(3, MOST_KEPT + 3))


async def test_a_search_over_http_in_the_mode_mixture_is_enhanced_for_the_next_one(
    scheduler: AsyncScheduler,
) -> None:
    app = create_app(scheduler)
    asked = {"user_id": "ann", "query": "tea", "relativity": 0, "mode": "mixture"}
    async with app.router.lifespan_context(app), documented_client(app) as client:
        first = (await client.post("/product/search", json=asked)).json()["data"]
        await scheduler.runtime.query_notes.close()
        await scheduler.observe.wait_idle("ann", timeout=30)
        second = (await client.post("/product/search", json={**asked, "mode": "fast"})).json()["data"]
    found = [[one["id"] for cube in data["text_mem"] for one in cube["memories"]] for data in (first, second)]
    assert "cup" not in found[0]
    assert "cup" in found[1]
