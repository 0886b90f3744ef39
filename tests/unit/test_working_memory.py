"""`mem_update`: which memories fit the last queries best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.upkeep_home import home

if TYPE_CHECKING:
    import pytest


async def test_what_was_asked_several_times_is_searched_for_once_and_weighs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with home(memory={"working_limit": 1}) as here:
        await here.keep(tea="Ann drinks tea", milk="Ann drinks milk")
        for name in ("tea", "tea", "tea", "milk"):
            await here.run("query", name)
            here.clock.advance(1)
        search, searched = here.store.search, []

        async def note(query: Any) -> Any:
            searched.append(query.text)
            return await search(query)

        monkeypatch.setattr(here.store, "search", note)
        await here.run("mem_update")
        assert sorted(searched) == ["milk", "tea"]
        assert (await here.store.tier_counts(("ann", "ann")))["working"] == 1
        assert (await here.get("tea")).tier == "working"


async def test_what_was_found_for_a_query_is_not_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with home(memory={"working_limit": 1}) as here:
        await here.keep(tea="Ann drinks tea", milk="Ann drinks milk", gone="Ann drinks beer")

        async def search(query: Any) -> Any:
            raise AssertionError(query.text)

        monkeypatch.setattr(here.store, "search", search)
        await here.run("query", {"query": "coffee", "found": ["milk", "tea"]})
        assert (await here.get("milk")).tier == "working"
        here.clock.advance(1)
        await here.run("query", {"query": "coffee", "found": ["unknown", "tea"]})
        here.clock.advance(1)
        await here.run("query", {"query": "coffee", "found": ["tea"]})
        assert (await here.get("tea")).tier == "working"
        assert (await here.get("milk")).tier == "long_term"
