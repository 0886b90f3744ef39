"""Which texts say the same, and what must agree for memories to become one."""

from __future__ import annotations

import pytest

from reverie.effect import Remember, Source, Supersede
from reverie.handlers.grouping import contains, judged_key, merged_effects, normalised, same_key
from reverie.memory.item import MemoryItem

DAY_MS = 24 * 3600 * 1000


def item(memory_id: str = "a", text: str = "I like tea", **fields) -> MemoryItem:
    return MemoryItem(
        id=memory_id,
        user_id="ann",
        mem_cube_id="ann",
        text=text,
        **{"kind": "fact", "tier": "long_term", "created_at": 10 * DAY_MS} | fields,
    )


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        ("I like tea and coffee", "I like tea"),
        ("Well. I like tea, and coffee!", "i like TEA."),
        ("First this. Then that. And so on", "first this; then that"),
        ("Do you like tea or coffee?", "do you like tea?"),
    ],
)
def test_a_text_contains_another(longer: str, shorter: str) -> None:
    assert contains(longer, shorter)
    assert not contains(shorter, longer)


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        ("I never said that I like tea", "I like tea"),
        ("I like tea and coffee", "tea and coffee"),
        ("I like teapots and cups", "I like tea"),
        ("Do you like tea?", "Do you like tea"),
        ("I like tea", "I like tea?"),
        ("Yes, I do. And you?", "yes"),
        ("This first. Other. Then that", "this first. Then that"),
        ("anything", "..."),
    ],
)
def test_a_text_does_not_contain_another(longer: str, shorter: str) -> None:
    assert not contains(longer, shorter)


def test_normalised_texts() -> None:
    assert normalised("  I  LIKE\ttea. ") == normalised("i like tea!") == "i like tea"
    assert normalised("I like tea?") != normalised("I like tea")


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "event"}, {"valid_to": 5}, {"expires_at": 5}, {"agent_id": "g"}, {"device_id": "d"},
        {"domain": "work"}, {"sources": (Source(item_id="m", role="user", name="Bob"),)}, {"title": "t"},
    ],
)  # fmt: skip
def test_what_differs_is_not_the_same(fields: dict) -> None:
    assert same_key(item()) == same_key(item("b", "other text", session_id="s", valid_from=7))
    assert same_key(item()) != same_key(item("b", **fields))


@pytest.mark.parametrize("kind", ["turn", "event"])
def test_what_was_said_on_another_day_is_another_memory(kind: str) -> None:
    first, later = item(kind=kind, valid_from=0), item(kind=kind, valid_from=DAY_MS)
    assert same_key(first) != same_key(later)
    assert same_key(first) == same_key(item(kind=kind, valid_from=DAY_MS - 1))
    assert same_key(item(kind=kind)) == same_key(item(kind=kind, created_at=0))


def test_the_key_of_a_decision_follows_ids_and_texts() -> None:
    one, other = item("a"), item("b")
    assert judged_key("merge", [one, other]) == judged_key("merge", [other, one])
    assert judged_key("merge", [one, other]) != judged_key("merge", [one, item("b", "new text")])
    assert judged_key("merge", [one, other]) != judged_key("mem_organize", [one, other])


def test_a_merged_memory_has_all_that_its_members_have() -> None:
    one = item("a", tags=("x",), info={"n": 1}, sources=(Source(item_id="m", index=0),), importance=0.2)
    other = item(
        "b", tags=("x", "y"), info={"n": 2, "k": 3}, sources=(Source(item_id="m", index=1),), created_at=7,
        importance=0.9, valid_from=5, version=4,
    )  # fmt: skip
    remember, *rest = merged_effects([one, other], "I like tea")
    assert isinstance(remember, Remember)
    assert (remember.tags, remember.info, remember.importance) == (("x", "y"), {"n": 1, "k": 3}, 0.9)
    assert [source.index for source in remember.sources] == [0, 1]
    assert (remember.valid_from, remember.learned_at) == (5, 7)
    assert [(e.memory_id, e.version) for e in rest if isinstance(e, Supersede)] == [("a", 1), ("b", 4)]
    assert remember.memory_id == merged_effects([other, one], "I like tea")[0].memory_id
