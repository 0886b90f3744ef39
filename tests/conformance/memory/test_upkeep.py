"""Upkeep: what a store tells of its memories, and how a pass is taken back."""

from __future__ import annotations

import pytest

from reverie import Delete, Link, Remember, Revise, Supersede, Touch
from reverie.effect import InPass, Judged, Move, PassDone, UndoPass
from reverie.memory.upkeep import PASSES_KEPT, KeepsUpkeep

ANN = ("ann", "ann")
DAY_MS = 24 * 3600 * 1000


def in_pass(name: str = "p") -> InPass:
    return InPass(pass_id=name, label="mem_organize")


def merge(*names: str, into: str = "merged") -> list:
    return [
        Remember(memory_id=into, text="alpha beta"),
        *[Link(source_id=into, relation="derived_from", target_id=name) for name in names],
        *[Supersede(memory_id=name, version=1, successor=into) for name in names],
    ]


async def ids_of(bench, since: int = 0, after: int = 0, limit: int = 100) -> list[str]:
    return [one.item.id for one in await bench.store.changed(ANN, since, after, limit)]


def test_every_store_keeps_upkeep(bench) -> None:
    assert isinstance(bench.store, KeepsUpkeep)


# -- reading ---------------------------------------------------------------------------------------------


async def test_changed_items_come_in_pages_and_only_living_ones_of_the_tenant(bench) -> None:
    await bench.add(a="one", b="two", c="three", d={"text": "four", "tier": "archive"})
    await bench.add("bob", x="his")
    await bench.add("ann", "other", y="of another cube")
    assert await ids_of(bench) == ["a", "b", "c"]
    first = await bench.store.changed(ANN, 0, 0, 2)
    assert await ids_of(bench, after=first[-1].seq) == ["c"]
    bench.clock.advance(10)
    now = bench.clock.now()
    await bench.apply(Revise(memory_id="b", version=1, text="two again"))
    await bench.apply(Supersede(memory_id="a", version=1, successor="c"))
    await bench.apply(Touch(memory_id="c"))
    assert await ids_of(bench, since=now) == ["b"]
    assert await ids_of(bench) == ["b", "c"]


async def test_similar_items_are_found_by_their_words(bench) -> None:
    await bench.add(a="I like green tea", b="i LIKE green tea.", c="I like green tea and coffee", d="rain")
    found = await bench.store.similar(ANN, ["a"], least_cosine=0.8, least_overlap=0.9)
    assert {one.other: (one.cosine, one.overlap) for one in found} == {"b": (None, 1.0), "c": (None, 1.0)}
    assert {one.id for one in found} == {"a"}
    assert await bench.store.similar(ANN, ["d", "unknown"], least_cosine=0.8, least_overlap=0.9) == []
    assert await bench.store.similar(("bob", "bob"), ["a"], least_cosine=0, least_overlap=0) == []


async def test_similar_items_are_found_by_their_vectors(embedding) -> None:
    await embedding.add(a="tea in the garden", b="tea in the garden", c="numbers and letters")
    await embedding.add("bob", x="tea in the garden")
    await embedding.apply(Remember(memory_id="past", text="tea in the garden", tier="archive"))
    found = await embedding.store.similar(ANN, ["a", "c"], least_cosine=0.99, least_overlap=2)
    assert [(one.id, one.other, round(one.cosine, 2)) for one in found] == [("a", "b", 1.0)]


async def test_the_coldest_items_are_those_that_nobody_has_used(bench) -> None:
    await bench.add(a="one", b="two", c={"text": "three", "importance": 1.0})
    await bench.add(w={"text": "four", "tier": "working"})
    bench.clock.advance(100 * DAY_MS / 1000)
    await bench.add(new="new")
    await bench.add(old={"text": "learned long ago", "learned_at": 1})
    await bench.apply(Touch(memory_id="b"))
    cold = await bench.store.coldest(ANN, "long_term", bench.clock.now() - 50 * DAY_MS, 10)
    assert [item.id for item in cold] == ["a", "c"]
    (coldest,) = await bench.store.coldest(ANN, "long_term", bench.clock.now(), 1)
    assert coldest.id == "a"
    assert await bench.store.coldest(("bob", "bob"), "long_term", bench.clock.now(), 10) == []


async def test_tiers_are_counted(bench) -> None:
    await bench.add(a="one", b="two", c={"text": "three", "tier": "working"})
    await bench.apply(Move(memory_id="a", version=1, tier="archive"))
    assert await bench.store.tier_counts(ANN) == {"long_term": 1, "working": 1, "archive": 1}
    assert await bench.store.tier_counts(("bob", "bob")) == {}


async def test_judged_groups_and_the_end_of_a_pass_are_kept_by_tenant_and_label(bench) -> None:
    await bench.apply(Judged(keys=("k", "l")), Judged(keys=("k",)))
    assert sorted(await bench.store.judged(ANN, ["k", "l", "m"])) == ["k", "l"]
    assert await bench.store.judged(("bob", "bob"), ["k"]) == []
    assert await bench.store.upkeep_until(ANN, "mem_organize") is None
    await bench.apply(PassDone(label="mem_organize", until=7))
    await bench.apply(PassDone(label="mem_organize", until=5))
    assert await bench.store.upkeep_until(ANN, "mem_organize") == 7
    assert await bench.store.upkeep_until(ANN, "memory_compression") is None
    assert await bench.store.upkeep_until(("ann", "other"), "mem_organize") is None


async def test_tenants_that_have_grown(bench) -> None:
    async def grown(**given: int) -> list:
        await bench.store.count_fresh(["mem_organize"])
        asked = {"least": 3, "few": 3, "near": 9, "limit": 9} | given
        return await bench.store.grown("mem_organize", **asked)

    assert await grown() == []
    await bench.add(**dict.fromkeys("abc", "text"))
    await bench.add("bob", x="text")
    assert await grown() == await grown() == [ANN]
    assert await grown(few=1, near=1) == [ANN, ("bob", "bob")]
    assert await grown(limit=1, least=1) == [ANN]
    await bench.apply(PassDone(label="mem_organize", until=1))
    assert await grown() == []
    await bench.add("bob", y="text", z="text")
    assert await grown() == [("bob", "bob")]
    await bench.apply(Delete(memory_id="z", version=1), user_id="bob")
    assert await grown() == [("bob", "bob")]


# -- passes ----------------------------------------------------------------------------------------------


async def test_a_pass_that_changes_nothing_is_none(bench) -> None:
    await bench.add(a="alpha")
    assert await bench.apply(in_pass(), Judged(keys=("k",)), Touch(memory_id="a")) == "applied"
    assert await bench.store.passes(ANN, 10) == []
    assert await bench.apply(UndoPass(pass_id="p")) == "applied"


async def test_a_merge_is_taken_back(both) -> None:
    await both.add(a={"text": "alpha", "valid_to": 9**12}, b="beta")
    await both.apply(in_pass(), *merge("a", "b"))
    assert await both.find("alpha beta", diversity="no", tiers=("long_term",)) == ["merged"]
    (done,) = await both.store.passes(ANN, 10)
    assert (done.id, done.label, done.undone_at, done.changes) == ("p", "mem_organize", None, 5)
    await both.apply(UndoPass(pass_id="p"))
    assert sorted(await both.find("alpha beta")) == ["a", "b"]
    a, b = [await both.store.get("ann", name) for name in "ab"]
    assert (a.superseded_by, a.valid_to, b.superseded_by, b.valid_to) == (None, 9**12, None, None)
    assert await both.store.links("ann", "a") == await both.store.links("ann", "b") == []
    assert (await both.store.passes(ANN, 10))[0].undone_at == both.clock.now()
    await both.apply(UndoPass(pass_id="p"))
    assert sorted(await both.find("alpha beta")) == ["a", "b"]


async def test_a_replaced_fact_holds_again(bench) -> None:
    await bench.add(old="lives in Porto", new="lives in Lisbon")
    await bench.apply(in_pass(), Supersede(memory_id="old", version=1, successor="new"))
    await bench.apply(UndoPass(pass_id="p"))
    assert sorted(await bench.find("lives")) == ["new", "old"]
    assert (await bench.store.get("ann", "old")).valid_to is None
    assert await bench.store.links("ann", "new") == []


async def test_links_and_moves_are_taken_back_and_evictions_too(new_bench) -> None:
    bench = await new_bench(long_term_limit=2)
    await bench.add(a="alpha", b="beta", w={"text": "working", "tier": "working"})
    bench.clock.advance(1)
    mark = Link(source_id="b", relation="may_contradict", target_id="a")
    await bench.apply(mark)
    await bench.apply(
        in_pass(),
        mark,  # known before: it stays
        Link(source_id="b", relation="about", target_id="w"),
        Move(memory_id="w", version=1, tier="archive"),
        Remember(memory_id="c", text="gamma"),  # evicts a
    )
    assert (await bench.store.get("ann", "a")).tier == "archive"
    await bench.apply(UndoPass(pass_id="p"))
    assert [(await bench.store.get("ann", name)).tier for name in "abw"] == ["long_term"] * 2 + ["working"]
    assert [link.relation for link in await bench.store.links("ann", "b")] == ["may_contradict"]
    assert await bench.store.get("ann", "c") is None


async def test_what_was_deleted_since_stays_deleted(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma", old="Porto", new="Lisbon")
    await bench.apply(
        in_pass(),
        *merge("a", "b"),
        Move(memory_id="c", version=1, tier="archive"),
        Supersede(memory_id="old", version=1, successor="new"),
    )
    await bench.apply(Delete(memory_id="a", version=2), Delete(memory_id="c", version=2))
    await bench.apply(Delete(memory_id="old", version=2))
    await bench.apply(UndoPass(pass_id="p"))
    left = [name for name in ("a", "b", "c", "old", "new", "merged") if await bench.store.get("ann", name)]
    assert left == ["b", "new"]


async def test_what_somebody_has_changed_since_stays_as_it_is(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma")
    await bench.apply(in_pass(), *merge("a", "b"), Move(memory_id="c", version=1, tier="archive"))
    await bench.apply(Revise(memory_id="merged", version=1, text="alpha and beta"), Touch(memory_id="c"))
    await bench.apply(UndoPass(pass_id="p"))
    assert (await bench.store.get("ann", "merged")).text == "alpha and beta"
    assert {(await bench.store.get("ann", name)).superseded_by for name in "ab"} == {"merged"}
    assert (await bench.store.get("ann", "c")).tier == "long_term"


async def test_what_a_correction_has_replaced_since_does_not_come_back(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma", d="delta", e="epsilon")
    await bench.apply(in_pass(), *merge("a", "b", into="first"), *merge("d", "e", into="other"))
    await bench.apply(in_pass(), *merge("first", "c", into="second"))  # a later page of the same pass
    await bench.apply(
        Remember(memory_id="right", text="corrected"),
        Supersede(memory_id="second", version=1, successor="right"),
    )
    await bench.apply(UndoPass(pass_id="p"))
    successors = {name: (await bench.store.get("ann", name)).superseded_by for name in "abcde"}
    assert successors == {"a": "first", "b": "first", "c": "second", "d": None, "e": None}
    assert sorted(await ids_of(bench)) == ["d", "e", "right"]


async def test_what_was_merged_twice_in_a_pass_is_taken_back(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma")
    await bench.apply(in_pass(), *merge("a", "b", into="first"))
    await bench.apply(in_pass(), *merge("first", "c", into="second"))
    await bench.apply(UndoPass(pass_id="p"))
    assert await ids_of(bench) == ["a", "b", "c"]
    assert await bench.store.get("ann", "first") is None


async def test_what_comes_back_from_the_archive_counts_as_used(bench) -> None:
    await bench.add(a="alpha", b={"text": "beta", "importance": 1.0})
    bench.clock.advance(200 * DAY_MS / 1000)
    moves = [Move(memory_id=name, version=1, tier="archive") for name in "ab"]
    await bench.apply(in_pass(), *moves)
    await bench.apply(UndoPass(pass_id="p"))
    before = bench.clock.now() - 100 * DAY_MS
    assert await bench.store.coldest(ANN, "long_term", before, 10) == []
    bench.clock.advance(101 * DAY_MS / 1000)
    cold = await bench.store.coldest(ANN, "long_term", bench.clock.now() - 100 * DAY_MS, 10)
    assert [item.id for item in cold] == ["a", "b"]


async def test_what_no_tier_has_room_for_stays_in_the_archive_and_pushes_nothing_out(new_bench) -> None:
    bench = await new_bench(long_term_limit=2)
    await bench.add(a="alpha")
    bench.clock.advance(1)
    await bench.add(b="beta")
    await bench.apply(in_pass(), Move(memory_id="a", version=1, tier="archive"))
    await bench.add(c="gamma")
    await bench.apply(UndoPass(pass_id="p"))
    assert [(await bench.store.get("ann", name)).tier for name in "abc"] == ["archive"] + 2 * ["long_term"]


async def test_a_late_message_of_a_pass_that_was_taken_back_writes_nothing(bench) -> None:
    await bench.add(a="alpha", b="beta", c="gamma")
    await bench.apply(in_pass(), *merge("a", "b"))
    await bench.apply(UndoPass(pass_id="p"))
    moved = Move(memory_id="c", version=1, tier="archive")
    assert await bench.apply(in_pass(), moved, PassDone(label="mem_organize", until=5)) == "applied"
    assert (await bench.store.get("ann", "c")).tier == "long_term"
    assert await bench.store.upkeep_until(ANN, "mem_organize") is None


async def test_messages_of_one_pass_are_taken_back_together_and_only_the_last_passes_are_kept(bench) -> None:
    await bench.add(**dict.fromkeys("abcdefghijklm", "text"))
    for number, name in enumerate("abcdefghijkl"):
        await bench.apply(in_pass(str(number)), Move(memory_id=name, version=1, tier="archive"))
    await bench.apply(in_pass("11"), Move(memory_id="m", version=1, tier="archive"))
    kept = await bench.store.passes(ANN, 100)
    assert [done.id for done in kept] == [str(number) for number in range(11, 11 - PASSES_KEPT, -1)]
    assert kept[0].changes == 2
    await bench.apply(UndoPass(pass_id="11"))
    tiers = [(await bench.store.get("ann", name)).tier for name in "klm"]
    assert tiers == ["archive", "long_term", "long_term"]


# -- the archive -----------------------------------------------------------------------------------------


async def test_an_archived_item_comes_back_when_it_is_used(both) -> None:
    await both.add(a="alpha", b="beta")
    await both.apply(Move(memory_id="a", version=1, tier="archive"))
    await both.apply(Touch(memory_id="a"), Touch(memory_id="b"))
    item = await both.store.get("ann", "a")
    assert (item.tier, item.access_count, item.version) == ("long_term", 1, 3)
    assert await both.find("alpha", limit=1) == ["a"]


async def test_a_superseded_item_does_not_come_back(bench) -> None:
    await bench.add(a="alpha", b="beta")
    await bench.apply(Move(memory_id="a", version=1, tier="archive"))
    await bench.apply(Supersede(memory_id="a", version=2, successor="b"))
    await bench.apply(Touch(memory_id="a"))
    assert (await bench.store.get("ann", "a")).tier == "archive"


async def test_a_message_may_change_an_item_that_its_own_access_brought_back(bench) -> None:
    await bench.add(a="alpha")
    await bench.apply(Move(memory_id="a", version=1, tier="archive"))
    assert await bench.apply(Touch(memory_id="a"), Revise(memory_id="a", version=2, text="new")) == "applied"


async def test_the_archive_is_searched_when_too_little_is_found_without_it(both) -> None:
    await both.add(a="tea in spring", b="tea in summer", c="tea in autumn")
    await both.apply(Move(memory_id="a", version=1, tier="archive"))
    assert sorted(await both.find("tea in spring", limit=2, diversity="no")) == ["b", "c"]
    found = await both.search("tea in spring", limit=3, diversity="no")
    assert found[0].item.id == "a"
    assert sorted(hit.item.id for hit in found) == ["a", "b", "c"]
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert "a" not in await both.find("tea in spring", tiers=("long_term",))


async def test_hits_below_the_threshold_do_not_count_as_found(both) -> None:
    await both.add(a="tea in spring", b="the tax office closes at noon")
    await both.apply(Move(memory_id="a", version=1, tier="archive"))
    assert await both.find("tea in spring", limit=1, threshold=0.45) == ["a"]


async def test_superseded_items_of_the_archive_are_not_found(bench) -> None:
    await bench.add(a="tea in spring", b="tea in summer")
    await bench.apply(Move(memory_id="a", version=1, tier="archive"))
    await bench.apply(Supersede(memory_id="a", version=2, successor="b"))
    assert await bench.find("tea") == ["b"]


@pytest.mark.parametrize("kinds", [("fact",), ("event",)])
async def test_filters_hold_in_the_archive(bench, kinds: tuple[str, ...]) -> None:
    await bench.add(a={"text": "tea", "tier": "archive"})
    await bench.add(b={"text": "tea", "kind": "event", "tier": "archive"})
    assert await bench.find("tea", kinds=kinds) == (["a"] if kinds == ("fact",) else ["b"])
