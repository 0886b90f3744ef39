"""Preferences are found with the turns that show them, and the later of two that disagree holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler
from reverie.handlers.preferences import stated_in
from reverie.settings import load_settings
from support.extractor import extract
from support.scripted_model import Answer, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from reverie.memory.item import MemoryItem
    from reverie.testing import ManualClock
    from support.scripted_model import ScriptedModel

DAY = 24 * 3600


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = extract
        yield model


@pytest.fixture(params=["no model", "model"])
async def scheduler(request, tmp_path, model, clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    llm = {} if request.param == "no model" else {"preset": "custom", "url": model.url, "model": "tiny"}
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, memory={"embedding": "none"}, llm=llm
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    scheduler.has_model = request.param == "model"
    yield scheduler
    await scheduler.stop()


async def prefer(scheduler: AsyncScheduler, *texts: str, name: str = "Ann", role: str = "user") -> str:
    turns = [{"role": role, "name": name, "content": text} for text in texts]
    receipt = await scheduler.submit("pref_add", user_id="ann", content=turns)
    await scheduler.runtime.drain()
    return receipt.item_id


async def preferences(scheduler: AsyncScheduler) -> list[MemoryItem]:
    page = await scheduler.memory.page(user_id="ann", kinds=["preference"], with_superseded=True)
    return page.items


async def test_a_later_preference_supersedes_what_it_contradicts_and_then_is_still_known(
    scheduler, clock
) -> None:
    first = await prefer(scheduler, "I like tea", "Hello")
    then = clock.now()
    clock.advance(DAY)
    second = await prefer(scheduler, "I don't like tea")
    old, new = await preferences(scheduler)
    texts = (
        ["Ann likes tea", "Ann does not like tea"]
        if scheduler.has_model
        else ["I like tea", "I don't like tea"]
    )
    assert [old.text, new.text] == texts
    assert (old.superseded_by, new.superseded_by) == (new.id, None)
    assert new.info == {
        "preference_type": "explicit_preference",
        "confidence": 0.8 if scheduler.has_model else 0.9,
    }
    assert [source.item_id for source in (*old.sources, *new.sources)] == [first, second]
    links = {(link.relation, link.item.id) for link in await scheduler.memory.links(new.id, user_id="ann")}
    assert links == {("derived_from", f"{second}.0"), ("supersedes", old.id)}
    for moment, wanted in ((None, new.id), (then, old.id)):
        found = await scheduler.memory.search("tea", user_id="ann", kinds=["preference"], as_of=moment)
        assert [hit.item.id for hit in found] == [wanted]
    assert await scheduler.memory.get(f"{first}.1", user_id="ann") is None  # it shows no preference


async def test_further_turns_make_a_preference_surer_and_the_same_turns_do_not(scheduler) -> None:
    said = await prefer(scheduler, "I like tea")
    for _ in range(2):
        await scheduler.submit("pref_add", user_id="ann", content={"memory_ids": [f"{said}.0"]})
        await scheduler.runtime.drain()
    (once,) = await preferences(scheduler)
    assert (once.version, len(once.sources)) == (1, 1)
    await prefer(scheduler, "I like tea")
    (twice,) = await preferences(scheduler)
    assert twice.info["confidence"] == (0.96 if scheduler.has_model else 0.99)
    assert len(twice.sources) == 2


async def test_what_was_taken_back_can_hold_again(scheduler, clock) -> None:
    for text in ("I like tea", "I don't like tea", "I like tea"):
        await prefer(scheduler, text)
        clock.advance(DAY)
    like, dislike, again = await preferences(scheduler)
    assert (like.superseded_by, dislike.superseded_by, again.superseded_by) == (dislike.id, again.id, None)
    assert like.text == again.text


async def test_speakers_have_their_own_preferences(scheduler) -> None:
    await prefer(scheduler, "I like tea")
    await prefer(scheduler, "I don't like tea", name="Bob")
    assert [item.superseded_by for item in await preferences(scheduler)] == [None, None]


async def test_what_was_said_before_its_contrary_does_not_supersede_it(scheduler) -> None:
    for time, text in (("2024-03-02", "I don't like tea"), ("2024-03-01", "I like tea")):
        turns = [{"content": text, "name": "Ann", "chat_time": time}]
        await scheduler.submit("pref_add", user_id="ann", content={"turns": turns})
        await scheduler.runtime.drain()
    new, old = await preferences(scheduler)
    assert (new.superseded_by, old.superseded_by) == (None, new.id)


@pytest.mark.parametrize("scheduler", ["no model"], indirect=True)
async def test_rules_follow_a_conversation_that_changes_its_mind(scheduler) -> None:
    await prefer(scheduler, "I like tea.", "I no longer like tea.", "我喜欢茶。", "Well, I like tea.")
    kept = {item.text: item.superseded_by for item in await preferences(scheduler)}
    assert [text for text, successor in kept.items() if successor is None] == [
        "我喜欢茶。",
        "Well, I like tea.",
    ]
    await prefer(scheduler, "I like trains", role="assistant")
    assert len(await preferences(scheduler)) == len(kept) == 4


@pytest.mark.parametrize("scheduler", ["model"], indirect=True)
async def test_what_the_model_answers_is_merged_with_what_is_known(scheduler, model) -> None:
    await prefer(scheduler, "I like tea")
    answered = [
        {"text": "Ann likes tea", "explicit": False, "confidence": 1, "turns": [1], "same_as": 1},
        {"text": "Ann dislikes rain", "explicit": False, "confidence": 0.5, "turns": [1], "replaces": []},
        {"text": "   ", "explicit": True, "confidence": 0.5, "turns": [1]},
    ]
    model.script = [Answer(text=json.dumps({"preferences": answered}))]
    await prefer(scheduler, "tea and no rain again")
    tea, rain = await preferences(scheduler)
    assert tea.info == {"preference_type": "explicit_preference", "confidence": 0.99}
    assert rain.info == {"preference_type": "implicit_preference", "confidence": 0.5}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I really prefer trains; I hate planes!", [("like:trains", True), ("like:planes", False)]),
        ("I do not like loud  Music at all.", [("like:loud music", False)]),
        ("Please always answer in French", [("always:answer in french", True)]),
        ("please never use emojis", [("always:use emojis", False)]),
        ("我不喜欢咖啡了！请总是用中文回答", [("like:咖啡", False), ("always:用中文回答", True)]),  # noqa: RUF001
        ("Do I like tea? I would like a cup. I like that. She said I like tea", []),
        ("I like " + "x" * 2000, []),
    ],
)
def test_rules_find_only_plain_words(text: str, found: list[tuple[str, bool]]) -> None:
    assert [(one.about, one.liked) for one in stated_in(text)] == found
    assert all(one.text in text for one in stated_in(text))
