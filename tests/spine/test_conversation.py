"""The path of a conversation: turns come in, are found at once, and become facts later."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler
from reverie.backends.moves import Status
from reverie.effect import Revise
from reverie.errors import InvalidMessageError, InvalidSettingError
from reverie.memory.buffers import BufferKey
from reverie.memory.extraction import Extraction
from reverie.settings import load_settings
from reverie.testing import ManualClock
from reverie.turn import Turn
from support.extractor import extract, turns_in
from support.scripted_model import Answer, Request, half, quota, rate_limit, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from reverie.memory.item import MemoryItem
    from support.scripted_model import ScriptedModel

HOUR = 3600


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = extract
        yield model


def settings_for(tmp_path, model: ScriptedModel | None, **sections):
    llm = {} if model is None else {"preset": "custom", "url": model.url, "model": "tiny", "api_key": "k"}
    llm |= sections.pop("llm", {})
    return load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, llm=llm, **sections)


@pytest.fixture
async def scheduler(tmp_path, model, clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model), clock=clock)
    yield scheduler
    await scheduler.stop()


async def say(
    scheduler: AsyncScheduler, *texts: str, user: str = "ann", name: str | None = "Ann", **fields
) -> str:
    turns = [Turn(content=text, name=name) for text in texts]
    receipt = await scheduler.memory.add(turns, user_id=user, **fields)
    await scheduler.runtime.drain()
    return receipt.item_id


async def facts(scheduler: AsyncScheduler, user: str = "ann") -> dict[str, MemoryItem]:
    page = await scheduler.memory.page(user_id=user, kinds=["fact", "event", "preference"])
    return {item.text: item for item in page.items}


async def later(scheduler: AsyncScheduler, clock: ManualClock, seconds: float = HOUR) -> None:
    clock.advance(seconds)
    await scheduler.runtime.drain()


async def test_turns_are_found_at_once_and_become_facts_after_an_hour(scheduler, clock, model) -> None:
    item = await say(scheduler, "I moved to Lisbon", "Hello there")
    assert [hit.item.id for hit in await scheduler.memory.search("Lisbon", user_id="ann", limit=1)] == [
        f"{item}.0"
    ]
    assert (model.calls, await facts(scheduler)) == (0, {})
    await later(scheduler, clock, HOUR - 1)
    assert model.calls == 0
    await later(scheduler, clock, 2)
    assert model.calls == 1
    (fact,) = (await facts(scheduler)).values()
    assert (fact.text, fact.kind, fact.concepts) == ("Ann lives in Lisbon", "fact", ("Lisbon",))
    assert [(source.item_id, source.index) for source in fact.sources] == [(item, 0)]
    links = await scheduler.memory.links(fact.id, user_id="ann")
    assert [(link.relation, link.outgoing, link.item.id) for link in links] == [
        ("derived_from", True, f"{item}.0")
    ]
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert {(row.blob_id, row.status, row.content) for row in rows} == {
        (f"{item}.0", "done", ""),
        (f"{item}.1", "done", ""),
    }
    assert await scheduler.runtime.store.unread_turns(("ann", "ann"), 0, 10) == []


async def test_the_sources_of_a_fact_name_the_speaker_and_the_time(scheduler, clock) -> None:
    turn = Turn(content="I like tea", name="Ann", chat_time="7 May 2026", message_id="m-1")
    item = (await scheduler.memory.add([turn], user_id="ann")).item_id
    await scheduler.runtime.drain()
    await later(scheduler, clock)
    (fact,) = (await facts(scheduler)).values()
    (source,) = fact.sources
    assert source == (await scheduler.memory.get(f"{item}.0", user_id="ann")).sources[0]
    assert (source.name, source.chat_time, source.message_id) == ("Ann", "7 May 2026", "m-1")
    text = await scheduler.submit("mem_read", user_id="bob", content="I like milk")
    await scheduler.runtime.drain()
    (fact,) = (await facts(scheduler, "bob")).values()
    assert [(source.item_id, source.type) for source in fact.sources] == [(text.item_id, "doc")]


async def test_facts_and_preferences_have_the_tags_of_their_turns(scheduler, clock) -> None:
    item = await say(scheduler, "I moved to Lisbon", info={"custom_tags": ["team:sales", "home"]})
    await say(scheduler, "I like tea")
    await later(scheduler, clock)
    found = await facts(scheduler)
    assert {text: fact.tags for text, fact in found.items()} == {
        "Ann lives in Lisbon": ("team:sales", "home"),
        "Ann likes tea": (),
    }
    without = AsyncScheduler("memory://")
    item = await say(without, "I like milk", info={"custom_tags": ["team:sales"]})
    await without.submit("pref_add", user_id="ann", content={"memory_ids": [f"{item}.0"]})
    await without.runtime.drain()
    (preference,) = (await without.memory.page(user_id="ann", kinds=["preference"])).items
    assert preference.tags == ("team:sales",)
    await without.stop()


async def test_nobody_waits_for_turns_that_wait_for_more(scheduler, clock, model) -> None:
    await say(scheduler, "I moved to Lisbon")
    assert (await scheduler.observe.wait_idle("ann", timeout=0)).status == "idle"
    clock.advance(HOUR - 30)
    state = await scheduler.observe.wait_idle("ann", timeout=0)  # the reading is due in half a minute
    assert (state.status, state.active_tasks) == ("timeout", 1)
    await later(scheduler, clock)
    assert (await scheduler.observe.wait_idle("ann", timeout=0)).status == "idle"
    assert model.calls == 1


async def test_a_full_buffer_is_read_at_once(tmp_path, model, clock) -> None:
    settings = settings_for(tmp_path, model, buffer={"max_tokens": 12})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await say(scheduler, "I moved to Lisbon")
    assert model.calls == 0
    await say(scheduler, "I like green tea from Uji and nothing else")
    assert model.calls == 1
    assert set(await facts(scheduler)) == {
        "Ann lives in Lisbon",
        "Ann likes green tea from Uji and nothing else",
    }
    await scheduler.stop()


async def test_turns_are_buffered_for_a_cluster_and_no_run_is_asked_for(tmp_path, model, clock) -> None:
    settings = settings_for(tmp_path, model, buffer={"max_tokens": 1, "processor": "cluster"})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await say(scheduler, "I moved to Lisbon", "I like tea")
    await later(scheduler, clock, 2 * HOUR)
    assert model.calls == 0
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert [row.status for row in rows] == ["idle", "idle"]
    await scheduler.buffers.flush("ann")
    await scheduler.runtime.drain()
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon", "Ann likes tea"}
    await scheduler.stop()


async def test_a_fact_and_its_turns_are_one_hit(scheduler, clock) -> None:
    item = await say(scheduler, "I moved to Lisbon", "Hello, Lisbon is warm")
    await later(scheduler, clock)
    found = await scheduler.memory.search("Who lives in Lisbon?", user_id="ann")
    assert [hit.text for hit in found] == ["Ann lives in Lisbon", "Hello, Lisbon is warm"]
    assert found[0].sources[0].item_id == item


async def test_a_fact_that_ends_another_closes_it(scheduler, clock) -> None:
    await say(scheduler, "I moved to Porto")
    await later(scheduler, clock)
    await say(scheduler, "I moved to Lisbon")
    await later(scheduler, clock)
    known = await facts(scheduler)
    assert known["Ann lives in Lisbon"].valid_to is None
    assert known["Ann lives in Porto"].valid_to == known["Ann lives in Lisbon"].held_at
    before = known["Ann lives in Porto"].valid_to - 1
    then = await scheduler.memory.search("Where does Ann live?", user_id="ann", as_of=before, kinds=["fact"])
    assert [hit.text for hit in then] == ["Ann lives in Porto"]


async def test_a_fact_that_was_over_when_it_was_said_ends_no_earlier_than_it_begins(
    scheduler, clock, model
) -> None:
    over = {"text": "Ann lived in Porto", "kind": "fact", "turns": [1], "valid_to": "2020-03-01"}
    model.answers = lambda _: Answer(text=json.dumps({"facts": [over]}))
    await say(scheduler, "I lived in Porto until March 2020")
    await later(scheduler, clock)
    (fact,) = (await facts(scheduler)).values()
    assert fact.valid_from == fact.valid_to == 1_583_020_800_000


async def test_equal_facts_are_one_with_both_sources(scheduler, clock) -> None:
    first = await say(scheduler, "I like tea")
    await later(scheduler, clock)
    second = await say(scheduler, "I like  TEA")
    await later(scheduler, clock)
    (fact,) = (await facts(scheduler)).values()
    assert [source.item_id for source in fact.sources] == [first, second]


async def test_without_a_model_turns_are_kept_and_nothing_is_buffered(tmp_path, clock) -> None:
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, None), clock=clock)
    item = await say(scheduler, "I moved to Lisbon")
    await later(scheduler, clock, 2 * HOUR)
    assert await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann")) == []
    assert (await scheduler.memory.get(f"{item}.0", user_id="ann")).text == "I moved to Lisbon"
    receipt = await scheduler.submit("mem_read", user_id="ann", content="Ann has a cat")
    await scheduler.runtime.drain()
    assert (await scheduler.memory.get(f"{receipt.item_id}.0", user_id="ann")).text == "Ann has a cat"
    assert await facts(scheduler) == {}
    await scheduler.stop()


async def test_a_text_is_kept_and_read(scheduler) -> None:
    receipt = await scheduler.submit("mem_read", user_id="ann", content={"text": "I like tea"})
    await scheduler.runtime.drain()
    (fact,) = (await facts(scheduler)).values()
    assert fact.sources[0].item_id == receipt.item_id


async def test_a_text_longer_than_the_window_is_split(tmp_path, model, clock) -> None:
    llm = {"window_tokens": 1600, "max_output_tokens": 100}
    model.answers = lambda _: Answer(text='{"facts": []}')
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model, llm=llm), clock=clock)
    words = " ".join(f"word{number}" for number in range(1500))
    await scheduler.submit("mem_read", user_id="ann", content=words)
    await scheduler.runtime.drain()
    assert model.calls > 3
    said = [text for request in model.requests for _, _, text in turns_in(request.prompt)]
    assert " ".join(said).split() == words.split()
    await scheduler.stop()


async def test_a_piece_that_the_model_finds_too_long_is_read_in_parts(scheduler, clock, model) -> None:
    """Our estimate of tokens is too low for some texts, and for some models."""

    def short_sighted(request):
        if len(request.prompt) > 3000:
            return Answer(status=400, code="context_length_exceeded")
        return extract(request)

    model.answers = short_sighted
    item = await say(scheduler, *(f"I like {'x' * 150} {number}" for number in range(12)), "Hello " * 700)
    await later(scheduler, clock)
    assert len(await facts(scheduler)) == 12
    assert await scheduler.runtime.store.unread_turns(("ann", "ann"), 0, 10) == []
    sources = {source.index for fact in (await facts(scheduler)).values() for source in fact.sources}
    assert sources == set(range(12))
    (state,) = await scheduler.status("ann", item)
    assert state.status is Status.COMPLETED


async def test_a_deleted_turn_is_not_read(scheduler, clock, model) -> None:
    item = await say(scheduler, "I moved to Lisbon")
    await scheduler.memory.delete(f"{item}.0", user_id="ann")
    await later(scheduler, clock, 2 * HOUR)
    assert (model.calls, await facts(scheduler)) == (0, {})


async def test_a_deleted_fact_does_not_come_back(scheduler, clock) -> None:
    await say(scheduler, "I like tea")
    await later(scheduler, clock)
    (fact,) = (await facts(scheduler)).values()
    await scheduler.memory.delete(fact.id, user_id="ann")
    await say(scheduler, "I like tea")
    await later(scheduler, clock)
    assert await facts(scheduler) == {}


async def test_what_to_extract_is_set_by_cube(scheduler, clock, model) -> None:

    await scheduler.extraction.set(
        Extraction(mission="A diary of meals.", categories=("food",)), user_id="ann"
    )
    await say(scheduler, "I like tea")
    await later(scheduler, clock)
    assert "A diary of meals." in model.requests[0].prompt
    schema = json.dumps(model.requests[0].body["response_format"])
    assert '"enum": ["food"]' in schema


# -- failures ----------------------------------------------------------------------------------------------


async def test_a_failed_call_loses_no_turn_and_is_not_half_done(scheduler, clock, model) -> None:
    model.script = [Answer(status=500)]
    await say(scheduler, "I moved to Lisbon")
    await later(scheduler, clock)
    assert await facts(scheduler) == {}
    (row,) = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert (row.status, row.failures) == ("idle", 1)
    await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon"}


async def test_rows_that_always_fail_end_as_a_dead_letter_that_says_why(tmp_path, model, clock) -> None:
    model.answers = lambda request: Answer(status=500) if "poison" in request.prompt else extract(request)
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model), clock=clock)
    await say(scheduler, "I like poison")
    await say(scheduler, "I like tea")
    for _ in range(4):
        await later(scheduler, clock)
    await scheduler.runtime.buffer_sweeper.sweep()  # no message is left that would read the other row
    await later(scheduler, clock)
    rows = {row.content: row for row in await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))}
    assert sorted(row.status for row in rows.values()) == ["done", "failed"]
    assert set(await facts(scheduler)) == {"Ann likes tea"}
    (dead,) = (await scheduler.control.dead_letters(user_id="ann")).rows
    assert "500" in dead.error
    model.answers = extract
    await scheduler.control.requeue(dead.item_id, user_id="ann")
    await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann likes poison", "Ann likes tea"}
    await scheduler.stop()


async def test_a_row_that_always_fails_takes_no_other_row_along(tmp_path, model, clock) -> None:
    model.answers = lambda request: Answer(status=500) if "poison" in request.prompt else extract(request)
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model), clock=clock)
    await say(scheduler, "I like tea", "I like poison", "I like milk", "I like rice")
    for _ in range(8):
        await later(scheduler, clock)
        await scheduler.runtime.buffer_sweeper.sweep()
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert [row.status for row in rows] == ["done", "failed", "done", "done"]
    assert set(await facts(scheduler)) == {"Ann likes tea", "Ann likes milk", "Ann likes rice"}
    await scheduler.stop()


@pytest.mark.parametrize("status", [502, 503, 529])
async def test_an_outage_gives_no_row_up(scheduler, clock, model, status) -> None:
    model.answers = lambda _: Answer(status=status)
    for turn in ("I moved to Lisbon", "I like tea", "I like milk"):
        await say(scheduler, turn)
        for _ in range(20):
            await later(scheduler, clock, 60)
    for _ in range(12):
        await later(scheduler, clock)
        await scheduler.runtime.buffer_sweeper.sweep()
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert [(row.status, row.failures) for row in rows] == [("idle", 0)] * 3
    model.answers = extract
    await scheduler.runtime.buffer_sweeper.sweep()
    for _ in range(3):
        await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon", "Ann likes tea", "Ann likes milk"}


@pytest.mark.parametrize(
    "extra", [{"same_as": 0}, {"ends": None}, {"ends": [0, -1]}, {"info": "x"}, {"kind": None}]
)
async def test_what_nobody_asked_for_spoils_no_answer(scheduler, clock, model, extra) -> None:
    fact = {"text": "Ann likes tea", "kind": "fact", "turns": [1]} | extra
    model.answers = lambda _: Answer(text=json.dumps({"facts": [fact]}))
    if "kind" in extra:  # it is needed: the answer is repaired
        good = json.dumps({"facts": [fact | {"kind": "preference"}]})
        model.script = [Answer(text=json.dumps({"facts": [fact]})), Answer(text=good)]
    await say(scheduler, "I like tea")
    await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann likes tea"}
    assert model.calls == 1 + ("kind" in extra)


@pytest.mark.parametrize("by", ["cut off", "too many"])
async def test_turns_with_too_much_to_answer_are_read_in_parts(tmp_path, model, clock, by) -> None:
    def answers(request: Request) -> Answer:
        turns = request.prompt.count("I like thing")
        if turns > 13:
            facts = [{"text": f"fact {n}", "kind": "fact", "turns": [1]} for n in range(51)]
            many = Answer(text=json.dumps({"facts": facts}))
            return many if by == "too many" else Answer(text='{"facts": [{"te', finish="length")
        return extract(request)

    model.answers = answers
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model), clock=clock)
    await say(scheduler, *(f"I like thing{number}" for number in range(80)))
    model.script = [Answer(text='{"facts": [{"te', finish="length"), Answer(status=500)]
    await later(scheduler, clock)
    await later(scheduler, clock)
    assert model.calls == 15  # 50 and 30 turns in halves and quarters; one call failed, none was repeated
    assert len(await facts(scheduler)) == 80
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert {row.status for row in rows} == {"done"}
    await scheduler.stop()


async def test_a_refused_key_pauses_and_goes_on_unaided(scheduler, clock, model) -> None:
    model.script = [Answer(status=401, code="invalid_api_key")]
    await say(scheduler, "I moved to Lisbon")
    await later(scheduler, clock)
    for _ in range(3):
        await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon"}


@pytest.mark.parametrize("refusal", [rate_limit(2), quota()])
async def test_limits_of_the_provider_use_no_attempt(scheduler, clock, model, refusal) -> None:
    model.script = [refusal]
    await say(scheduler, "I moved to Lisbon")
    for _ in range(4):
        await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon"}
    (row,) = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert row.failures == 0


async def test_a_spent_budget_puts_off_only_its_tenant(tmp_path, model, clock) -> None:
    settings = settings_for(tmp_path, model, llm={"tokens_per_day": 15}, buffer={"max_tokens": 1})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await say(scheduler, "I like tea")
    await say(scheduler, "I like milk")
    await say(scheduler, "I like tea", user="bob", name="Bob")
    assert set(await facts(scheduler)) == {"Ann likes tea"}
    assert set(await facts(scheduler, "bob")) == {"Bob likes tea"}
    waiting = [item for item in await scheduler.status("ann") if item.status is Status.WAITING]
    assert any("llm.tokens_per_day" in (item.error or "") for item in waiting)
    assert [(one.user_id, one.what) for one in await scheduler.observe.budgets_spent()] == [
        ("ann", "tokens"),
        ("bob", "tokens"),
    ]
    await later(scheduler, clock, 25 * HOUR)
    assert set(await facts(scheduler)) == {"Ann likes tea", "Ann likes milk"}
    usage = await scheduler.observe.usage()
    assert sum(row.tokens for row in usage) == model.tokens == 45
    await scheduler.stop()


@pytest.mark.parametrize("after", [Answer(status=500), rate_limit(2)], ids=["failed", "handed back"])
async def test_each_answer_that_arrives_is_counted_also_in_a_run_after_it(
    scheduler, clock, model, after
) -> None:
    model.script = [half(), after]
    await say(scheduler, "I like tea")
    for _ in range(3):
        await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann likes tea"}
    (usage,) = await scheduler.observe.usage()
    assert (usage.calls, usage.tokens) == (2, model.tokens)
    keys = dict.fromkeys(model.keys)
    assert len(keys) == (3 if after.status == 500 else 2)  # a new attempt has a new key


async def test_a_fact_that_somebody_changes_meanwhile_is_a_conflict_and_is_read_again(
    scheduler, clock, model
) -> None:
    await say(scheduler, "I moved to Porto")
    await later(scheduler, clock)
    (porto,) = (await facts(scheduler)).values()
    revised = Revise(memory_id=porto.id, version=porto.version, importance=0.9)
    loop, store = asyncio.get_running_loop(), scheduler.runtime.store

    def change_then_answer(request):
        model.answers = extract
        asyncio.run_coroutine_threadsafe(store.change(("ann", "ann"), [revised]), loop).result(30)
        return extract(request)

    model.answers = change_then_answer
    await say(scheduler, "I moved to Lisbon")
    await later(scheduler, clock)
    known = await facts(scheduler)
    assert known["Ann lives in Porto"].importance == 0.9
    assert known["Ann lives in Porto"].valid_to is not None
    assert model.calls == 3


# -- queries -----------------------------------------------------------------------------------------------


async def test_a_query_counts_accesses_and_fills_working_memory(scheduler, clock) -> None:
    item = await say(scheduler, "I moved to Lisbon", "My cat is called Miau")
    content = {"query": "Where is Lisbon?", "found": [f"{item}.0", f"{item}.0"], "session_id": "s"}
    query = await scheduler.submit("query", user_id="ann", content=content)
    await scheduler.runtime.drain()
    memory = await scheduler.memory.get(f"{item}.0", user_id="ann")
    assert (memory.access_count, memory.tier) == (1, "working")
    answer = {"answer": "In Portugal.", "query_item_id": query.item_id, "used": [f"{item}.0"]}
    await scheduler.submit("answer", user_id="ann", content=answer)
    await scheduler.runtime.drain()
    (noted,) = await scheduler.runtime.store.queries(("ann", "ann"))
    assert (noted.query, noted.answer, noted.session_id) == ("Where is Lisbon?", "In Portugal.", "s")
    assert (await scheduler.memory.get(f"{item}.0", user_id="ann")).access_count == 2


async def test_working_memory_follows_the_last_queries_and_keeps_its_limit(tmp_path, clock) -> None:
    settings = settings_for(tmp_path, None, memory={"working_limit": 2})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    names = ("tea", "coffee", "milk", "water", "juice")
    await say(scheduler, *(f"I drink {name} every morning" for name in names))
    for name in (*names, *names):
        await scheduler.submit("query", user_id="ann", content=name)
        await scheduler.runtime.drain()
        clock.advance(1)
    page = await scheduler.memory.page(user_id="ann", tiers=["working"])
    assert len(page.items) == 2
    assert "I drink juice every morning" in {item.text for item in page.items}
    assert (await scheduler.memory.page(user_id="ann", tiers=["archive"])).items == []
    await scheduler.stop()


async def test_only_the_last_twenty_queries_are_kept(scheduler, clock) -> None:
    for number in range(25):
        await scheduler.submit("query", user_id="ann", content=f"query {number}")
        await scheduler.runtime.drain()
        clock.advance(1)
    kept = [noted.query for noted in await scheduler.runtime.store.queries(("ann", "ann"))]
    assert kept == [f"query {number}" for number in range(24, 4, -1)]


@pytest.mark.parametrize(
    ("label", "content"),
    [
        ("query", {"query": 7}),
        ("query", {"query": "x", "found": ["a"] * 1001}),
        ("answer", {"used": []}),
        ("mem_update", "no json"),
        ("mem_read", {"memory_ids": 3}),
        ("mem_read", {"text": "  "}),
        ("pref_add", {"memory_ids": 3}),
        ("api_mix_search", {"query": 3}),
        ("api_mix_search", " "),
        ("pref_add", {"memory_ids": ["a"] * 1001}),
    ],
)
async def test_bad_input_is_buried_at_once_with_the_reason(scheduler, label, content) -> None:
    receipt = await scheduler.submit(label, user_id="ann", content=content)
    await scheduler.runtime.drain()
    (item,) = await scheduler.status("ann", receipt.item_id)
    assert (item.status, item.attempts) == (Status.FAILED, 1)
    assert label in item.error or "content" in item.error or "mem" in item.error


async def test_turns_that_two_messages_name_are_read_once(tmp_path, model, clock) -> None:
    """A run hands over other portions than the one before, after more was kept or the window was changed."""
    without = AsyncScheduler(settings=settings_for(tmp_path, None), clock=clock)
    item = await say(without, "I moved to Lisbon", "I like tea")
    await without.stop()
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model), clock=clock)
    first = {"memory_ids": [f"{item}.0"], "only_unread": True}
    both = {"memory_ids": [f"{item}.0", f"{item}.1"]}
    for content in (first, both | {"only_unread": True}, both | {"only_unread": True}):
        await scheduler.submit("mem_read", user_id="ann", content=content)
        await scheduler.runtime.drain()
    said = [text for request in model.requests for _, _, text in turns_in(request.prompt)]
    assert said == ["I moved to Lisbon", "I like tea"]
    await scheduler.submit("mem_read", user_id="ann", content=both)
    await scheduler.runtime.drain()
    assert model.calls == 3
    await scheduler.stop()


async def test_a_plan_counts_the_calls_for_a_turn_that_is_longer_than_the_window(
    tmp_path, model, clock
) -> None:
    without = AsyncScheduler(settings=settings_for(tmp_path, None), clock=clock)
    await say(without, " ".join(f"word{number}" for number in range(1500)))
    await without.stop()
    settings = settings_for(tmp_path, model, llm={"window_tokens": 1600, "max_output_tokens": 100})
    model.answers = lambda _: Answer(text='{"facts": []}')
    async with AsyncScheduler(settings=settings) as scheduler:
        plan = await scheduler.extraction.plan()
        await scheduler.extraction.run()
        assert plan.calls - 1 <= model.calls <= plan.calls + 1
        assert plan.input_tokens > 1000 * plan.calls


@pytest.mark.parametrize("when", ["before it is read", "while it is read", "after it was read"])
async def test_a_turn_that_was_edited_is_read_as_it_is_now(scheduler, clock, model, when) -> None:
    item = await say(scheduler, "I like tea", "I like rice")
    turn = f"{item}.0"

    def edit() -> None:
        update = scheduler.memory.update(turn, user_id="ann", text="I like coffee")
        asyncio.run_coroutine_threadsafe(update, loop).result(30)

    loop = asyncio.get_running_loop()
    if when == "while it is read":

        def answers(request: Request) -> Answer:
            answer = extract(request)
            if "tea" in request.prompt:
                edit()
            return answer

        model.answers = answers
    elif when == "after it was read":
        await later(scheduler, clock)
        assert set(await facts(scheduler)) == {"Ann likes tea", "Ann likes rice"}
    if when != "while it is read":
        await asyncio.to_thread(edit)
    await later(scheduler, clock)
    if when == "after it was read":  # until it is read again, no fact stands for the turn
        texts = [hit.text for hit in await scheduler.memory.search("coffee", user_id="ann")]
        assert "I like coffee" in texts
        await later(scheduler, clock)
        await scheduler.runtime.buffer_sweeper.sweep()
        await later(scheduler, clock)
    found = await facts(scheduler)
    assert set(found) - {"Ann likes tea"} == {"Ann likes coffee", "Ann likes rice"}
    assert ("Ann likes tea" in found) == (when == "after it was read")
    assert "tea" not in model.requests[-1].prompt.partition("Turns:")[2]
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert {(row.status, row.content) for row in rows} == {("done", "")}
    assert await scheduler.runtime.store.unread_turns(("ann", "ann"), 0, 10) == []


async def test_a_change_that_leaves_the_text_lets_nothing_be_read_again(scheduler, clock, model) -> None:
    item = await say(scheduler, "I like tea")
    await later(scheduler, clock)
    await scheduler.memory.update(f"{item}.0", user_id="ann", text="I like tea", tags=["drink"])
    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert [row.status for row in rows] == ["done"]
    assert await scheduler.runtime.store.unread_turns(("ann", "ann"), 0, 10) == []
    assert model.calls == 1


async def test_a_plan_counts_as_many_calls_as_a_small_window_takes(tmp_path, model, clock) -> None:
    without = AsyncScheduler(settings=settings_for(tmp_path, None), clock=clock)
    await say(without, *(f"I like thing{number} very much indeed" for number in range(60)))
    await without.stop()
    llm = {"window_tokens": 3000, "max_output_tokens": 1900, "tokens_per_day": 0}
    async with AsyncScheduler(settings=settings_for(tmp_path, model, llm=llm)) as scheduler:
        plan = await scheduler.extraction.plan()
        assert plan.days is None  # never: nothing may be spent
    settings = settings_for(tmp_path, model, llm=llm | {"tokens_per_day": None})
    async with AsyncScheduler(settings=settings) as scheduler:
        assert (await scheduler.extraction.run()).turns == 60
    assert plan.calls - 1 <= model.calls <= plan.calls + 1


async def test_turns_that_a_worker_without_a_model_passes_over_are_read_by_the_next_run(
    tmp_path, model, clock
) -> None:
    without = AsyncScheduler(settings=settings_for(tmp_path, None))
    await say(without, "I moved to Lisbon")
    scheduler = AsyncScheduler(settings=settings_for(tmp_path, model))
    await scheduler.open()
    async with without:  # the only worker
        done = await scheduler.extraction.run()
    assert (done.turns, done.passed_over, model.calls) == (0, 1, 0)
    async with scheduler:
        done = await scheduler.extraction.run()
    assert (done.turns, done.passed_over, model.calls) == (1, 0, 1)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon"}
    await scheduler.stop()


async def test_what_to_extract_must_leave_room_for_turns(tmp_path, model, scheduler) -> None:
    long = Extraction(include=tuple(f"{number} {'word ' * 390}" for number in range(100)))
    with pytest.raises(InvalidMessageError, match=r"the model reads 8192 \(llm.window_tokens\)"):
        await scheduler.extraction.set(long, user_id="ann")
    settings = settings_for(tmp_path, model, extraction={"cubes": {"work": {"include": list(long.include)}}})
    with pytest.raises(InvalidSettingError, match=r"extraction.cubes.work.*llm.window_tokens"):
        AsyncScheduler(settings=settings)


@pytest.mark.parametrize("said", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"])
async def test_a_time_beyond_the_calendar_spoils_no_reading(scheduler, clock, said) -> None:
    turn = Turn(content="I moved to Lisbon", name="Ann", chat_time=said)
    await scheduler.memory.add([turn], user_id="ann")
    await scheduler.runtime.drain()
    await later(scheduler, clock)
    assert set(await facts(scheduler)) == {"Ann lives in Lisbon"}


async def test_old_turns_are_extracted_later_and_only_once(tmp_path, model, clock) -> None:
    without = AsyncScheduler(settings=settings_for(tmp_path, None), clock=clock)
    for user in ("ann", "bob"):
        await say(without, "I moved to Lisbon", "I like tea", user=user, name=user.title())
    await without.stop()
    prices = {"tiny": {"input": 2.0, "output": 10.0}}
    settings = settings_for(tmp_path, model, llm={"prices": prices})
    async with AsyncScheduler(settings=settings) as scheduler:
        plan = await scheduler.extraction.plan()
        assert (plan.tenants, plan.turns, plan.calls, plan.days, plan.model) == (2, 4, 2, 1, "tiny")
        assert plan.cost == round((plan.input_tokens * 2 + plan.output_tokens * 10) / 1e6, 4)
        assert model.calls == 0
        done = await scheduler.extraction.run(user_id="ann")
        assert (done.turns, done.failed, done.waiting, model.calls) == (2, 0, 0, 1)
        assert (await scheduler.extraction.run()).turns == 2
        assert (await scheduler.extraction.run()).turns == 0
        assert model.calls == 2
        assert set(await facts(scheduler, "bob")) == {"Bob lives in Lisbon", "Bob likes tea"}
