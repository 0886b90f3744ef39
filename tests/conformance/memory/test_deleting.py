"""Deleting: what goes with an item, what stays, and what can no longer be written."""

from __future__ import annotations

import pytest

from reverie import Delete, Link, Remember, Revise, Supersede
from reverie.effect import Move, Source


def source(item_id: str, index: int = 0) -> Source:
    return Source(item_id=item_id, index=index)


async def delete(bench, memory_id: str, version: int = 1) -> None:
    assert await bench.apply(Delete(memory_id=memory_id, version=version)) == "applied"


async def test_nothing_of_a_deleted_item_is_left(both) -> None:
    await both.add(a="secret words", b="other words")
    await both.apply(
        Revise(memory_id="a", version=1, text="secret words twice"),
        Link(source_id="b", relation="about", target_id="a"),
    )
    await both.index()
    await delete(both, "a", version=2)
    assert await both.store.get("ann", "a") is None
    assert await both.store.is_deleted("ann", "a")
    assert not await both.store.is_deleted("ann", "b")
    assert not await both.store.is_deleted("bob", "a")
    assert await both.store.history("ann", "a") == []
    assert await both.store.links("ann", "b") == []
    assert await both.store.items(("ann", "ann"), ["a", "b"]) == [await both.store.get("ann", "b")]
    assert "a" not in await both.find("secret words twice")
    assert "a" not in await both.find("secret words twice", as_of=both.clock.now())


async def test_a_deleted_id_is_never_written_again_and_the_rest_of_the_message_is(both) -> None:
    await both.add(a="secret words", b="other")
    await delete(both, "a")
    effects = (
        Remember(memory_id="a", text="secret words"),
        Link(source_id="b", relation="about", target_id="a"),
        Revise(memory_id="a", version=1, text="secret"),
        Move(memory_id="a", version=1, tier="working"),
        Supersede(memory_id="b", version=1, successor="a"),
        Supersede(memory_id="a", version=1, successor="b"),
        Delete(memory_id="a", version=1),
        Remember(memory_id="c", text="also new"),
    )
    assert await both.apply(*effects) == "applied"
    assert await both.store.get("ann", "a") is None
    assert (await both.store.get("ann", "c")).text == "also new"
    assert (await both.store.get("ann", "b")).superseded_by is None
    assert await both.store.links("ann", "b") == []
    assert "a" not in await both.find("secret")
    await both.add("bob", a="the id of another user")


async def test_an_item_without_a_living_source_is_not_written(bench) -> None:
    await bench.apply(
        *[Remember(memory_id=f"m.{n}", text=f"turn {n}", sources=(source("m", n),)) for n in range(2)]
    )
    await delete(bench, "m.0")
    effects = (
        Remember(memory_id="none", text="of one", sources=(source("m", 0),)),
        Remember(memory_id="half", text="of both", sources=(source("m", 0), source("m", 1))),
        Remember(memory_id="free", text="of nothing"),
    )
    assert await bench.apply(*effects) == "applied"
    assert [await bench.store.get("ann", name) is None for name in ("none", "half", "free")] == [
        True, False, False,
    ]  # fmt: skip


async def test_a_source_that_is_itself_a_memory_is_living_as_long_as_that_is(bench) -> None:
    """A text that was put into a buffer has an id of its own, which its facts name."""
    await bench.apply(Remember(memory_id="blob", text="a text"))
    await delete(bench, "blob")
    await bench.apply(Remember(memory_id="fact", text="of it", sources=(source("blob", 0),)))
    assert await bench.store.get("ann", "fact") is None


async def test_an_id_can_be_deleted_before_it_is_written(bench) -> None:
    await delete(bench, "m.0", version=0)
    await delete(bench, "m.0", version=0)
    assert await bench.store.is_deleted("ann", "m.0")
    assert await bench.apply(
        Remember(memory_id="m.0", text="too late"), Remember(memory_id="m.1", text="kept")
    ) == "applied"  # fmt: skip
    assert await bench.find("late kept") == ["m.1"]


def merge(*names: str, into: str = "merged") -> list:
    """The effects by which items become one."""
    return [
        Remember(memory_id=into, text="alpha beta gamma of " + " ".join(names)),
        *[Link(source_id=into, relation="derived_from", target_id=name) for name in names],
        *[Supersede(memory_id=name, version=1, successor=into) for name in names],
    ]


async def test_a_merged_item_goes_with_any_of_its_members_and_the_others_come_back(both) -> None:
    await both.add(a="alpha", b="beta", c="gamma")
    await both.apply(*merge("a", "b", "c"))
    assert await both.find("alpha beta gamma", diversity="no") == ["merged"]
    await delete(both, "a", version=2)
    for name in ("a", "merged"):
        assert await both.store.get("ann", name) is None
        assert await both.store.is_deleted("ann", name)
    for name in ("b", "c"):
        item = await both.store.get("ann", name)
        assert (item.superseded_by, item.valid_to, item.version) == (None, None, 3)
        assert await both.store.links("ann", name) == []
    assert sorted(await both.find("alpha beta gamma")) == ["b", "c"]


async def test_the_members_of_a_merged_item_that_is_deleted_come_back(both) -> None:
    await both.add(a="alpha", b="beta")
    await both.apply(*merge("a", "b"))
    await delete(both, "merged")
    assert sorted(await both.find("alpha beta")) == ["a", "b"]


async def test_members_are_deleted_with_what_they_were_merged_into_if_wanted(both) -> None:
    await both.add(a="alpha", b="beta", c="gamma", d="delta", new="new", old="alpha before")
    await both.apply(*merge("a", "b", into="first"))
    await both.apply(*merge("first", "c", into="second"), *merge("d", into="other"))
    await both.apply(Supersede(memory_id="old", version=1, successor="new"))
    for name in ("second", "new"):
        await both.apply(Delete(memory_id=name, version=1, with_members=True))
    deleted = [
        name for name in ("a", "b", "c", "first", "second") if await both.store.is_deleted("ann", name)
    ]
    assert deleted == ["a", "b", "c", "first", "second"]
    assert await both.find("alpha beta gamma delta") == ["other"]
    assert (await both.store.get("ann", "old")).superseded_by == "new"  # it was replaced, and not merged


async def test_a_message_may_change_an_item_that_its_own_deletion_brought_back(bench) -> None:
    await bench.add(a="alpha", b="beta")
    await bench.apply(*merge("a", "b"))
    effects = (Delete(memory_id="a", version=2), Revise(memory_id="b", version=2, text="beta alone"))
    assert await bench.apply(*effects) == "applied"
    assert (await bench.store.get("ann", "b")).text == "beta alone"


async def test_a_merge_of_merges_goes_whole(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma")
    await bench.apply(*merge("a", "b", into="first"))
    await bench.apply(*merge("first", "c", into="second"))
    await delete(bench, "a", version=2)
    assert sorted(await bench.find("alpha beta gamma")) == ["b", "c"]
    assert await bench.store.is_deleted("ann", "second")


async def test_derived_items_go_with_their_last_source(bench) -> None:
    await bench.add(a="alpha", b="beta", one="from a", two="from a and b", deep="from one")
    await bench.apply(
        Link(source_id="one", relation="derived_from", target_id="a"),
        Link(source_id="two", relation="derived_from", target_id="a"),
        Link(source_id="two", relation="derived_from", target_id="b"),
        Link(source_id="deep", relation="derived_from", target_id="one"),
    )
    await delete(bench, "a")
    assert [name for name in ("one", "two", "deep") if await bench.store.get("ann", name)] == ["two"]
    assert await bench.store.is_deleted("ann", "deep")
    await delete(bench, "b")
    assert await bench.store.get("ann", "two") is None


@pytest.mark.parametrize("first", ["a", "b"])
async def test_items_that_are_derived_from_each_other_end_together(bench, first: str) -> None:
    await bench.add(a="alpha", b="beta")
    await bench.apply(
        Link(source_id="a", relation="derived_from", target_id="b"),
        Link(source_id="b", relation="derived_from", target_id="a"),
        Link(source_id="a", relation="derived_from", target_id="a"),
    )
    await delete(bench, first)
    if first == "a":
        assert await bench.store.is_deleted("ann", "b")
    else:
        assert await bench.store.get("ann", "a") is not None  # it names itself as a source


async def test_a_superseded_item_whose_successor_is_deleted_stays_superseded(bench) -> None:
    await bench.add(old="lives in Porto", new="lives in Lisbon")
    await bench.apply(Supersede(memory_id="old", version=1, successor="new"))
    await delete(bench, "new")
    old = await bench.store.get("ann", "old")
    assert (old.superseded_by, await bench.store.is_deleted("ann", "new")) == ("new", True)
    assert await bench.find("lives") == []


async def test_the_place_of_a_deleted_turn_is_not_given_again(bench) -> None:
    await bench.add(**{f"t{n}": {"text": f"turn {n}", "session_id": "s"} for n in range(3)})
    await delete(bench, "t2")
    await bench.add(t3={"text": "turn 3", "session_id": "s"})
    item = await bench.store.get("ann", "t3")
    assert [each.id for each in await bench.store.neighbours(item, 1)] == []
    assert [each.id for each in await bench.store.neighbours(item, 2)] == ["t1"]
