"""Search: what is found, in which order, and what an answer says about itself."""

from __future__ import annotations

import asyncio

import pytest

from reverie import Link, Revise, Supersede
from reverie.effect import Source
from reverie.errors import ReadTimeoutError
from reverie.memory.sqlite.search import SqliteIndexReader

DAY = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("I moved to Lisbon", "who is moving?"),
        ("Caffè in Zürich", "cafe zurich"),
        ("我住在里斯本的海边", "里斯本在哪里"),
        ("昨日は東京に行きました", "東京"),
        ("나는 서울에 산다", "서울"),
        ("부산에서 만난 친구", "부산 친구"),
        ("京都の庭はとても静かだ", "静かな庭"),
        ("她最喜欢的水果是芒果", "喜欢什么水果?"),
        ('she said "NEAR"', 'the word "NEAR" OR NOT NEAR('),
        ("the year 2026", "2026"),
        ("на столе чай", "чай"),
        ("яд", "яд"),
        ("the and of", "the of"),
    ],
)
async def test_words_are_found_without_vectors(bench, text: str, query: str) -> None:
    await bench.add(a=text, b="nothing like it", c="一个别的句子 별개")
    found = await bench.search(query)
    assert found[0].item.id == "a"
    assert found.degraded == ()


async def test_the_best_comes_first(both) -> None:
    await both.add(a="tea", b="green tea from Uji", c="coffee")
    hits = await both.search("green tea")
    assert [hit.item.id for hit in hits][:2] == ["b", "a"]
    assert 1 >= hits[0].score > hits[1].score > 0


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "\x00", "\ud800"])
async def test_a_query_without_words_finds_nothing(bench, query: str) -> None:
    await bench.add(a="some words")
    assert await bench.find(query) == []


@pytest.mark.parametrize("query", ["", "?!", "\x00", "x" * 100_000, "é" * 5000, "里" * 5000])
async def test_an_odd_query_is_no_error(both, query: str) -> None:
    await both.add(a="some words")
    await both.search(query)


async def test_nothing_is_found_of_nobody(both) -> None:
    assert await both.find("tea") == []
    await both.add(a="tea")
    assert await both.find("tea", "bob") == []
    assert await both.find("tea", mem_cube_ids=("attic",)) == []


async def test_search_keeps_to_user_and_cubes(both) -> None:
    for user, cube in (("ann", "home"), ("ann", "office"), ("bob", "home")):
        await both.add(user, cube, **{f"{user}-{cube}": "some words"})
    assert sorted(await both.find("words")) == ["ann-home", "ann-office"]
    assert await both.find("words", mem_cube_ids=("home",)) == ["ann-home"]
    assert sorted(await both.find("words", mem_cube_ids=("home", "office"))) == ["ann-home", "ann-office"]
    assert len(await both.find("words", limit=1)) == 1


async def test_other_tenants_change_nothing_at_all(both) -> None:
    async def ask():
        found = await both.search("green tea with Bob", explain=True, neighbours=1, hops=1)
        return [(hit.score, hit.signals, hit.neighbours, hit.linked, hit.item) for hit in found]

    turns = {
        f"t{n}": {"text": text, "session_id": "s", "sources": (Source(item_id="m", index=n, name="Bob"),)}
        for n, text in enumerate(["green tea", "a house in Porto", "tea leaves", "Lisbon by train"])
    }
    await both.add(**turns)
    before = await ask()
    assert len(before) >= 2
    for user, cube in (("bob", ""), ("eve", "ann"), ("anna", "ann")):
        await both.add(user, cube, **turns, more="green green green tea", other="tea")
    await both.apply(Link(source_id="t0", relation="about", target_id="t1"), user_id="bob")
    assert await ask() == before


async def test_filters(both) -> None:
    now = both.clock.now()
    await both.add(
        a={"text": "tea one", "kind": "event", "tags": ("x", "y"), "device_id": "phone"},
        b={
            "text": "tea two",
            "kind": "fact",
            "tags": ("z",),
            "agent_id": "bot",
            "valid_from": now - 10 * DAY,
        },
        c={"text": "tea three", "kind": "preference", "tier": "working", "learned_at": now - 5 * DAY},
        d={"text": "tea four", "tier": "archive"},
    )

    async def find(**filters) -> str:
        return "".join(sorted(await both.find("tea", diversity="no", **filters)))

    assert await find(limit=3) == "abc"
    assert await find() == "abcd"
    assert await find(kinds=("event", "preference")) == "ac"
    assert await find(kinds=("none",)) == ""
    assert await find(without_kinds=("event",)) == "bcd"
    assert await find(tags=("y", "z")) == "ab"
    assert await find(tags=("w",)) == ""
    assert await find(tiers=("working",)) == "c"
    assert await find(tiers=("archive",)) == "d"
    assert await find(device_id="phone") == "a"
    assert await find(agent_id="bot") == "b"
    assert await find(agent_id="bot", device_id="phone") == ""
    assert await find(since=now - 5 * DAY) == "acd"
    assert await find(until=now - 5 * DAY) == "b"
    assert await find(since=now - 10 * DAY, until=now) == "bc"
    assert await find(kinds=("event",), tags=("z",)) == ""


async def test_as_of_finds_what_held_then_superseded_or_not(both) -> None:
    now = both.clock.now()
    await both.add(
        porto={"text": "lives in Porto", "valid_from": now - 30 * DAY},
        lisbon={"text": "lives in Lisbon", "valid_from": now - 10 * DAY},
        trip={"text": "lives in a tent", "valid_from": now - 20 * DAY, "valid_to": now - 19 * DAY},
        old={"text": "lives in the attic", "tier": "archive", "valid_from": now - 20 * DAY},
    )
    await both.apply(Supersede(memory_id="porto", version=1, successor="lisbon"))

    async def held(days_ago: float) -> list[str]:
        return sorted(await both.find("lives", as_of=round(now - days_ago * DAY), diversity="no"))

    assert await held(31) == []
    assert await held(25) == ["porto"]
    assert await held(19.5) == ["old", "porto", "trip"]
    assert await held(15) == ["old", "porto"]
    assert await held(10) == ["lisbon", "old"]
    assert sorted(await both.find("lives", limit=2, diversity="no")) == ["lisbon", "trip"]
    assert await both.find("lives", as_of=now - 15 * DAY, kinds=("event",)) == []


async def test_a_session_is_raised_and_the_others_are_still_found(both) -> None:
    for name in ("a", "b", "c"):
        await both.add(**{name: {"text": "green tea", "session_id": name}})
    for name in ("a", "b", "c"):
        found = await both.find("green tea", session_id=name, diversity="no")
        assert found[0] == name
        assert sorted(found) == ["a", "b", "c"]
    assert len(await both.find("green tea", session_id="unknown", diversity="no")) == 3


async def test_a_session_is_raised_in_each_cube(both) -> None:
    for cube in ("home", "office"):
        for session in ("now", "then"):
            await both.add("ann", cube, **{f"{cube}-{session}": {"text": "tea", "session_id": session}})
    found = await both.find("tea", session_id="now", diversity="no")
    assert sorted(found[:2]) == ["home-now", "office-now"]


async def test_preferences_come_beside_the_other_hits(both) -> None:
    await both.add(
        fact="drinks tea at noon",
        **{f"p{n}": {"text": f"prefers tea number {n}", "kind": "preference"} for n in range(3)},
    )
    found = await both.search("tea", preferences=2, diversity="no")
    assert [hit.item.id for hit in found] == ["fact"]
    assert len(found.preferences) == 2
    assert {hit.item.kind for hit in found.preferences} == {"preference"}
    found = await both.search("tea", diversity="no")
    assert (len(found), found.preferences) == (4, [])


async def test_many_preferences_do_not_crowd_out_the_other_hits(both) -> None:
    await both.add(**{f"p{n}": {"text": "tea", "kind": "preference"} for n in range(350)})
    await both.add(fact="a long story of a walk by the river, a house, a cat, some rain and in the end tea")
    found = await both.search("tea", preferences=2)
    assert [hit.item.id for hit in found] == ["fact"]


async def test_neighbours_and_hops(both) -> None:
    await both.add(**{f"t{n}": {"text": f"turn {n}", "session_id": "s"} for n in range(6)})
    await both.add(
        tea={"text": "green tea", "session_id": "s"},
        after={"text": "a turn after", "session_id": "s"},
        elsewhere={"text": "far away", "session_id": "other"},
        far="very far away",
    )
    await both.apply(
        Link(source_id="tea", relation="about", target_id="elsewhere"),
        Link(source_id="far", relation="about", target_id="elsewhere"),
    )

    async def ask(**query) -> tuple[list[str], list[str]]:
        hit = (await both.search("green tea", **query))[0]
        assert hit.item.id == "tea"
        return [item.id for item in hit.neighbours], [item.id for item in hit.linked]

    assert await ask() == ([], [])
    assert await ask(neighbours=1) == (["t5", "after"], [])
    assert await ask(neighbours=2, hops=1) == (["t4", "t5", "after"], ["elsewhere"])
    assert await ask(hops=2) == ([], ["elsewhere", "far"])
    await both.apply(Supersede(memory_id="t5", version=1, successor="t4"))
    assert await ask(neighbours=2) == (["t4", "after"], [])


async def test_the_turns_around_a_hit_in_the_store(bench) -> None:
    for number in range(5):
        await bench.add(**{f"t{number}": {"text": f"turn {number}", "session_id": "s"}})
        await bench.add(**{f"u{number}": {"text": f"turn {number}", "session_id": "other"}})
    item = await bench.store.get("ann", "t2")
    assert [each.id for each in await bench.store.neighbours(item, 1)] == ["t1", "t3"]
    assert [each.id for each in await bench.store.neighbours(item, 9)] == ["t0", "t1", "t3", "t4"]
    await bench.apply(Revise(memory_id="t1", version=1, text="another text"))
    assert [each.id for each in await bench.store.neighbours(item, 1)] == ["t1", "t3"]


async def test_max_tokens_cuts_and_says_how_many(bench) -> None:
    await bench.add(a="tea " * 10, b="tea " * 10 + "b", c="tea " * 10 + "c")
    whole = await bench.search("tea", diversity="no")
    assert (len(whole), whole.cut) == (3, 0)
    some = await bench.search("tea", max_tokens=25, diversity="no")
    assert (len(some), some.cut) == (2, 1)
    none = await bench.search("tea", max_tokens=1, diversity="no")
    assert (len(none), none.cut) == (0, 3)


async def test_max_tokens_bounds_everything_that_comes_back(bench) -> None:
    await bench.add(
        **{f"t{n}": {"text": f"tea {n}".ljust(40, "."), "session_id": "s"} for n in range(5)},
        **{f"p{n}": {"text": f"likes tea {n}".ljust(40, "."), "kind": "preference"} for n in range(2)},
    )
    await bench.apply(*[Link(source_id="t2", relation="about", target_id=f"t{n}") for n in (0, 4)])

    async def ask(max_tokens: int | None) -> tuple[int, int]:
        """How many texts of ten tokens come back, and how many hits are cut."""
        options = {"limit": 3, "preferences": 2, "neighbours": 2, "hops": 1, "diversity": "no"}
        found = await bench.search("tea", max_tokens=max_tokens, **options)
        hits = [*found.hits, *found.preferences]
        return sum(1 + len(hit.neighbours) + len(hit.linked) for hit in hits), found.cut

    texts, _ = await ask(None)
    assert texts > 10
    for given, comes, cut in ((texts, texts, 0), (texts - 1, texts - 1, 0), (5, 5, 0), (3, 3, 2), (0, 0, 5)):
        assert await ask(10 * given + 9) == (comes, cut)


async def test_a_threshold_drops_and_says_how_many(both) -> None:
    await both.add(
        a="green tea from Uji", b="tea", **{f"x{n}": f"something else {n}" for n in range(20)},
    )  # fmt: skip
    whole = await both.search("green tea from Uji", limit=50)
    assert whole.dropped == 0
    good = await both.search("green tea from Uji", threshold=0.45, limit=50)
    assert "a" in [hit.item.id for hit in good]
    assert all(hit.score >= 0.45 for hit in good)
    assert len(good) + good.dropped == len(whole)
    assert len(await both.search("green tea from Uji", threshold=1.1)) == 0


async def test_explain_says_signals_ranks_and_times(both) -> None:
    await both.add(
        a={"text": "green tea", "sources": (Source(item_id="m", name="Bob"),)}, b="a house", c="tea leaves"
    )
    found = await both.search("what tea did Bob drink last week?", explain=True)
    top = found[0]
    assert (top.item.id, top.signals["text_rank"]) == ("a", 1)
    assert top.signals["text"] > 0
    assert {"filters", "words", "vectors", "candidates", "ranking", "items"} <= found.timings_ms.keys()
    assert found.explanation["interval"] is not None
    assert "tea" in found.explanation["words"]
    if both.embedder is not None:
        assert top.signals["vector_rank"] >= 1
        assert found.explanation["embedder"] == "wordllama-256"
        assert found.explanation["names"] == ["Bob"]
    plain = await both.search("tea")
    assert (plain.timings_ms, plain.explanation, plain[0].signals) == (None, None, None)


async def test_a_time_in_the_query_raises_what_held_then(both) -> None:
    now = both.clock.now()
    await both.add(
        **{
            f"d{n}": {"text": "had green tea", "valid_from": now - n * DAY, "learned_at": now}
            for n in range(5)
        }
    )
    yesterday = await both.find("tea yesterday", diversity="no")
    assert yesterday[0] == "d1"
    asked_then = await both.find("tea yesterday", reference_time=now - 2 * DAY, diversity="no")
    assert asked_then[0] == "d3"
    assert sorted(asked_then) == ["d0", "d1", "d2", "d3", "d4"]


async def test_duplicates_are_dropped_by_sim_alone(both) -> None:
    await both.add(
        **{f"same{n}": "the green tea of Uji" for n in range(4)}, other="green tea and a red house"
    )
    assert len(await both.find("green tea", diversity="no")) == 5
    found = await both.find("green tea", diversity="sim")
    assert len(found) == 2
    assert "other" in found


async def test_the_limit_holds(both) -> None:
    await both.add(**{f"m{n}": f"tea number {n}" for n in range(120)})
    for limit in (1, 10, 60, 119):
        assert len(await both.find("tea", limit=limit)) == limit
    assert len(await both.find("tea", limit=1000, diversity="no")) == 120


async def test_speakers_and_titles_and_facts_are_found(bench) -> None:
    await bench.add(
        a={"text": "yes", "sources": (Source(item_id="m", name="Melanie"),)},
        b={"text": "ran a tool", "title": "Deploying kangaroos"},
        c={"text": "looked at it", "narrative": "a giraffe", "facts": ("a zebra", "a lion")},
    )
    for query, name in (("Melanie", "a"), ("kangaroo", "b"), ("giraffe", "c"), ("zebra", "c"), ("lion", "c")):
        assert await bench.find(query) == [name]


async def test_the_rarest_words_of_a_long_query_are_searched_for(new_bench) -> None:
    bench = await new_bench(max_query_words=2, max_query_words_counted=6)
    texts = ["green tea", "green leaves", "green tea leaves", "green jasmine"]
    await bench.add(**{str(number): text for number, text in enumerate(texts)})

    async def ask(text: str) -> tuple[set[str], int]:
        hits = await bench.search(text)
        return {hit.item.id for hit in hits}, hits.words_left_out

    assert await ask("green Green GREEN tea") == ({"0", "1", "2", "3"}, 0)
    assert await ask("green tea jasmine") == ({"0", "2", "3"}, 1)
    assert await ask("unknown words of no index jasmine") == ({"3"}, 0)
    assert await ask("unknown words of no index jasmine green tea") == ({"0", "2", "3"}, 1)
    assert await ask("six words that nobody used before: jasmine tea") == ({"3"}, 1)


async def test_a_search_that_takes_too_long_is_an_error_and_never_nothing_found(new_bench) -> None:
    bench = await new_bench(search_timeout_s=1e-6)
    with pytest.raises(ReadTimeoutError, match=r"memory\.search_timeout_s"):
        await bench.search("tea")


async def test_large_tenants_are_searched_by_vectors_and_words(embedding) -> None:
    """A shelf that is too large to be ranked whole: with filters, and in the past."""
    await embedding.add(**{f"m{n}": f"note number{n} about topic{n % 7}" for n in range(700)})
    await embedding.add(target={"text": "note about kangaroos", "kind": "event", "tier": "archive"})
    found = await embedding.search("number345", explain=True)
    assert found[0].item.id == "m345"
    assert found[0].signals["vector_rank"] == 1
    assert found.degraded == ()
    assert await embedding.find("kangaroos", kinds=("event",), tiers=("archive",)) == ["target"]
    assert "target" in await embedding.find("kangaroos", as_of=embedding.clock.now())


async def test_an_embedder_that_fails_is_named_and_words_still_count(embedding) -> None:
    await embedding.add(a="green tea")
    embedding.embedder.fails = True
    await embedding.add(b="black tea")
    found = await embedding.search("tea", diversity="no")
    assert sorted(hit.item.id for hit in found) == ["a", "b"]
    assert "the embedder is away" in found.degraded[0]
    assert (await embedding.index()).left == 1
    embedding.embedder.fails = False
    found = await embedding.search("tea", diversity="no")
    assert sorted(hit.item.id for hit in found) == ["a", "b"]
    assert "no vector yet" in found.degraded[0]
    assert (await embedding.index()).left == 0
    found = await embedding.search("black", explain=True)
    assert (found[0].item.id, found.degraded) == ("b", ())
    assert found[0].signals["vector_rank"] == 1


async def test_a_search_sees_one_state_of_the_store(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is committed while a search reads must not show half of itself."""
    if bench.store._database.path == ":memory:":
        pytest.skip("a search and a change take turns, because there is only one connection")
    await bench.add(old="lives in Porto", other="lives in Rome", new="a house")
    supersede = Supersede(memory_id="old", version=1, successor="new")
    loop, original = asyncio.get_running_loop(), SqliteIndexReader.items

    def items(reader, seqs):
        assert asyncio.run_coroutine_threadsafe(bench.apply(supersede), loop).result(30) == "applied"
        return original(reader, seqs)

    monkeypatch.setattr(SqliteIndexReader, "items", items)
    found = await bench.search("lives", diversity="no")
    assert [(hit.item.id, hit.item.superseded_by) for hit in found] == [("other", None), ("old", None)]
    monkeypatch.undo()
    assert await bench.find("lives") == ["other"]
