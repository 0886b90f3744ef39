"""`POST /product/search`: its modes, and the notes of its queries."""

from __future__ import annotations

import json
from typing import Any

from reverie.models.usage import UsageQuery
from reverie.principal import Principal, Role
from support.product import Product, model_settings, serving
from support.scripted_model import Answer, Request, rate_limit, scripted

READER = Principal(key="r", role=Role.READ_ONLY, users=frozenset({"ann"}))
AT_HOME = Principal(key="h", role=Role.USER, users=frozenset({"ann"}), cubes=frozenset({"home"}))


def judge(request: Request) -> Answer:
    """Words of drinks for each other, and a high score for what is about chamomile."""
    properties = request.body["response_format"]["json_schema"]["schema"]["properties"]
    if "queries" in properties:
        return Answer(text=json.dumps({"queries": ["chamomile", " "]}))
    lines = request.prompt.partition("Memories:\n")[2].splitlines()
    return Answer(text=json.dumps({"scores": [0.9 if "chamomile" in line else 0.1 for line in lines]}))


async def search(product: Product, **fields: Any) -> dict[str, Any]:
    return await product.done("search", {"user_id": "ann", "query": "hot drinks", **fields})


def texts(found: dict[str, Any]) -> list[str]:
    return [memory["memory"] for cube in found["text_mem"] for memory in cube["memories"]]


async def test_a_fine_search_finds_other_words_and_is_judged_by_the_model() -> None:
    history = [{"role": "user", "content": "I feel ill"}]
    with scripted() as model:
        model.answers = judge
        async with serving(**model_settings(model.url)) as product:
            await product.add("chamomile at night", session_id="1")
            await product.add("hot drinks are bad for teeth", session_id="2")
            assert texts(await search(product, mode="fast")) == ["hot drinks are bad for teeth"]
            assert model.calls == 0
            fine = await search(product, mode="fine", chat_history=history, explain=True)
            expanding, judging = model.taken()
            unranked = await search(product, mode="fine", rerank=False, relativity=0)
            assert len(model.taken()) == 1
            usage = await product.scheduler.runtime.gateway.ledger.usage(UsageQuery())
    assert (texts(fine), fine["dropped"], fine["degraded"]) == (["chamomile at night"], 1, [])
    assert fine["text_mem"][0]["memories"][0]["metadata"]["relativity"] == 0.9
    assert fine["text_mem"][0]["memories"][0]["metadata"]["signals"]["model"] == 0.9
    assert "user: I feel ill" in expanding
    assert "hot drinks are bad for teeth" in judging
    assert sorted(texts(unranked)) == ["chamomile at night", "hot drinks are bad for teeth"]
    assert [(row.user_id, row.label, row.calls) for row in usage] == [("ann", "search", 3)]


async def test_without_an_answer_of_the_model_a_fine_search_is_fast_and_says_so() -> None:
    async with serving() as product:
        await product.add("hot drinks")
        found = await search(product, mode="fine", internet_search=True)
    assert texts(found) == ["hot drinks"]
    assert found["degraded"] == [
        "this is a fast search: no language model is set up: set llm.preset",
        "the internet was not searched: this server does not do that",
    ]
    with scripted() as model:
        async with serving(**model_settings(model.url)) as product:
            await product.add("hot drinks")
            model.answers = lambda _: rate_limit()
            limited = await search(product, mode="fine")
            model.answers = lambda _: Answer(text="no JSON")
            wrong = await search(product, mode="fine")
        async with serving(**model_settings(model.url, tokens_per_day=0)) as product:
            await product.add("hot drinks")
            spent = await search(product, mode="fine")
    for found, reason in (
        (limited, "the language model gave no answer (rate_limited)"),
        (wrong, "the language model gave no answer (transient)"),
        (spent, "the tokens budget of the tenant ann/ann"),
    ):
        assert texts(found) == ["hot drinks"]
        (words,) = found["degraded"]
        assert words.startswith(f"this is a fast search: {reason}")


async def noted(product: Product) -> list[tuple[str, str]]:
    """The cubes and contents of the queries that were noted."""
    await product.scheduler.runtime.query_notes.close()
    rows = await product.scheduler.status("ann")
    return [(row.mem_cube_id, row.task_type) for row in rows if row.task_type == "query"]


async def test_every_search_is_noted_but_those_of_readers() -> None:
    async with serving() as product:
        await product.add("hot drinks", mem_cube_id="home")
        await search(product)
        assert await noted(product) == [("home", "query")]
        await search(product, query="bicycles")
        await search(product, query="bicycles", readable_cube_ids=["work"])
        assert sorted(await noted(product)) == [("ann", "query"), ("home", "query"), ("work", "query")]
    async with serving(caller=READER) as product:
        assert texts(await search(product)) == []
        assert await noted(product) == []


async def test_a_note_is_dropped_while_the_queue_is_more_than_half_full() -> None:
    async with serving(queue={"url": "memory://", "max_depth": 3}) as product:
        for number in range(2):
            await product.scheduler.submit("unhandled", user_id="bob", item_id=str(number))
        assert texts(await search(product)) == []
        assert await noted(product) == []


async def test_a_key_for_a_cube_finds_nothing_in_the_others() -> None:
    async with serving() as product:
        await product.add("hot drinks", mem_cube_id="home")
        await product.add("hot drinks at work", mem_cube_id="work")
        assert len(texts(await search(product, dedup="no"))) == 2
        async with product.asked_by(AT_HOME) as other:
            assert texts(await search(other)) == ["hot drinks"]
            code, message, _ = await other.ask(
                "search", {"user_id": "ann", "query": "x", "readable_cube_ids": ["work"]}
            )
            assert (code, message) == (403, "this key may not touch the cube 'work'")
