"""A conversation is read by a real language model, which is small: only the form of the facts is checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from jsonschema import validate

from reverie import AsyncScheduler
from reverie.handlers import mem_read
from reverie.handlers.extraction import answer_schema
from reverie.memory.buffers import BufferKey
from reverie.models.gateway import Gateway
from reverie.settings import load_settings
from reverie.turn import Turn
from support.small_model import WINDOW_TOKENS, small_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.models.interface import Completion

TURNS = ("I moved to Lisbon in May", "My cat is called Miau", "I like green tea")
SAID_AT = "2026-05-07T10:00:00Z"
"""The same in each run, because the prompt names it."""
KINDS = ["fact", "event", "preference"]


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    with small_model() as url:
        yield url


def short_schema(*given) -> dict:
    """The schema of an answer, bounded: a small model writes as much as it may."""
    schema = answer_schema(*given)
    facts = schema["properties"]["facts"]
    facts |= {"minItems": 1, "maxItems": 2}
    fields = facts["items"]["properties"]
    fields["text"]["maxLength"] = 60
    fields["entities"]["maxItems"] = 2
    return schema


@pytest.fixture
def completions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, Completion]]:
    """The schemas and the answers of all calls, which are bounded."""
    monkeypatch.setattr(mem_read, "answer_schema", short_schema)
    seen: list[tuple[dict, Completion]] = []
    complete = Gateway.complete

    async def recorded(self, prompt, *, schema, **fields):
        completion = await complete(self, prompt, schema=schema, **fields)
        seen.append((schema, completion))
        return completion

    monkeypatch.setattr(Gateway, "complete", recorded)
    return seen


@pytest.mark.timeout(300)
async def test_a_small_model_makes_facts_that_are_linked_to_their_turns(
    tmp_path, model_url, completions
) -> None:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}"},
        llm={
            "preset": "custom",
            "url": model_url,
            "model": "smollm2",
            "window_tokens": WINDOW_TOKENS,
            "max_output_tokens": 1024,
            "timeout_s": 240,
        },
        buffer={"max_tokens": 1},
    )
    scheduler = AsyncScheduler(settings=settings)
    turns = [Turn(content=text, name="Ann", chat_time=SAID_AT) for text in TURNS]
    item = (await scheduler.memory.add(turns, user_id="ann")).item_id
    await scheduler.runtime.drain()

    said = {f"{item}.{index}" for index in range(len(TURNS))}
    ((schema, completion),) = completions
    answer = json.loads(completion.text)
    validate(answer, schema)

    facts = (await scheduler.memory.page(user_id="ann", kinds=KINDS)).items
    assert {fact.text for fact in facts} <= {fact["text"] for fact in answer["facts"]}
    assert facts
    for fact in facts:
        links = await scheduler.memory.links(fact.id, user_id="ann")
        targets = {link.item.id for link in links if link.relation == "derived_from" and link.outgoing}
        assert targets
        assert targets <= said
        assert {f"{source.item_id}.{source.index}" for source in fact.sources} == targets

    rows = await scheduler.runtime.store.buffer_rows(BufferKey("ann", "ann"))
    assert {row.blob_id: row.status for row in rows} == dict.fromkeys(said, "done")
    assert await scheduler.runtime.store.unread_turns(("ann", "ann"), 0, 10) == []
    (usage,) = await scheduler.observe.usage()
    assert (usage.user_id, usage.label, usage.calls) == ("ann", "mem_read", 1)
    assert (usage.input_tokens, usage.output_tokens) == (completion.input_tokens, completion.output_tokens)
    assert min(usage.input_tokens, usage.output_tokens) > 0
    await scheduler.stop()
