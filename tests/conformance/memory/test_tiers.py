"""Tiers: how many items each holds, and which of them are archived when there are more."""

from __future__ import annotations

import pytest

from reverie import Delete, Link, Remember, Revise, Supersede, Touch
from reverie.effect import Move


@pytest.fixture
async def small(new_bench):
    """A store whose tiers hold three items of a tenant."""
    return await new_bench(working_limit=3, long_term_limit=3)


async def tier_of(bench, tier: str) -> list[str]:
    found = []
    for name in "abcdefgh":
        item = await bench.store.get("ann", name)
        if item is not None and item.tier == tier and item.superseded_by is None:
            found.append(name)
    return found


async def add(bench, *names: str, tier: str = "long_term", **fields) -> None:
    for name in names:
        bench.clock.advance(1)
        await bench.add(**{name: {"text": f"tea number {name}", "tier": tier, **fields}})


@pytest.mark.parametrize("tier", ["working", "long_term"])
async def test_the_items_of_least_worth_are_archived_and_never_lost(small, tier: str) -> None:
    await add(small, *"abcde", tier=tier)
    assert await tier_of(small, tier) == ["c", "d", "e"]
    assert sorted(await small.find("tea", limit=3)) == ["c", "d", "e"]
    assert sorted(await small.find("tea", tiers=("archive",))) == ["a", "b"]
    assert sorted(await small.find("tea", tiers=("archive", tier))) == ["a", "b", "c", "d", "e"]
    item = await small.store.get("ann", "a")
    assert (item.version, item.status) == (2, "archived")
    assert [each.change for each in await small.store.history("ann", "a")] == ["move"]


async def test_limits_are_of_a_tenant_and_of_a_tier(small) -> None:
    await add(small, *"abc")
    await add(small, *"def", tier="working")
    for number in range(3):
        await small.add("ann", "other", **{f"o{number}": "tea"})
        await small.add("bob", **{f"b{number}": "tea"})
    assert (await tier_of(small, "long_term"), await tier_of(small, "working")) == (list("abc"), list("def"))


async def test_uses_and_importance_keep_an_item(small) -> None:
    await add(small, "a")
    await add(small, "b", importance=1.0)
    await add(small, "c")
    small.clock.advance(1)
    await small.apply(Touch(memory_id="a"))
    await add(small, "d", "e")
    assert await tier_of(small, "long_term") == ["b", "d", "e"]
    assert await tier_of(small, "archive") == ["a", "c"]  # c was used longer ago, then a


async def test_importance_that_is_changed_counts(small) -> None:
    await add(small, *"abc")
    await small.apply(Revise(memory_id="a", version=1, importance=0.6))
    await add(small, "d")
    assert await tier_of(small, "archive") == ["b"]


async def test_moved_and_superseded_and_deleted_items_make_room(small) -> None:
    await add(small, *"abc")
    await small.apply(Move(memory_id="a", version=1, tier="working"))
    await add(small, "d")
    await small.apply(Supersede(memory_id="b", version=1, successor="d"))
    await add(small, "e")
    await small.apply(Delete(memory_id="c", version=1))
    await add(small, "f")
    assert await tier_of(small, "long_term") == ["d", "e", "f"]
    assert await tier_of(small, "archive") == []
    await small.apply(Move(memory_id="a", version=2, tier="long_term"))
    assert len(await tier_of(small, "long_term")) == 3


async def test_many_items_of_one_message_keep_to_the_limit(small) -> None:
    await small.add(**dict.fromkeys("abcdefgh", "tea"))
    assert len(await tier_of(small, "long_term")) == 3
    assert len(await tier_of(small, "archive")) == 5


async def test_an_item_that_comes_back_evicts_another(small) -> None:
    await add(small, *"ab")
    await small.apply(
        Remember(memory_id="m", text="both"),
        Link(source_id="m", relation="derived_from", target_id="a"),
        Link(source_id="m", relation="derived_from", target_id="b"),
        Supersede(memory_id="a", version=1, successor="m"),
        Supersede(memory_id="b", version=1, successor="m"),
    )
    await add(small, *"cd")
    small.clock.advance(1)
    await small.apply(Delete(memory_id="m", version=1))
    assert len(await tier_of(small, "long_term")) == 3
    assert len(await tier_of(small, "archive")) == 1


async def test_a_message_may_change_an_item_that_it_has_evicted(small) -> None:
    await add(small, *"abc")
    effects = (Remember(memory_id="d", text="tea"), Revise(memory_id="a", version=1, text="coffee"))
    assert await small.apply(*effects) == "applied"
    item = await small.store.get("ann", "a")
    assert (item.text, item.tier) == ("coffee", "archive")


async def test_other_tiers_have_no_limit_and_are_searched(small) -> None:
    await add(small, *"abcde", tier="parameter")
    assert len(await small.find("tea", limit=10, diversity="no")) == 5
    assert len(await small.find("tea", tiers=("parameter",), diversity="no")) == 5
    assert await small.find("tea", tiers=("working",)) == []
