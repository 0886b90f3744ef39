"""Reading without a search: pages, items by id, tenants."""

from __future__ import annotations

import pytest

from reverie import Supersede
from reverie.errors import InvalidSelectionError
from reverie.memory.interface import PageQuery


async def ids(bench, user_id: str = "ann", **query) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    after = None
    while True:
        page = await bench.store.page(PageQuery(user_id=user_id, after=after, **query))
        found += [item.id for item in page.items]
        if page.next is None:
            return found
        assert len(page.items) == query["limit"]
        after = page.next


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_are_in_the_order_in_which_items_were_learned(bench, limit: int) -> None:
    for name, learned_at in (("c", 30), ("a", 10), ("b", 20), ("d", 30), ("e", 30)):
        await bench.add(**{name: {"text": name, "learned_at": learned_at}})
    await bench.add("bob", f="of another user")
    assert await ids(bench, limit=limit) == ["a", "b", "c", "d", "e"]
    assert await ids(bench, limit=limit, newest_first=True) == ["e", "d", "c", "b", "a"]


async def test_pages_can_be_filtered(bench) -> None:
    await bench.add(
        a={"text": "a", "kind": "event", "session_id": "s"},
        b={"text": "b", "tier": "working"},
        c={"text": "c", "tier": "archive", "session_id": "s"},
    )
    await bench.add("ann", "office", d="d")
    await bench.apply(Supersede(memory_id="b", version=1, successor="a"))
    assert await ids(bench, limit=1) == ["a", "c", "d"]
    assert await ids(bench, limit=1, with_superseded=True) == ["a", "b", "c", "d"]
    assert await ids(bench, limit=1, mem_cube_id="office") == ["d"]
    assert await ids(bench, limit=1, mem_cube_id="ann", newest_first=True) == ["c", "a"]
    assert await ids(bench, limit=1, kinds=("event", "none")) == ["a"]
    assert await ids(bench, limit=1, tiers=("archive", "working")) == ["c"]
    assert await ids(bench, limit=1, session_id="s") == ["a", "c"]
    assert await ids(bench, "nobody", limit=1) == []


@pytest.mark.parametrize("cursor", ["", "x", "1", "1-", "-", "1-x", "--", f"{2**70}-1", f"1-{2**70}"])
async def test_a_wrong_cursor_is_refused(bench, cursor: str) -> None:
    with pytest.raises(InvalidSelectionError, match="cursor"):
        await bench.store.page(PageQuery(user_id="ann", after=cursor))


async def test_items_come_in_the_order_of_their_ids(bench) -> None:
    await bench.add(a="a", b="b")
    await bench.add("ann", "office", c="c")
    found = await bench.store.items(("ann", "ann"), ["b", "none", "c", "a", "b"])
    assert [item.id for item in found] == ["b", "a", "b"]
    assert await bench.store.get("bob", "a") is None


async def test_tenants_come_page_by_page(bench) -> None:
    tenants = [("ann", "a"), ("ann", "b"), ("bob", "a"), ("zoe", "z")]
    for number, (user, cube) in enumerate(reversed(tenants)):
        await bench.add(user, cube, **{f"m{number}": "x", f"n{number}": "y"})
    assert await bench.store.tenants(None, 10) == tenants
    assert await bench.store.tenants(None, 2) == tenants[:2]
    assert await bench.store.tenants(("ann", "b"), 10) == tenants[2:]
    assert await bench.store.tenants(("ann", "aa"), 1) == [("ann", "b")]
    assert await bench.store.tenants(("zoe", "z"), 1) == []


async def test_opening_again_finds_all(bench) -> None:
    await bench.add(a="tea")
    await bench.store.open()
    assert await bench.find("tea") == ["a"]
