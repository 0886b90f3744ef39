"""Talking with the model over HTTP, suggestions, and the routes of MemOS that are not served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import AsyncScheduler
from reverie.api.thinking import Thinking
from reverie.api.unsupported import REASONS
from reverie.models.interface import AnswerPart, ChatMessage, Completion
from reverie.models.usage import UsageQuery
from reverie.principal import Principal, Role
from reverie.settings import load_settings
from support.product import Product, model_settings, serving
from support.scripted_model import Answer, rate_limit, scripted

ASKED = {"user_id": "ann", "query": "Where do I live?", "session_id": "s"}
DEEP = "<think>\nLisbon, then Porto.\n</think>\n\nIn Porto, I think."


async def frames(product: Product, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await product.send("chat/stream", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


async def turns(product: Product) -> list[str]:
    """All turns of ann, in order."""
    await product.scheduler.observe.wait_idle("ann", timeout=0)
    page = await product.scheduler.memory.page(user_id="ann")
    return [item.text for item in page.items]


async def settled(product: Product) -> None:
    """Wait until all that was added is written."""
    for row in await product.scheduler.status("ann"):
        if row.task_type == "add":
            await product.scheduler.wait(row.item_id, user_id="ann")


async def test_the_model_answers_with_memories_and_the_talk_is_remembered() -> None:
    with scripted() as model:
        model.answers = lambda _: Answer(text=DEEP, tokens=(30, 12))
        async with serving(**model_settings(model.url, prices={"scripted": {"input": 1}})) as product:
            await product.add("I live in Porto", item_id="one")
            data = await product.done(
                "chat/complete",
                ASKED
                | {
                    "history": [{"role": "user", "content": "Hi"}, {"role": "tool", "content": "x"}],
                    "max_tokens": 50,
                    "temperature": 0.7,
                    "top_p": 0.9,
                    "writable_cube_ids": ["talks", "more"],
                },
            )
            assert data == {"response": "In Porto, I think.", "reasoning": "Lisbon, then Porto.\n"}
            (request,) = model.requests
            system, *others = request.body["messages"]
            assert "Memories:\n- user: I live in Porto" in system["content"]
            assert others == [
                {"role": "user", "content": "Hi"},
                {"role": "user", "content": "Where do I live?"},
            ]
            wishes = {name: request.body[name] for name in ("max_tokens", "temperature", "top_p")}
            assert wishes == {"max_tokens": 50, "temperature": 0.7, "top_p": 0.9}
            await settled(product)
            kept = await product.scheduler.memory.page(user_id="ann", mem_cube_id="talks")
            assert [(item.text, item.session_id) for item in kept.items] == [
                ("Where do I live?", "s"),
                ("In Porto, I think.", "s"),
            ]
            assert kept.items[1].sources[0].role == "assistant"
            (usage,) = await product.scheduler.runtime.gateway.ledger.usage(UsageQuery())
            assert (usage.label, usage.input_tokens, usage.output_tokens, usage.micros) == (
                "chat",
                30,
                12,
                30,
            )
            labels = [row.task_type for row in await product.scheduler.status("ann")]
            assert "query" in labels


async def test_an_answer_part_by_part() -> None:
    with scripted() as model:
        model.answers = lambda _: Answer(text=DEEP)
        async with serving(**model_settings(model.url)) as product:
            heard = await frames(product, ASKED)
            assert {frame["type"] for frame in heard} == {"reasoning", "text"}
            assert len(heard) > 4
            thought = "".join(frame["data"] for frame in heard if frame["type"] == "reasoning")
            said = "".join(frame["data"] for frame in heard if frame["type"] == "text")
            assert (thought, said) == ("Lisbon, then Porto.\n", "In Porto, I think.")
            await settled(product)
            assert await turns(product) == ["Where do I live?", "In Porto, I think."]
            model.answers = lambda _: Answer(text="one two three four", breaks=True)
            broken = await frames(product, ASKED)
            assert [frame["type"] for frame in broken] == ["text", "text", "error"]
            assert broken[-1]["content"].startswith("the language model gave no answer (")
            assert len(await turns(product)) == 2
            usage = await product.scheduler.runtime.gateway.ledger.usage(UsageQuery())
            assert [(row.label, row.calls) for row in usage] == [("chat", 2)]  # what was heard is paid
            quiet = await frames(product, ASKED | {"add_message_on_answer": False})
            assert quiet
            assert len(await turns(product)) == 2


async def test_the_prompt_of_a_client_and_what_fits_into_it() -> None:
    with scripted() as model:
        async with serving(**model_settings(model.url, window_tokens=600, max_output_tokens=100)) as product:
            await product.add("I have a cup", *(f"The day {number} was warm" for number in range(5)))
            history = [{"role": "user", "content": f"{number} " + "word " * 150} for number in range(4)]
            body = ASKED | {
                "query": "cup",
                "history": history,
                "relativity": 0,
                "add_message_on_answer": False,
            }
            await product.done("chat/complete", body | {"threshold": 1})
            system, *others = model.requests[-1].body["messages"]
            assert 1 <= system["content"].count("\n- user: ") <= 3
            await product.done("chat/complete", body | {"threshold": 0, "query": "day cup", "history": []})
            assert model.requests[-1].body["messages"][0]["content"].count("\n- user: ") == 6
            assert [message["content"][0] for message in others] == ["2", "3", "c"]
            await product.done("chat/complete", body | {"system_prompt": "You know:\n{memories}\nBe brief."})
            assert model.requests[-1].body["messages"][0]["content"].endswith("\nBe brief.")
            await product.done("chat/complete", body | {"system_prompt": "word " * 500})
            assert len(model.requests[-1].body["messages"]) == 2


async def test_a_chat_that_is_refused() -> None:
    reader = Principal(key="r", role=Role.READ_ONLY, users=frozenset({"ann"}))
    async with serving() as product:
        for path in ("chat/complete", "chat/stream"):
            code, message, _ = await product.ask(path, ASKED)
            assert (code, message) == (503, "no language model is set up: set llm.preset")
        async with product.asked_by(reader) as other:
            assert (await other.ask("chat/complete", ASKED)).code == 403
    with scripted() as model:
        async with serving(**model_settings(model.url)) as product:
            code, message, _ = await product.ask("chat/complete", ASKED | {"model_name_or_path": "gpt-9"})
            assert (code, message) == (
                400,
                "model_name_or_path='gpt-9': is not known: leave it out, or give 'scripted'",
            )
            data = await product.done("chat/complete", ASKED | {"model_name_or_path": "scripted"})
            assert data["response"] == "ok"
            for answer, kind in (
                (Answer(text=""), "transient"),
                (rate_limit(7), "rate_limited"),
            ):
                model.script = [answer]
                response = await product.send("chat/stream", ASKED)
                assert response.status_code == 503
                assert response.json()["message"] == f"the language model gave no answer ({kind})"
                assert int(response.headers["retry-after"]) >= 5
        async with serving(**model_settings(model.url, tokens_per_day=0)) as product:
            response = await product.send("chat/complete", ASKED)
            assert response.status_code == 429
            assert "the tokens budget of the tenant ann/ann" in response.json()["message"]
            assert int(response.headers["retry-after"]) > 0


async def test_an_answer_is_given_though_it_cannot_be_remembered() -> None:
    with scripted() as model:
        settings = model_settings(model.url) | {"queue": {"url": "memory://", "max_depth": 1}}
        async with serving(works=False, **settings) as product:
            await product.scheduler.submit("unhandled", user_id="bob")
            code, message, data = await product.ask("chat/complete", ASKED)
    assert (code, data["response"]) == (200, "ok")
    assert message.startswith("answered, but not remembered: queue.max_depth = 1 is reached")


async def test_what_is_said_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with scripted() as model:
        async with serving(**model_settings(model.url), limits={"max_content_bytes": 60}) as product:
            asked = ASKED | {"query": "Where did I bury the treasure?"}
            _, message, _ = await product.ask("chat/complete", asked)
            await product.scheduler.runtime.query_notes.close()
    assert message.startswith("answered, but not remembered: content=")
    assert "chat.not_kept" in caplog.text
    assert "treasure" not in caplog.text


async def test_a_model_of_the_programs_own_answers_at_once() -> None:
    class Parrot:
        async def complete(self, prompt: Sequence[ChatMessage], **_: Any) -> Completion:
            return Completion(text=prompt[-1].content, output_tokens=1)

    settings = load_settings(queue={"url": "memory://"}, memory={"embedding": "none"})
    scheduler = AsyncScheduler(settings=settings)
    scheduler.initialize_modules(language_model=Parrot())
    async with serving(scheduler=scheduler) as product:
        assert await frames(product, ASKED) == [{"type": "text", "data": "Where do I live?"}]
        usage = await product.scheduler.runtime.gateway.ledger.usage(UsageQuery())
        assert [row.output_tokens for row in usage] == [1]


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<", "/", "think", ">", "a", " ", "\n", "<thi", "nk>", "</th", "ink>"]
        )
    ),
    st.booleans(),
)
def test_thoughts_are_told_from_answers_however_they_are_cut(parts: list[str], thinks: bool) -> None:
    parts = ["<think>", *parts] if thinks else parts
    once, often = Thinking(), Thinking()
    whole = [*once.take(AnswerPart(text="".join(parts))), *once.end()]
    pieces = [known for part in parts for letter in part for known in often.take(AnswerPart(text=letter))]
    pieces += often.end()
    for field in ("text", "reasoning"):
        said = ["".join(getattr(part, field) for part in some) for some in (pieces, whole)]
        assert said[0] == said[1]
    assert all(bool(part.text) != bool(part.reasoning) for part in pieces)


async def test_suggestions() -> None:
    body = {"user_id": "ann", "mem_cube_id": "ann"}
    async with serving() as product:
        assert await product.done("suggestions", body) == {"query": []}
        await product.add("I drink tea", "I live in a small house at the end of a very long road in Porto")
        assert await product.done("suggestions", body | {"language": "en"}) == {
            "query": [
                'Tell me more about "I live in a small house at the end of a very long road in P…"',
                'Tell me more about "I drink tea"',
            ]
        }
        assert (await product.done("suggestions", body))["query"][1] == "再说说“I drink tea”"
    with scripted() as model:
        async with serving(**model_settings(model.url)) as product:
            await product.add("I drink tea")
            model.script = [Answer(text='{"query": ["Which tea?"]}')]
            said = {"language": "en", "message": [{"role": "user", "content": "I am thirsty"}]}
            assert await product.done("suggestions", body | said) == {"query": ["Which tea?"]}
            prompt = model.requests[-1].prompt
            assert all(words in prompt for words in ("- I drink tea", "user: I am thirsty", "in English"))
            model.script = [rate_limit()]
            code, message, data = await product.ask("suggestions", body | {"message": "hm", "language": "en"})
            assert (code, data["query"]) == (200, ['Tell me more about "I drink tea"'])
            assert message.startswith("these are simple suggestions: ")


async def test_routes_that_make_no_sense_here_say_why() -> None:
    async with serving(works=False) as product:
        for path, reason in REASONS.items():
            response = await product.client.post(path, json={"anything": 1})
            assert response.json() == {"code": 501, "message": f"{path}: {reason}", "data": None}
