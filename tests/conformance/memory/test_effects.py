"""Effects of every kind: what each writes, and what a version protects."""

from __future__ import annotations

import msgspec
import pytest

from reverie import Delete, Link, Message, Remember, Revise, Supersede, Touch
from reverie.effect import (
    Buffer,
    BufferDone,
    Effect,
    Extracted,
    InPass,
    Judged,
    KeepSearch,
    KeepStatistics,
    Move,
    NoteAnswer,
    NoteQuery,
    PassDone,
    PutSession,
    Source,
    UndoPass,
)
from reverie.errors import VersionConflictError
from reverie.memory.interface import Application
from reverie.memory.sqlite.effects import WRITERS

ANN = Message(user_id="ann", label="work", item_id="1")


def test_every_kind_has_a_writer_and_comes_back_from_json() -> None:
    effects = [
        Remember(memory_id="a", text="x"),
        Revise(memory_id="a", version=1, text="y"),
        Supersede(memory_id="a", version=2, successor="b"),
        Move(memory_id="a", version=1, tier="archive"),
        Touch(memory_id="a"),
        Link(source_id="a", relation="about", target_id="b"),
        Delete(memory_id="a", version=1),
        Buffer(buffer_id="r", blob_id="a", content="text", tokens=1, metadata={"a": 1}),
        BufferDone(token="t", buffer_ids=("r",)),
        Extracted(memory_ids=("a",)),
        NoteQuery(query_id="q", query="where?", found=("a",)),
        NoteAnswer(answer="there", query_id="q", used=("a",)),
        KeepSearch(query="k", changes=3, hits=(("a", 0.5),)),
        KeepStatistics(day="2026-05-07", changes=3, counts=(("fact", "working", 2),)),
        InPass(pass_id="p", label="mem_organize"),
        PassDone(label="mem_organize", until=1),
        Judged(keys=("k",)),
        UndoPass(pass_id="p"),
        PutSession(session_id="s", status="failed", at=5, agent="codex", error="why"),
    ]
    assert [type(effect) for effect in effects] == list(WRITERS)
    for effect in effects:
        assert msgspec.json.decode(msgspec.json.encode(effect), type=Effect) == effect


async def test_everything_that_is_remembered_comes_back(bench) -> None:
    source = Source(item_id="m", index=2, role="user", name="Ann", info={"n": [1]})
    effect = Remember(
        memory_id="a",
        text="text",
        kind="observation",
        tier="working",
        type="tool",
        title="title",
        narrative="narrative",
        facts=("one", "two"),
        concepts=("three",),
        session_id="s",
        device_id="d",
        agent_id="g",
        domain="work",
        tags=("t",),
        info={"deep": {"list": [1, None]}},
        sources=(source,),
        importance=0.75,
        valid_from=10,
        valid_to=20,
        expires_at=30,
        learned_at=5,
    )
    assert await bench.apply(effect) == "applied"
    item = await bench.store.get("ann", "a")
    names = set(effect.__struct_fields__) - {"memory_id", "learned_at"}
    assert {name: getattr(item, name) for name in names} == {name: getattr(effect, name) for name in names}
    assert (item.created_at, item.updated_at, item.version, item.held_at) == (5, bench.clock.now(), 1, 10)
    assert (item.user_id, item.mem_cube_id, item.superseded_by, item.status) == (
        "ann", "ann", None, "activated",
    )  # fmt: skip


async def test_an_item_takes_the_session_of_its_message(bench) -> None:
    message = Message(user_id="ann", label="work", session_id="chat")
    await bench.apply(
        Remember(memory_id="a", text="x"),
        Remember(memory_id="b", text="x", session_id="own"),
        message=message,
    )
    items = await bench.store.items(("ann", "ann"), ["b", "a"])
    assert [item.session_id for item in items] == ["own", "chat"]


async def test_remembering_the_same_again_changes_nothing(both) -> None:
    await both.add(a="green tea")
    before = await both.store.get("ann", "a")
    both.clock.advance(1)
    await both.add(a="green tea")
    assert await both.store.get("ann", "a") == before
    assert await both.apply(Remember(memory_id="a", text="black tea")) == "rejected"


async def test_revise_changes_what_is_given_and_the_index_with_it(both) -> None:
    await both.add(a={"text": "green tea", "tags": ("drink",)}, b="a house in Lisbon")
    assert await both.apply(Revise(memory_id="a", version=1, text="black coffee")) == "applied"
    item = await both.store.get("ann", "a")
    assert (item.text, item.tags, item.version) == ("black coffee", ("drink",), 2)
    await both.index()
    assert (await both.find("coffee"))[0] == "a"
    hits = await both.search("tea", explain=True)
    assert all("text_rank" not in hit.signals for hit in hits)


async def test_revise_of_fields_beside_the_text(bench) -> None:
    await bench.add(a={"text": "tea", "tags": ("x",), "info": {"n": 1}})
    sources = (Source(item_id="m", name="Bob"),)
    change = Revise(
        memory_id="a",
        version=1,
        kind="preference",
        title="Drinks",
        tags=(),
        info={"n": 2},
        sources=sources,
        importance=1.0,
        valid_from=7,
        valid_to=9,
    )
    assert await bench.apply(change) == "applied"
    item = await bench.store.get("ann", "a")
    assert (item.text, item.kind, item.title, item.tags, item.info) == (
        "tea", "preference", "Drinks", (), {"n": 2},
    )  # fmt: skip
    assert (item.sources, item.importance, item.valid_from, item.valid_to) == (sources, 1.0, 7, 9)
    for query in ("drinks", "Bob", "tea", "1970"):
        assert await bench.find(query) == ["a"], query
    assert await bench.find("tea", kinds=("fact",)) == []
    assert await bench.find("tea", tags=("x",)) == []


async def test_revise_that_changes_nothing_writes_nothing(bench) -> None:
    fields = {"text": "tea", "kind": "fact", "title": "T", "tags": ("x",), "info": {"n": 1}}
    await bench.add(a=fields)
    before = await bench.store.get("ann", "a")
    bench.clock.advance(1)
    for effect in (Revise(memory_id="a", version=1), Revise(memory_id="a", version=1, **fields)):
        assert await bench.apply(effect) == "applied"
    assert await bench.store.get("ann", "a") == before
    assert await bench.store.history("ann", "a") == []
    assert await bench.apply(Revise(memory_id="a", version=2, **fields)) == "conflict"
    for changed in ({"title": "U"}, {"info": {"n": 2}}, {"valid_from": 7}, {"valid_to": 9}):
        version = (await bench.store.get("ann", "a")).version
        assert await bench.apply(Revise(memory_id="a", version=version, **changed)) == "applied"
        assert (await bench.store.get("ann", "a")).version == version + 1


async def test_a_superseded_item_is_kept_and_not_found(both) -> None:
    await both.add(old="lives in Porto")
    new = Remember(memory_id="new", text="lives in Lisbon")
    both.clock.advance(60)
    assert await both.apply(new, Supersede(memory_id="old", version=1, successor="new")) == "applied"
    assert await both.find("lives") == ["new"]
    assert await both.find("Porto", tiers=("archive",)) == []
    old = await both.store.get("ann", "old")
    assert (old.superseded_by, old.version, old.valid_to) == ("new", 2, both.clock.now())
    (link,) = await both.store.links("ann", "new")
    assert (link.relation, link.outgoing, link.item.id) == ("supersedes", True, "old")


async def test_a_successor_that_was_changed_or_deleted_is_a_conflict(bench) -> None:
    await bench.add(old="lives in Porto", new="lives in Lisbon")
    await bench.apply(Revise(memory_id="new", version=1, text="likes Lisbon"))
    effect = Supersede(memory_id="old", version=1, successor="new", successor_version=1)
    assert await bench.apply(effect) == "conflict"
    same = Revise(memory_id="new", version=2, importance=0.7)  # the message's own change is none
    assert await bench.apply(same, msgspec.structs.replace(effect, successor_version=2)) == "applied"
    await bench.add(other="lives in Faro")
    await bench.apply(Delete(memory_id="new", version=3))
    last = Supersede(memory_id="other", version=1, successor="new", successor_version=3)
    assert await bench.apply(last) == "conflict"
    assert (await bench.store.get("ann", "other")).superseded_by is None


async def test_a_chain_of_successors_and_no_circle(bench) -> None:
    await bench.add(a="one", b="two", c="three")
    for old, new in (("a", "b"), ("b", "c")):
        assert await bench.apply(Supersede(memory_id=old, version=1, successor=new)) == "applied"
    assert (await bench.store.get("ann", "a")).superseded_by == "b"
    assert (await bench.store.get("ann", "b")).superseded_by == "c"
    for successor in ("a", "b", "c"):
        effect = Supersede(memory_id="c", version=1, successor=successor)
        assert await bench.apply(effect) == "rejected"
    assert (await bench.store.get("ann", "c")).superseded_by is None
    assert await bench.find("three two one") == ["c"]


@pytest.mark.parametrize(
    ("old", "new", "valid_to"),
    [
        ({"valid_from": 100}, {"valid_from": 500}, 500),  # both were learned today
        ({"valid_from": 100, "valid_to": 300}, {"valid_from": 500}, 300),
        ({"valid_from": 600}, {"valid_from": 500}, 600),  # never before it began to hold
    ],
)
async def test_a_superseded_item_held_until_its_successor_did(bench, old, new, valid_to) -> None:
    await bench.add(old={"text": "lives in Porto", **old}, new={"text": "lives in Lisbon", **new})
    assert await bench.apply(Supersede(memory_id="old", version=1, successor="new")) == "applied"
    assert (await bench.store.get("ann", "old")).valid_to == valid_to


async def test_an_item_is_superseded_only_by_one_that_exists(bench) -> None:
    await bench.add(old="lives in Porto")
    await bench.add("ann", "other", elsewhere="lives in Rome")
    for successor in ("nothing", "elsewhere"):
        effect = Supersede(memory_id="old", version=1, successor=successor)
        assert await bench.apply(effect) == "rejected"
    assert await bench.find("lives", mem_cube_ids=("ann",)) == ["old"]


async def test_move_and_touch(bench) -> None:
    await bench.add(a="x")
    bench.clock.advance(1)
    moved = Move(memory_id="a", version=1, tier="archive")
    assert await bench.apply(Touch(memory_id="a"), moved) == "applied"
    item = await bench.store.get("ann", "a")
    assert (item.tier, item.version, item.status) == ("archive", 2, "archived")
    assert (item.access_count, item.accessed_at) == (1, bench.clock.now())
    assert await bench.apply(Touch(memory_id="nothing")) == "applied"
    assert await bench.find("x", tiers=("archive",)) == ["a"]
    assert await bench.find("x", tiers=("long_term", "working")) == []
    assert await bench.apply(Move(memory_id="a", version=2, tier="working")) == "applied"
    assert await bench.find("x", tiers=("working",)) == ["a"]


async def test_uses_raise_a_hit_and_outlive_a_change_of_its_text(bench) -> None:
    await bench.add(a="green tea", b="green tea", c="a house")
    await bench.apply(*[Touch(memory_id="a")] * 5)
    assert await bench.find("tea", diversity="no") == ["a", "b"]
    await bench.apply(Revise(memory_id="a", version=1, text="tea green"))
    hits = await bench.search("tea", explain=True, diversity="no")
    assert [hit.item.id for hit in hits] == ["a", "b"]
    assert hits[0].signals["access"] > 0


async def test_links_are_read_from_both_ends_and_written_once(bench) -> None:
    await bench.add(a="one", b="two", c="three")
    link = Link(source_id="a", relation="about", target_id="b")
    assert await bench.apply(link, link, Link(source_id="c", relation="next", target_id="a")) == "applied"
    assert await bench.apply(link) == "applied"

    async def links(memory_id: str) -> set[tuple[str, bool, str]]:
        found = await bench.store.links("ann", memory_id)
        return {(each.relation, each.outgoing, each.item.id) for each in found}

    assert await links("a") == {("about", True, "b"), ("next", False, "c")}
    assert await links("b") == {("about", False, "a")}
    assert await bench.store.links("bob", "a") == []
    nowhere = Link(source_id="a", relation="about", target_id="nothing")
    assert await bench.apply(nowhere) == "rejected"


async def test_history_has_each_version_before_its_change(bench) -> None:
    await bench.add(a="one", b="other")
    times = []
    for version, effect in enumerate(
        (
            Revise(memory_id="a", version=1, text="two", kind="event"),
            Move(memory_id="a", version=2, tier="working"),
            Supersede(memory_id="a", version=3, successor="b"),
        ),
        1,
    ):
        bench.clock.advance(1)
        times.append(bench.clock.now())
        assert await bench.apply(effect) == "applied", version
    history = await bench.store.history("ann", "a")
    assert [(each.version, each.text, each.kind, each.tier, each.change) for each in history] == [
        (1, "one", "fact", "long_term", "revise"),
        (2, "two", "event", "long_term", "move"),
        (3, "two", "event", "working", "supersede"),
    ]
    assert [each.changed_at for each in history] == times
    assert await bench.store.history("bob", "a") == []


@pytest.mark.parametrize(
    "effect",
    [
        Revise(memory_id="a", version=1, text="z"),
        Move(memory_id="a", version=3, tier="archive"),
        Delete(memory_id="a", version=1),
        Delete(memory_id="a", version=0),
        Supersede(memory_id="a", version=1, successor="b"),
        Revise(memory_id="gone", version=1, text="z"),
        Delete(memory_id="gone", version=1),
    ],
)
async def test_another_version_is_a_conflict_and_nothing_is_applied(bench, effect) -> None:
    await bench.add(a="x", b="y")
    await bench.apply(Revise(memory_id="a", version=1, text="changed"))
    message = Message(user_id="ann", label="work")
    new = Remember(memory_id="c", text="new")
    assert await bench.apply(new, effect, message=message) == "conflict"
    assert await bench.store.get("ann", "c") is None
    assert (await bench.store.get("ann", "a")).text == "changed"
    with pytest.raises(VersionConflictError, match=effect.memory_id):
        await bench.store.change(("ann", "ann"), [new, effect])
    assert await bench.store.get("ann", "c") is None
    assert await bench.apply(new, message=message) == "applied"  # there is no inbox row


async def test_a_message_may_change_one_item_twice(bench) -> None:
    await bench.add(a="x")
    changes = (Revise(memory_id="a", version=1, text="y"), Move(memory_id="a", version=1, tier="archive"))
    assert await bench.apply(*changes) == "applied"
    item = await bench.store.get("ann", "a")
    assert (item.text, item.tier, item.version) == ("y", "archive", 3)
    assert await bench.apply(
        Revise(memory_id="a", version=3, text="z"), Revise(memory_id="a", version=4, text="w")
    ) == "applied"  # fmt: skip


async def test_items_of_another_cube_cannot_be_changed(bench) -> None:
    await bench.add(a="x")
    assert await bench.apply(Revise(memory_id="a", version=1, text="y"), cube="work") == "conflict"
    link = Link(source_id="a", relation="about", target_id="a")
    assert await bench.apply(link, user_id="bob") == "rejected"
    assert await bench.apply(Touch(memory_id="a"), user_id="bob") == "applied"
    assert (await bench.store.get("ann", "a")).access_count == 0


async def test_an_id_of_another_cube_is_refused_even_with_the_same_text(bench) -> None:
    effect = Remember(memory_id="a", text="tea")
    assert await bench.apply(effect, cube="work") == "applied"
    assert await bench.apply(effect, cube="home") == "rejected"


async def test_after_a_conflict_the_later_messages_of_its_lane_are_not_applied(bench) -> None:
    await bench.add(a="x")
    await bench.apply(Revise(memory_id="a", version=1, text="y"))
    conflict = Application(message=ANN, effects=(Revise(memory_id="a", version=1, text="z"),))
    behind = Application(
        message=Message(user_id="ann", label="work"), effects=(Remember(memory_id="b", text="b"),)
    )
    beside = Application(
        message=Message(user_id="ann", label="other"), effects=(Remember(memory_id="c", text="c"),)
    )
    applied = await bench.store.apply([conflict, behind, beside])
    assert [answer.state for answer in applied] == ["conflict", "conflict", "applied"]


async def test_change_holds_when_it_returns_and_reports_what_cannot_be(bench) -> None:
    await bench.add(a="x")
    await bench.store.change(("ann", "ann"), [Revise(memory_id="a", version=1, text="y")])
    assert (await bench.store.get("ann", "a")).text == "y"
    with pytest.raises(ValueError, match="no memory"):
        await bench.store.change(
            ("ann", "ann"),
            [
                Revise(memory_id="a", version=2, text="z"),
                Supersede(memory_id="a", version=2, successor="none"),
            ],
        )
    assert (await bench.store.get("ann", "a")).text == "y"
