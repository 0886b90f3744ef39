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
            here.clock.advance(10)  # the rest between two runs of mem_update
        search, searched = here.store.search, []

        async def note(query: Any) -> Any:
            searched.append(query.text)
            return await search(query)

        monkeypatch.setattr(here.store, "search", note)
        await here.run("mem_update")
        assert sorted(searched) == ["milk", "tea"]
        assert (await here.store.tier_counts(("ann", "ann")))["working"] == 1
        assert (await here.get("tea")).tier == "working"
