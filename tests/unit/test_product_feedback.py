"""`POST /product/feedback` and its handler: importance, corrections, and the shapes of the answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import Message
from reverie.handlers.mem_feedback import read_words
from reverie.memory.feedback import FeedbackInput
from support.product import Product, model_settings, serving
from support.scripted_model import Answer, scripted
from unit.test_governance import SECRET, ByTeam, as_caller

SYNC = {"async_mode": "sync"}
NOTHING = [{"record": {"add": [], "update": []}}]


async def give(product: Product, content: str | None, *ids: str, **fields: Any) -> Any:
    body = {"user_id": "ann", "history": None, "feedback_content": content, "retrieved_memory_ids": list(ids)}
    return await product.done("feedback", body | SYNC | fields)


async def importance(product: Product, memory_id: str) -> float:
    return (await product.done(f"get_memory/{memory_id}", user_id="ann"))["metadata"]["importance"]


async def test_praise_and_criticism_change_the_importance() -> None:
    async with serving() as product:
        await product.add("I drink tea", "I live in Lisbon", item_id="one")
        assert await give(product, "Great, thanks! 👍", "one.0", "none", "two.0") == NOTHING
        assert [await importance(product, f"one.{index}") for index in (0, 1)] == [0.7, 0.5]
        assert await give(product, "This was not helpful", "one.0", "one.1") == NOTHING
        assert [await importance(product, f"one.{index}") for index in (0, 1)] == [0.5, 0.3]
        for _ in range(3):
            await give(product, "不对", "one.1")
        assert await importance(product, "one.1") == 0
        history = await product.scheduler.memory.history("one.0", user_id="ann")
        assert [version.change for version in history] == ["revise", "revise"]
        assert await product.texts("tea Lisbon") == ["I drink tea", "I live in Lisbon"]


async def test_a_correction_supersedes_the_memory_that_fits_best() -> None:
    async with serving() as product:
        await product.add("I drink tea", "I live in Lisbon", item_id="one", custom_tags=["me"])
        data = await give(
            product, "No, I live in Porto", "one.0", "one.1", item_id="fix", feedback_time="2026-05-02"
        )
        assert data == [
            {
                "record": {
                    "add": [],
                    "update": [
                        {
                            "id": "fix.0",
                            "text": "No, I live in Porto",
                            "archived_id": "one.1",
                            "origin_memory": "I live in Lisbon",
                        }
                    ],
                }
            }
        ]
        new = await product.done("get_memory/one.1", user_id="ann")  # the old id leads to its successor
        assert (new["id"], new["metadata"]["tags"], new["metadata"]["importance"]) == ("fix.0", ["me"], 0.7)
        assert new["metadata"]["valid_from"] == "2026-05-02T00:00:00+00:00"
        assert await product.texts("live tea") == ["I drink tea", "No, I live in Porto"]
        old = await product.scheduler.memory.get("one.1", user_id="ann", follow=False)
        assert old is not None
        assert (old.text, old.superseded_by) == ("I live in Lisbon", "fix.0")
        again = await give(product, "I live in Braga", "one.1")  # a feedback about the old id
        assert again[0]["record"]["update"][0]["archived_id"] == "fix.0"


async def test_a_correction_that_names_no_memory() -> None:
    async with serving() as product:
        await product.add("I live in Lisbon", item_id="one")
        (added,) = await give(product, "My sister likes chess", item_id="a")
        assert added == {"record": {"add": [{"id": "a.0", "text": "My sister likes chess"}], "update": []}}
        (fixed,) = await give(product, "I live in Porto, not in Lisbon", item_id="b")
        assert [one["archived_id"] for one in fixed["record"]["update"]] == ["one.0"]
        (same,) = await give(product, "I live in Porto, not in Lisbon", "b.0", corrected_answer=True)
        assert same["record"]["update"] == []


GOVERNANCE = f"{ByTeam.__module__}:ByTeam"
WRONG = "I live in Porto, not in Lisbon"


async def test_feedback_changes_only_what_its_caller_may_read() -> None:
    async with serving(governance=GOVERNANCE) as product, product.asked_by(as_caller(team=SECRET)) as friend:
        await friend.add("I live in Lisbon", item_id="one", custom_tags=[SECRET])
        before = await friend.done("get_memory/one.0", user_id="ann")
        missing = await give(product, "No, I live in Porto", "none.0", item_id="x")
        hidden = await give(product, "No, I live in Porto", "one.0", item_id="y")
        assert json.dumps(missing).replace("x.0", "y.0") == json.dumps(hidden)
        await give(product, "useless", "one.0")
        await give(product, WRONG)  # names no memory: one is looked for
        await product.add("The answer was: Lisbon", WRONG, is_feedback=True)
        body = {"user_id": "ann", "conversation_id": "c", "feedback_content": WRONG}
        for ids in ({}, {"retrieved_memory_ids": ["one.0"]}):
            told = await product.client.post("/api/openmem/v1/add/feedback", json=body | ids)
            assert told.json()["code"] == 0
        await product.scheduler.observe.wait_idle("ann")
        assert await friend.done("get_memory/one.0", user_id="ann") == before
        (fixed,) = await give(friend, "I live in Faro", "one.0")
        assert [one["archived_id"] for one in fixed["record"]["update"]] == ["one.0"]


async def test_feedback_under_governance_is_about_what_fits_and_may_be_read() -> None:
    async with serving(governance=GOVERNANCE) as product, product.asked_by(as_caller(team=SECRET)) as friend:
        await product.add("I live in Lisbon", item_id="one")
        await friend.add("I live in Lisbon, Rua Augusta", item_id="two", custom_tags=[SECRET])
        (fixed,) = await give(product, WRONG, item_id="fix")
        assert [one["archived_id"] for one in fixed["record"]["update"]] == ["one.0"]
        assert await give(product, WRONG, item_id="fix") == [fixed]  # a repeat is the same message
        assert (
            await product.ask(
                "feedback", {"user_id": "ann", "history": [], "feedback_content": "other", "item_id": "fix"}
            )
        ).code == 409
        (added,) = await give(product, "My sister likes chess", item_id="a")
        assert [one["id"] for one in added["record"]["add"]] == ["a.0"]
        (again,) = await give(product, "I live in Braga", "one.0")  # an id that leads to its successor
        assert [one["archived_id"] for one in again["record"]["update"]] == ["fix.0"]
        assert await importance(friend, "two.0") == 0.5


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("Thanks, that's exactly right", "like"),
        ("very good!", "like"),
        ("很好谢谢", "like"),
        ("That\u2019s wrong", "dislike"),
        ("not good", "dislike"),
        ("the answer is useless 👎", "dislike"),
        ("不对", "dislike"),
        ("it is", "none"),
        ("...", "none"),
        ("Wrong, I drink coffee", "correction"),
        ("I drink good coffee", "correction"),
        ("不是\uff0c我住在波尔图", "correction"),
    ],
)
def test_words_tell_praise_criticism_and_correction_apart(words: str, verdict: str) -> None:
    given = FeedbackInput(feedback_content=words)
    assert read_words(given, is_meant=True).verdict == verdict
    corrected = FeedbackInput(feedback_content=words, corrected_answer=True)
    assert read_words(corrected, is_meant=True).verdict == "correction"


@given(st.text())
def test_all_words_have_a_meaning(words: str) -> None:
    verdict = read_words(FeedbackInput(feedback_content=words), is_meant=False)
    assert verdict.verdict != "correction" or verdict.memories == ()


async def test_the_shapes_of_answers() -> None:
    may_run = asyncio.Event()
    async with serving(server={"sync_timeout_s": 0.05}) as product:
        assert await give(product, None) == NOTHING
        assert await give(product, "good", async_mode="async") == [[]]
        cubes = {"writable_cube_ids": ["a", "b"]}
        assert await give(product, "good", async_mode="async", **cubes) == [[], []]

        @product.scheduler.handler("mem_feedback")
        async def wait(message: Message) -> None:
            await may_run.wait()

        body = {"user_id": "ann", "history": [], "feedback_content": "good", **SYNC}
        assert (await product.ask("feedback", body))[1:] == ("resolving", [[]])
        may_run.set()
    async with serving(works=False) as product:
        response = await product.send("feedback", body)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert await product.scheduler.status("ann") == []
        for fields, code, words in (
            ({"history": "x"}, 422, "body.history"),
            ({"item_id": "a", **cubes}, 400, "item_id='a': can be given for one cube only"),
            ({"user_id": "_system"}, 400, "user_id='_system'"),
            ({"retrieved_memory_ids": ["x"] * 101}, 422, "body.retrieved_memory_ids"),
        ):
            answer = await product.ask("feedback", body | {"async_mode": "async"} | fields)
            assert (answer.code, answer.message[: len(words)]) == (code, words)


async def test_the_model_says_what_feedback_means() -> None:
    with scripted() as model:
        async with serving(**model_settings(model.url)) as product:
            await product.add("I live in Lisbon", "I work in Lisbon", "I drink tea", item_id="one")
            verdict = {"verdict": "correction", "memories": [1, 2], "text": "Ann has moved to Porto"}
            model.script = [Answer(text=json.dumps(verdict))]
            history = [{"role": "assistant", "content": "You live in Lisbon"}]
            (fixed,) = await give(product, "I left that town", "one.0", "one.1", "one.2", history=history)
            prompt = model.requests[-1].prompt
            model.script = [Answer(text='{"verdict": "dislike", "memories": [1]}')]
            assert await give(product, "hm", "one.2") == NOTHING
            assert await importance(product, "one.2") == 0.3
    assert {one["archived_id"] for one in fixed["record"]["update"]} == {"one.0", "one.1"}
    assert {one["text"] for one in fixed["record"]["update"]} == {"Ann has moved to Porto"}
    for words in ("assistant: You live in Lisbon", "I left that town", "3. I drink tea"):
        assert words in prompt


async def test_an_add_may_be_feedback() -> None:
    body = {
        "user_id": "ann",
        "is_feedback": True,
        "item_id": "fix",
        "chat_history": [{"role": "user", "content": "Where do I live?"}],
        "messages": [
            {"role": "assistant", "content": "In Lisbon"},
            {"role": "user", "content": "I live in Porto, not in Lisbon"},
        ],
    }
    async with serving() as product:
        await product.add("I live in Lisbon", item_id="one")
        (entry,) = await product.done("add", body)
        assert (entry["memory_id"], entry["status"]) == ("fix.0", "accepted")
        (entry,) = await product.done("add", body | SYNC)
        assert (entry["memory"], entry["status"]) == ("I live in Porto, not in Lisbon", "activated")
        assert await product.texts("live") == ["I live in Porto, not in Lisbon"]
        silent = {"user_id": "ann", "is_feedback": True, "messages": [{"role": "assistant", "content": "x"}]}
        code, message, _ = await product.ask("add", silent)
        assert (code, message.endswith("is_feedback needs words of the user")) == (400, True)
        assert message.startswith('messages=[{"role": "assistant", "content": '), message
