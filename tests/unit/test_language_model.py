"""The language model by HTTP: requests, answers, and what each failure is called."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import stamina

from reverie.assembly import new_models
from reverie.errors import InvalidSettingError
from reverie.failures import (
    CredentialsError,
    InvalidWorkError,
    QuotaError,
    RateLimitedError,
    TransientError,
    WorkError,
)
from reverie.models.interface import (
    AnswerTooLongError,
    BadAnswerError,
    ChatMessage,
    ModelAwayError,
    ModelMissingError,
    PromptTooLongError,
)
from reverie.models.openai_chat import PRESETS, OpenAIChat, retry_after
from reverie.models.settings import LlmSettings
from reverie.settings import load_settings
from support.scripted_model import Answer, ScriptedModel, garbage, half, quota, rate_limit, reset, scripted

PROMPT = [ChatMessage("system", "be brief"), ChatMessage("user", "hello")]
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with scripted() as model:
        yield model


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Tries follow each other without a pause."""
    with stamina.set_testing(True, attempts=3):
        yield


@asynccontextmanager
async def chat(server: ScriptedModel, **given) -> AsyncIterator[OpenAIChat]:
    settings = LlmSettings(**{"preset": "custom", "url": server.url, "model": "small", **given})
    model = OpenAIChat(settings)
    yield model
    model.disconnect()
    await model.closed()


async def test_a_request_and_its_answer(server: ScriptedModel) -> None:
    async with chat(server, api_key="sesame", temperature=0.5, max_output_tokens=99) as model:
        answer = await model.complete(PROMPT, schema=SCHEMA, idempotency_key="k-1")
    assert (answer.text, answer.input_tokens, answer.output_tokens, answer.model) == ("ok", 10, 5, "small")
    (request,) = server.requests
    assert request.key == "k-1"
    assert request.authorization == "Bearer sesame"
    assert request.body == {
        "model": "small",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "temperature": 0.5,
        "max_tokens": 99,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }


async def test_tokens_are_estimated_if_the_server_does_not_count(server: ScriptedModel) -> None:
    server.script = [Answer(text="你好吗", tokens=None)]
    async with chat(server) as model:
        answer = await model.complete([ChatMessage("user", "twelve chars")])
    assert (answer.input_tokens, answer.output_tokens) == (3, 3)


async def test_one_connection_is_used_again(server: ScriptedModel) -> None:
    async with chat(server) as model:
        for _ in range(3):
            await model.complete(PROMPT)
        assert len({request.connection for request in server.requests}) == 1
        model.disconnect()
        await model.closed()
        await model.complete(PROMPT)
    assert len({request.connection for request in server.requests}) == 2


def test_each_event_loop_has_its_own_client(server: ScriptedModel) -> None:
    model = OpenAIChat(LlmSettings(preset="custom", url=server.url, model="small"))

    async def ask() -> None:
        await model.complete(PROMPT)
        model.disconnect()
        await model.closed()

    for _ in range(2):
        asyncio.run(ask())
    assert server.calls == 2


FAILURES = {
    "rate limit": (rate_limit(7), RateLimitedError, 7),
    "rate limit without a time": (rate_limit(), RateLimitedError, None),
    "quota": (quota(), QuotaError, None),
    "payment": (Answer(status=402), QuotaError, None),
    "key": (Answer(status=401, code="invalid_api_key"), CredentialsError, None),
    "forbidden": (Answer(status=403), CredentialsError, None),
    "forbidden for the quota": (Answer(status=403, code="insufficient_quota"), QuotaError, None),
    "bad request": (Answer(status=400, message="retry after 5, rate limit"), InvalidWorkError, None),
    "no such model": (Answer(status=404), CredentialsError, None),
    "too long": (Answer(status=413), InvalidWorkError, None),
    "too long, by a code": (
        Answer(status=400, code="context_length_exceeded"),
        PromptTooLongError,
        None,
    ),
    "too long, by words": (
        Answer(status=400, message="prompt is too long: 9000 tokens > 8192 maximum"),
        PromptTooLongError,
        None,
    ),
    "an endless answer": (Answer(text="x" * 40_000), AnswerTooLongError, None),
    "unprocessable": (Answer(status=422), InvalidWorkError, None),
    "broken": (Answer(status=500), TransientError, None),
    "overloaded": (Answer(status=529, headers={"Retry-After": "3"}), ModelAwayError, 3),
    "words of a rate limit": (Answer(status=418, message="Request was throttled"), RateLimitedError, None),
    "other words": (Answer(status=418, message="a teapot"), WorkError, None),
    "rate limit in a good answer": (
        Answer(raw=b'{"error": {"message": "Too many requests"}}'),
        RateLimitedError,
        None,
    ),
    "quota in a good answer": (
        Answer(raw=b'{"error": {"message": "Quota exceeded, retry after 3 hours"}}'),
        QuotaError,
        None,
    ),
    "garbage": (garbage(), BadAnswerError, None),
    "another object": (Answer(raw=b"[1, 2]"), BadAnswerError, None),
    "no choices": (Answer(raw=b'{"choices": []}'), BadAnswerError, None),
    "an empty answer": (Answer(text="  "), BadAnswerError, None),
    "half an answer": (half(), AnswerTooLongError, None),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_each_failure_has_its_error(server: ScriptedModel, name: str) -> None:
    answer, kind, after = FAILURES[name]
    server.answers = lambda _: answer
    async with chat(server, credential="ours") as model:
        with pytest.raises(WorkError) as failed:
            await model.complete(PROMPT)
    assert type(failed.value) is kind
    assert (failed.value.retry_after, failed.value.credential) == (after, "ours")
    assert server.calls == 1


async def test_an_answer_that_cannot_be_used_says_what_it_cost(server: ScriptedModel) -> None:
    server.answers = lambda _: half()
    async with chat(server) as model:
        with pytest.raises(BadAnswerError, match="cut off after 2048 tokens") as failed:
            await model.complete(PROMPT)
    assert (failed.value.completion.input_tokens, failed.value.completion.output_tokens) == (10, 5)


async def test_an_answer_without_choices_says_what_it_cost(server: ScriptedModel) -> None:
    usage = {"prompt_tokens": 700, "completion_tokens": 90}
    server.script = [Answer(raw=json.dumps({"choices": [], "usage": usage}).encode())]
    async with chat(server) as model:
        with pytest.raises(BadAnswerError) as failed:
            await model.complete(PROMPT)
    assert (failed.value.completion.input_tokens, failed.value.completion.output_tokens) == (700, 90)


@pytest.mark.parametrize("count", [10**30, -1, True, 1.5, "7"])
async def test_a_count_of_tokens_that_cannot_be_is_not_believed(server: ScriptedModel, count: Any) -> None:
    choices = [{"message": {"content": "fine"}, "finish_reason": "stop"}]
    usage = {"prompt_tokens": count, "completion_tokens": 3}
    server.script = [Answer(raw=json.dumps({"choices": choices, "usage": usage}).encode())]
    async with chat(server) as model:
        answer = await model.complete(PROMPT)
    assert 0 < answer.input_tokens < 100
    assert 0 < answer.output_tokens < 100


async def test_a_connection_that_breaks_is_tried_three_times(server: ScriptedModel, capsys) -> None:
    server.script = [reset(), reset()]
    async with chat(server) as model:
        assert (await model.complete(PROMPT, idempotency_key="same")).text == "ok"
        assert server.keys == ["same"] * 3
        server.script = [reset()] * 3
        with pytest.raises(TransientError, match="gave no answer in 3 tries"):
            await model.complete(PROMPT)
    assert server.calls == 6
    assert capsys.readouterr().out == ""


async def test_a_time_out_is_tried_three_times(server: ScriptedModel) -> None:
    server.answers = lambda _: Answer(hangs=True)
    async with chat(server, timeout_s=0.2) as model:
        with pytest.raises(TransientError, match="timed out"):
            await model.complete(PROMPT)
    assert server.calls == 3


async def test_a_server_that_is_not_there() -> None:
    with scripted() as gone:
        pass
    async with chat(gone) as model:
        with pytest.raises(TransientError, match=r"127\.0\.0\.1.*llm\.url"):
            await model.complete(PROMPT)


# -- presets -----------------------------------------------------------------------------------------


def test_the_presets() -> None:
    made = {name: OpenAIChat(LlmSettings(preset=name)) for name in PRESETS if name != "custom"}
    assert {name: model.url.split("/")[2] for name, model in made.items()} == {
        "openai": "api.openai.com",
        "ollama": "127.0.0.1:11434",
        "anthropic": "api.anthropic.com",
    }
    assert all(model.model for model in made.values())
    assert OpenAIChat(LlmSettings(preset="openai", model="mine", url="http://x/v1")).model == "mine"


@pytest.mark.parametrize(
    ("preset", "given", "sent"),
    [
        ("openai", {}, "Bearer of-openai"),
        ("anthropic", {}, "Bearer of-anthropic"),
        ("anthropic", {"api_key": "mine"}, "Bearer mine"),
        ("ollama", {}, "Bearer none"),
        ("custom", {}, "Bearer none"),
    ],
)
async def test_the_key_of_a_preset(
    server: ScriptedModel, monkeypatch: pytest.MonkeyPatch, preset: str, given: dict, sent: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of-anthropic")
    async with chat(server, preset=preset, **given) as model:
        await model.complete(PROMPT)
    assert server.requests[0].authorization == sent


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    model = OpenAIChat(LlmSettings(preset="anthropic"))
    with pytest.raises(CredentialsError, match=r"set llm\.api_key, or the variable ANTHROPIC_API_KEY"):
        await model.complete(PROMPT)


async def test_a_provider_that_reads_no_schema_finds_it_in_the_prompt(server: ScriptedModel) -> None:
    async with chat(server, preset="anthropic", api_key="k") as model:
        await model.complete(PROMPT, schema=SCHEMA)
    first = server.requests[0].body["messages"][0]
    assert first["role"] == "system"
    assert '"required":["word"]' in first["content"]


async def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    model = OpenAIChat(LlmSettings(preset="ollama"))
    with pytest.raises(CredentialsError, match=r"pip install 'reverie\[llm\]'"):
        await model.complete(PROMPT)


async def test_without_a_preset_there_is_no_model() -> None:
    models = new_models(load_settings())
    assert not models.has_language_model
    with pytest.raises(ModelMissingError, match=r"set llm\.preset"):
        await models.complete(PROMPT)


def test_the_settings_choose_the_model() -> None:
    assert new_models(load_settings(llm={"preset": "ollama"})).has_language_model
    with pytest.raises(InvalidSettingError, match="preset = custom needs url and model"):
        load_settings(llm={"preset": "custom"})


def test_the_time_to_wait() -> None:
    now = datetime(2026, 5, 7, 12, tzinfo=UTC)
    cases = {
        "12": 12.0,
        "0.5": 0.5,
        "-3": 0.0,
        "nan": None,
        "soon": None,
        "1e9": 24 * 3600.0,
        "Thu, 07 May 2026 12:00:30 GMT": 30.0,
    }
    assert {text: retry_after({"retry-after": text}, now) for text in cases} == cases
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert retry_after({}) is None
