"""Upkeep: what `mem_organize`, `memory_compression` and `mem_archive` do with the memories of a tenant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reverie.effect import Source, Supersede, Touch
from reverie.memory.interface import PageQuery
from reverie.memory.query import SearchQuery
from reverie.turn import Turn
from support.scripted_model import Answer, scripted
from support.tidier import memories_in, tidy
from support.upkeep_home import ANN, DAY_MS, DAY_S, home

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from support.scripted_model import ScriptedModel
    from support.upkeep_home import Home


@pytest.fixture
async def bare() -> AsyncIterator[Home]:
    """Without a language model."""
    async with home() as here:
        yield here


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = tidy
        yield model


@pytest.fixture
async def helped(model: ScriptedModel) -> AsyncIterator[Home]:
    """With a language model."""
    async with home(model, upkeep={"similarity": 0.5}) as here:
        yield here


def said(index: int, name: str = "Ann") -> dict[str, Any]:
    return {"sources": (Source(item_id="m", index=index, role="user", name=name),)}


# -- texts that say the same -----------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["mem_organize", "memory_compression"])
async def test_equal_texts_become_one_with_both_sources(bare: Home, label: str) -> None:
    await bare.keep(
        a={"text": "I like tea", "kind": "turn", **said(0)},
        b={"text": "i like  TEA.", "kind": "turn", **said(1)},
        c={"text": "I like tea", "kind": "turn", **said(2, "Bob")},
        d={"text": "I like rain", "kind": "turn", **said(3)},
    )
    await bare.run(label)
    merged = await bare.get((await bare.get("a")).superseded_by or "")
    assert {source.index for source in merged.sources} == {0, 1}
    assert (await bare.get("b")).superseded_by == merged.id
    assert (merged.kind, merged.text) in {("turn", "I like tea"), ("turn", "i like  TEA.")}
    assert {(await bare.get(name)).superseded_by for name in "cd"} == {None}
    assert await bare.states() == ["completed"] * len(await bare.states())
    page = await bare.store.page(PageQuery(user_id="ann"))
    assert len(page.items) == 3
    await bare.run(label)
    assert page == await bare.store.page(PageQuery(user_id="ann"))


async def test_what_is_said_every_day_keeps_its_sources_once(bare: Home) -> None:
    days = range(6)
    for day in days:
        await bare.keep(**{f"d{day}": {"text": "Good morning to you", "kind": "turn", **said(day)}})
        await bare.run("mem_organize")
        bare.clock.advance(DAY_S)
    (merged,) = (await bare.living()).values()
    assert sorted(source.index for source in merged.sources) == list(days)
    page = await bare.store.page(PageQuery(user_id="ann", with_superseded=True))
    assert sum(len(item.sources) for item in page.items) == len(days) + len(days) + 4
    for left in (5, 4):  # what is taken back has all its sources again
        await bare.scheduler.upkeep.undo(user_id="ann")
        earlier = next(
            item for item in (await bare.store.page(PageQuery(user_id="ann"))).items if len(item.sources) > 1
        )
        assert sorted(source.index for source in earlier.sources) == list(range(left))
    await bare.scheduler.memory.delete("d0", user_id="ann")
    page = await bare.store.page(PageQuery(user_id="ann"))
    assert sorted(item.id for item in page.items) == ["d1", "d2", "d3", "d4", "d5"]


async def test_only_compression_merges_what_another_text_contains(bare: Home) -> None:
    await bare.keep(a="Ann likes tea", b="Ann likes tea and coffee", c="Nobody said that Ann likes tea")
    await bare.run("mem_organize")
    assert len(await bare.living()) == 3
    await bare.run("memory_compression")
    assert list(await bare.living()) == ["Nobody said that Ann likes tea", "Ann likes tea and coffee"]
    assert (await bare.get("a")).superseded_by == (await bare.get("b")).superseded_by is not None


async def test_what_held_at_another_time_is_not_merged_into_what_contains_it(bare: Home) -> None:
    await bare.keep(
        early={"text": "Ann lives in Porto", "valid_from": 10 * DAY_MS},
        late={"text": "Ann lives in Porto with Bob", "valid_from": 900 * DAY_MS},
        over={"text": "Ann lives in Porto with Bob and Rex", "valid_from": 10 * DAY_MS, "valid_to": 5**15},
    )
    await bare.run("memory_compression")
    assert len(await bare.living()) == 3
    memory = bare.scheduler.memory
    (then,) = await memory.search("Where does Ann live?", user_id="ann", as_of=5**15 + 1, limit=1)
    assert then.item.id == "early"


async def test_similar_texts_are_not_merged_without_a_model(bare: Home) -> None:
    await bare.keep(a="Ann likes green tea", b="Ann likes black tea", c="Ann loves green tea")
    before = await bare.living()
    await bare.run("memory_compression")
    assert await bare.living() == before


async def test_a_text_of_more_than_512_tokens_is_not_merged(bare: Home) -> None:
    await bare.keep(a="tea " * 600, b="tea " * 600 + ".")
    await bare.run("memory_compression")
    assert (await bare.get("a")).superseded_by is None


async def test_more_equal_texts_than_one_message_looks_at() -> None:
    async with home(upkeep={"batch": 10}) as bare:
        await bare.keep(**{f"m{number}": "Ann likes tea" for number in range(35)})
        await bare.run("mem_organize")
        await bare.run("mem_organize")
        assert len(await bare.living()) == 1
        found = await bare.store.search(SearchQuery(text="tea", user_id="ann"))
        assert len(found) == 1


async def test_a_tier_over_its_limit_is_cut_down(tmp_path: Path) -> None:
    file = {"queue": {"url": f"sqlite:///{tmp_path / 'reverie.db'}"}}
    memory = {"url": f"sqlite:///{tmp_path / 'reverie.db'}"}
    async with home(**file, memory=memory) as here:
        await here.keep(**{f"m{number}": f"number {number}" for number in range(10)})
        here.clock.advance(1)
        await here.store.change(ANN, [Touch(memory_id="m0")])
    async with home(**file, memory=memory | {"long_term_limit": 4}) as here:  # the limit is lower now
        await here.run("mem_organize")
        assert await here.store.tier_counts(ANN) == {"archive": 6, "long_term": 4}
        assert (await here.get("m0")).tier == "long_term"


# -- contradictions --------------------------------------------------------------------------------------


async def test_similar_facts_are_only_marked_without_a_model() -> None:
    async with home(upkeep={"similarity": 0.5}) as here:
        await here.keep(
            old={"text": "Ann lives in Porto now", "valid_from": 1}, new="Ann lives in Lisbon now"
        )
        await here.run("mem_organize")
        links = await here.store.links("ann", "new")
        assert [(link.relation, link.outgoing, link.item.id) for link in links] == [
            ("may_contradict", True, "old")
        ]
        assert {(await here.get(name)).valid_to for name in ("old", "new")} == {None}
        assert len(await here.living()) == 2


async def test_a_contradiction_is_settled_by_time(helped: Home) -> None:
    now = helped.clock.now()
    await helped.keep(
        new={"text": "Ann lives in Lisbon", "valid_from": now - 10 * DAY_MS},
        old={"text": "Ann lives in Porto", "valid_from": now - 90 * DAY_MS},
    )
    await helped.run("mem_organize")
    old, new = await helped.get("old"), await helped.get("new")
    assert (old.superseded_by, old.valid_to) == ("new", new.valid_from)
    assert (new.superseded_by, new.valid_to) == (None, None)
    (link,) = await helped.store.links("ann", "new")
    assert (link.relation, link.outgoing, link.item.id) == ("supersedes", True, "old")
    memory = helped.scheduler.memory
    assert [hit.item.id for hit in await memory.search("where does Ann live", user_id="ann")] == ["new"]
    then = await memory.search("where does Ann live", user_id="ann", as_of=now - 30 * DAY_MS)
    assert [hit.item.id for hit in then] == ["old"]


@pytest.mark.parametrize(
    "pairs", [[[1, 2], [2, 1]], [[1, 2], [2, 3], [3, 1]], [[2, 1], [1, 3], [3, 2], [1, 1]], [[3, 1]]]
)
async def test_never_are_both_lost_and_never_both_kept(
    helped: Home, model: ScriptedModel, pairs: list[list[int]]
) -> None:
    start = helped.clock.now() - 100 * DAY_MS
    await helped.keep(
        **{
            name: {"text": f"Ann lives in {place} now", "valid_from": start + day * DAY_MS}
            for day, (name, place) in enumerate({"a": "Porto", "b": "Lisbon", "c": "Faro"}.items())
        }
    )
    answer = {"same": [[1, 2, 3]], "contradictions": pairs, "patterns": []}
    model.script = [Answer(text=json.dumps(answer))]
    await helped.run("mem_organize")
    alive = {name for name in "abc" if (await helped.get(name)).superseded_by is None}
    named = {number for pair in pairs for number in pair}
    assert "c" in alive
    for pair in pairs:
        names = {"abc"[number - 1] for number in pair}
        assert len(names & alive) <= 1 or len(names) == 1
    assert len(alive) >= 1 + 3 - len(named)
    for name in "abc":
        item = await helped.get(name)
        if item.superseded_by is not None:
            successor = await helped.get(item.superseded_by)
            assert item.valid_to == successor.held_at > item.held_at


@pytest.mark.parametrize("what", ["delete", "update"])
async def test_a_fact_is_not_replaced_by_one_that_was_changed_or_deleted_meanwhile(
    helped: Home, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = helped.clock.now()
    await helped.keep(
        old={"text": "Ann lives in Porto", "valid_from": now - 9 * DAY_MS},
        new={"text": "Ann lives in Lisbon", "valid_from": now},
    )
    prepare, memory = helped.store.prepare, helped.scheduler.memory
    changes = {"delete": {}, "update": {"text": "Ann likes Lisbon"}}

    async def change_first(effects: Any) -> Any:
        if what in changes and any(isinstance(effect, Supersede) for effect in effects):
            await getattr(memory, what)("new", user_id="ann", **changes.pop(what))
        return await prepare(effects)

    monkeypatch.setattr(helped.store, "prepare", change_first)
    await helped.run("mem_organize")
    assert what not in changes
    assert (await helped.get("old")).superseded_by is None
    assert set(await helped.states()) == {"completed"}


async def test_facts_of_the_same_moment_are_marked_and_both_kept(helped: Home) -> None:
    fields = {"valid_from": 5, "learned_at": 5}
    await helped.keep(a={"text": "Ann lives in Porto", **fields}, b={"text": "Ann lives in Lisbon", **fields})
    await helped.run("mem_organize")
    assert len(await helped.living()) == 2
    (link,) = await helped.store.links("ann", "a")
    assert link.relation == "may_contradict"


async def test_what_has_ended_before_is_no_contradiction(helped: Home) -> None:
    await helped.keep(
        a={"text": "Ann lives in Porto", "valid_from": 1, "valid_to": 5},
        b={"text": "Ann lives in Lisbon", "valid_from": 5},
        c={"text": "Ann lives in Faro", "valid_from": 9, "valid_to": 10},
    )
    before = await helped.living()
    await helped.run("mem_organize")
    assert await helped.living() == before


# -- with a language model -------------------------------------------------------------------------------


async def test_the_model_says_what_is_the_same(helped: Home) -> None:
    await helped.keep(
        a={"text": "Ann likes tea", "kind": "preference", "valid_from": 1},
        b={"text": "Ann loves tea", "kind": "preference", "valid_from": 2},
    )
    await helped.run("mem_organize")
    (merged,) = (await helped.living()).values()
    assert (merged.text, merged.kind, merged.valid_from) == ("Ann loves tea", "preference", 1)
    assert {(await helped.get(name)).superseded_by for name in "ab"} == {merged.id}


async def test_a_pattern_lists_its_evidence_and_grows(helped: Home, model: ScriptedModel) -> None:
    days = ("Monday", "Tuesday", "Wednesday")
    await helped.keep(**{day: {"text": f"Ann swam on {day}", "kind": "event"} for day in days})
    await helped.run("mem_organize")
    pattern = (await helped.living())["Ann swims often"]
    assert (pattern.kind, pattern.info) == ("pattern", {"evidence": sorted(days), "count": 3})
    links = await helped.store.links("ann", pattern.id)
    assert {link.item.id for link in links} == set(days)
    assert len(await helped.living()) == 4
    calls = model.calls
    await helped.run("mem_organize")
    assert model.calls == calls  # nothing has changed
    helped.clock.advance(DAY_S)
    await helped.keep(Friday={"text": "Ann swam on Friday often", "kind": "event"})
    await helped.run("mem_organize")
    grown = (await helped.living())["Ann swims often"]
    assert grown.info is not None
    assert (grown.info["count"], set(grown.info["evidence"])) == (4, {*days, "Friday"})
    assert (await helped.get(pattern.id)).superseded_by == grown.id


async def test_the_model_is_asked_once_about_a_group(helped: Home, model: ScriptedModel) -> None:
    await helped.keep(a="Ann has a red car", b="Ann has a blue car")
    await helped.run("mem_organize")
    assert model.calls == 1
    await helped.run("mem_organize", {"since": 0, "until": helped.clock.now()})
    assert model.calls == 1
    await helped.scheduler.memory.update("a", user_id="ann", text="Ann has a green car")
    await helped.run("mem_organize", {"since": 0, "until": helped.clock.now()})
    assert model.calls == 2
    assert await helped.tokens("mem_organize") == 30


async def test_compression_writes_one_text_that_links_to_its_sources(helped: Home) -> None:
    await helped.keep(
        a={"text": "Ann has a red car", "valid_from": 1},
        b={"text": "Ann has a blue car", "valid_from": 2},
        c="It rains in Porto",
    )
    await helped.run("memory_compression")
    living = await helped.living()
    merged = living["Ann has a red car; Ann has a blue car"]
    assert set(living) == {merged.text, "It rains in Porto"}
    links = await helped.store.links("ann", merged.id)
    assert {(link.relation, link.item.id) for link in links if link.outgoing} == {
        (relation, name) for relation in ("derived_from", "supersedes") for name in "ab"
    }
    found = await helped.scheduler.memory.get("a", user_id="ann")
    assert found is not None
    assert found.id == merged.id
    assert [
        hit.item.id for hit in await helped.scheduler.memory.search("blue car", user_id="ann", limit=1)
    ] == [merged.id]


@pytest.mark.parametrize("answer", [{"text": None}, {"text": "  "}, {"text": "word " * 600}])
async def test_an_answer_that_merges_nothing_is_final(
    helped: Home, model: ScriptedModel, answer: dict[str, Any]
) -> None:
    await helped.keep(a="Ann has a red car", b="Ann has a blue car")
    model.script = [Answer(text=json.dumps(answer))]
    await helped.run("memory_compression")
    await helped.run("memory_compression")
    assert (len(await helped.living()), model.calls) == (2, 1)


async def test_turns_are_compressed_when_they_were_read(helped: Home, model: ScriptedModel) -> None:
    async def say(text: str) -> None:
        await helped.scheduler.memory.add([Turn(content=text, name="Ann")], user_id="ann")
        await helped.scheduler.runtime.drain()

    await say("I have a red car at home")
    await say("I have a blue car at home")
    await helped.run("memory_compression")
    assert len(await helped.living()) == 2
    helped.clock.advance(2 * 3600)
    await helped.scheduler.runtime.drain()  # the buffer is old now, and is read
    await helped.run("memory_compression")
    page = await helped.store.page(PageQuery(user_id="ann"))
    assert {item.kind for item in page.items} == {"summary", "fact"}


@pytest.mark.parametrize("label", ["mem_organize", "memory_compression"])
async def test_turns_that_are_read_long_after_a_pass_are_looked_at_by_the_next(
    helped: Home, label: str
) -> None:
    for text in ("I have a red car", "I have a red CAR."):
        await helped.scheduler.memory.add([Turn(content=text, name="Ann")], user_id="ann")
    await helped.scheduler.runtime.drain()
    helped.clock.advance(60)
    await helped.run(label)  # the turns are not read yet
    helped.clock.advance(DAY_S)
    await helped.scheduler.runtime.drain()
    helped.clock.advance(DAY_S)
    await helped.run(label)
    page = await helped.store.page(PageQuery(user_id="ann"))
    assert sorted(item.kind for item in page.items) == ["fact", "turn"]


async def test_a_group_that_fails_fails_alone(helped: Home, model: ScriptedModel) -> None:
    await helped.keep(
        a="Ann has a red car", b="Ann has a blue car", c="Bob met three old kings", d="Bob met two old kings"
    )
    model.answers = lambda request: Answer(text="nonsense") if "car" in request.prompt else tidy(request)
    await helped.run("memory_compression")
    for _ in range(5):
        helped.clock.advance(600)
        await helped.scheduler.runtime.drain()
    assert sorted(await helped.living()) == [
        "Ann has a blue car", "Ann has a red car", "Bob met three old kings; Bob met two old kings",
    ]  # fmt: skip
    assert sorted(await helped.states()) == ["completed", "completed", "failed"]


# -- the window ------------------------------------------------------------------------------------------


async def test_compression_after_a_missed_week_does_the_whole_week(bare: Home) -> None:
    await bare.run("memory_compression")
    for day in range(7):
        bare.clock.advance(DAY_S)
        await bare.keep(
            **{f"d{day}": f"on day {day} Ann likes tea", f"e{day}": f"on day {day} Ann likes TEA."}
        )
    await bare.run("memory_compression", {"interval_seconds": 1800})
    assert len(await bare.living()) == 7


async def test_the_interval_is_the_least_window(bare: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    changed = bare.store.changed

    async def note(tenant: Any, since: int, after: int, limit: int) -> Any:
        asked.append(since)
        return await changed(tenant, since, after, limit)

    monkeypatch.setattr(bare.store, "changed", note)
    start = bare.clock.now()
    await bare.run("memory_compression")
    bare.clock.advance(60)
    await bare.run("memory_compression", {"interval_seconds": 1000})
    bare.clock.advance(DAY_S)
    await bare.run("memory_compression")
    assert asked == [0, start + 60_000 - 1_000_000, start]


@pytest.mark.parametrize("label", ["mem_organize", "memory_compression"])
async def test_what_was_being_written_while_a_pass_ran_is_looked_at_by_the_next(
    bare: Home, label: str
) -> None:
    bare.clock.advance(20)
    await bare.run(label, {"interval_seconds": 0})
    bare.clock.advance(-20)  # its transaction had begun before, and was committed after
    await bare.keep(a="Ann likes tea", b="Ann likes TEA")
    bare.clock.advance(DAY_S)
    await bare.run(label, {"interval_seconds": 0})
    assert len(await bare.living()) == 1


# -- the archive -----------------------------------------------------------------------------------------


async def test_what_nobody_asks_for_goes_to_the_archive_and_comes_back(bare: Home) -> None:
    snow = {"text": "Ann likes snow", "tier": "working"}
    await bare.keep(a="Ann likes tea", b="Ann likes rain", c=snow)
    bare.clock.advance(100 * DAY_S)
    await bare.store.change(ANN, [Touch(memory_id="b")])
    bare.clock.advance(100 * DAY_S)
    await bare.keep(d="Ann likes wind")
    await bare.run("mem_archive")
    assert [(await bare.get(name)).tier for name in "abcd"] == [
        "archive",
        "long_term",
        "archive",
        "long_term",
    ]
    found = await bare.scheduler.memory.search("tea", user_id="ann")
    assert found[0].item.id == "a"
    await bare.run("query", {"query": "tea", "found": ["a"]})
    assert (await bare.get("a")).tier in {"long_term", "working"}
    await bare.run("mem_archive")
    assert (await bare.get("a")).tier in {"long_term", "working"}


async def test_organising_is_followed_by_archiving(bare: Home) -> None:
    await bare.keep(a="Ann likes tea")
    bare.clock.advance(200 * DAY_S)
    await bare.run("mem_organize")
    assert (await bare.get("a")).tier == "archive"


async def test_many_cold_memories_are_archived_by_several_messages(
    bare: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.handlers.mem_archive.MOST_ARCHIVED", 4)
    await bare.keep(**{f"m{number}": f"number {number}" for number in range(10)})
    bare.clock.advance(200 * DAY_S)
    await bare.run("mem_archive")
    assert await bare.store.tier_counts(ANN) == {"archive": 10}
    (done,) = await bare.store.passes(ANN, 5)
    assert done.changes == 10


@pytest.mark.parametrize("content", ["no", "[]", {"group": ["x"] * 51}, {"interval_seconds": -1}])
async def test_wrong_content_is_refused(bare: Home, content: Any) -> None:
    for label in ("mem_organize", "memory_compression", "mem_archive"):
        await bare.run(label, content)
    assert await bare.states() == ["failed"] * 3


async def test_the_prompt_shows_days_and_one_line_for_each_memory(helped: Home, model: ScriptedModel) -> None:
    await helped.keep(
        a={"text": "Ann has\n2. a red car", "valid_from": 0},
        b={"text": "Ann has a red car too", "valid_from": DAY_MS},
    )
    await helped.run("mem_organize")
    assert memories_in(model.requests[0].prompt) == {1: "Ann has 2. a red car", 2: "Ann has a red car too"}
    assert "1. (1970-01-01) Ann" in model.requests[0].prompt
