"""The gateway to the language model: budgets, costs, schemas and repairs, on two kinds of ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reverie.backends.memory.breaker_state import MemorySharedState
from reverie.errors import InvalidSelectionError
from reverie.failures import BudgetError, TransientError
from reverie.memory.sqlite.store import SqliteMemoryStore
from reverie.models.gateway import Gateway
from reverie.models.interface import (
    AnswerPart,
    AnswerTooLongError,
    BadAnswerError,
    ChatMessage,
    Completion,
    ModelMissingError,
    Models,
    Sampling,
)
from reverie.models.settings import LlmSettings
from reverie.models.tokens import tokens_in
from reverie.models.usage import Ledger, Spent, Usage, UsageQuery, VolatileLedger
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock

ANN, BOB = ("ann", "home"), ("bob", "home")
PROMPT = [ChatMessage("user", "hello")]
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
DAY = "2027-01-15"


class Model:
    """A language model that answers from a list, then `ok`; each answer costs 10 and 5 tokens."""

    def __init__(self) -> None:
        self.script: list[str | Exception] = []
        self.prompts: list[list[ChatMessage]] = []
        self.keys: list[str] = []
        self.held: asyncio.Event | None = None
        self.asked = asyncio.Semaphore(0)
        """Released at each call."""
        self.at_once = self.most_at_once = 0

    async def complete(self, prompt, *, schema=None, idempotency_key=None) -> Completion:
        self.prompts.append(list(prompt))
        self.keys.append(idempotency_key)
        self.asked.release()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.held is not None:
            await self.held.wait()
        self.at_once -= 1
        answer = self.script.pop(0) if self.script else "ok"
        if isinstance(answer, Exception):
            raise answer
        return Completion(text=answer, input_tokens=10, output_tokens=5, model="small")


@pytest.fixture(params=["sqlite", "volatile"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Ledger]:
    if request.param == "volatile":
        yield VolatileLedger()
        return
    store = SqliteMemoryStore(Database(str(tmp_path / "m.db"), "normal"), clock)
    await store.open()
    assert isinstance(store, Ledger)
    yield store
    await store.close()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def gateway(model: Model, ledger: Ledger, clock: ManualClock) -> AsyncIterator[Gateway]:
    settings = LlmSettings(model="small", prices={"small": {"input": 2, "output": 10}})
    opened = new_gateway(model, ledger, clock, settings)
    yield opened
    await opened.close()


def new_gateway(model: Model | None, ledger: Ledger, clock: ManualClock, settings: LlmSettings) -> Gateway:
    return Gateway(Models(language_model=model), ledger, MemorySharedState(clock), settings, clock)


async def ask(
    gateway: Gateway, *, tenant=ANN, key="ann/1", prompt="hello", schema=None, label="mem_read"
) -> Completion:
    return await gateway.complete(
        [ChatMessage("user", prompt)], schema=schema, tenant=tenant, label=label, key=key
    )


async def test_without_a_model_no_call_is_made(ledger: Ledger, clock: ManualClock) -> None:
    gateway = new_gateway(None, ledger, clock, LlmSettings())
    assert not gateway.has_model
    with pytest.raises(ModelMissingError):
        await ask(gateway)


# -- costs -------------------------------------------------------------------------------------------


async def test_the_cost_of_a_call_is_in_the_ledger_when_it_answers(gateway: Gateway, ledger: Ledger) -> None:
    assert gateway.has_model
    assert (await ask(gateway)).text == "ok"
    await ask(gateway, key="ann/2")
    await ask(gateway, tenant=BOB, key="bob/1")
    assert await ledger.spent_on(ANN, DAY) == (30, 140)
    assert await ledger.usage(UsageQuery(user_id="ann")) == [
        Usage(
            day=DAY, user_id="ann", mem_cube_id="home", label="mem_read",
            calls=2, input_tokens=20, output_tokens=10, micros=140,
        )
    ]  # fmt: skip


async def test_the_key_of_a_call(gateway: Gateway, model: Model) -> None:
    await ask(gateway, key="ännchen/1")
    await ask(gateway, key="ännchen/1")
    await ask(gateway, key="ännchen/2")
    await ask(gateway, key="ännchen/1", prompt="other")
    first, again, other, another = model.keys
    assert first == again
    assert len({first, other, another}) == 3
    assert first.isascii()


async def test_a_call_that_is_repeated_counts_once(gateway: Gateway, ledger: Ledger) -> None:
    await ask(gateway)
    await ask(gateway)
    assert await ledger.spent_on(ANN, DAY) == (15, 70)


async def test_a_bad_answer_is_paid_too(gateway: Gateway, model: Model, ledger: Ledger) -> None:
    half = BadAnswerError("half", Completion(text="x", input_tokens=7, output_tokens=3, model="small"))
    model.script = [half, BadAnswerError("garbage")]
    with pytest.raises(BadAnswerError, match="garbage"):
        await ask(gateway)
    assert await ledger.spent_on(ANN, DAY) == (10, 44)


# -- schemas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"word": "tea"}',
        '```json\n{"word": "tea"}\n```',
        '```\n{"word": "tea"}```',
        'Sure, here it is:\n```json\n{"word": "tea"}\n```\nAnything else?',
        '<think>\n{"word": "milk"} or tea?\n</think>\n\n{"word": "tea"}',
    ],
)
async def test_json_that_fits_the_schema(gateway: Gateway, model: Model, text: str) -> None:
    model.script = [text]
    assert (await ask(gateway, schema=SCHEMA)).text.strip() == '{"word": "tea"}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tea", "is not JSON"),
        ('{"word": 7}', 'does not fit the schema at $.word: type "string"'),
        ("[]", 'does not fit the schema at $: type "object"'),
    ],
)
async def test_a_bad_answer_is_repaired_once(
    gateway: Gateway, model: Model, ledger: Ledger, text: str, problem: str
) -> None:
    model.script = [text, '{"word": "tea"}']
    assert (await ask(gateway, schema=SCHEMA)).text == '{"word": "tea"}'
    question, answer, wish = model.prompts[1]
    assert (question.content, answer.content) == ("hello", text)
    assert problem in wish.content
    assert model.keys[0].removesuffix("-0") == model.keys[1].removesuffix("-1")
    assert await ledger.spent_on(ANN, DAY) == (30, 140)


OPEN = {"type": "object", "properties": {"word": {"type": "string"}, "size": {"type": "integer"}}}
CLOSED = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "given", "wanted"),
    [
        (OPEN, '{"word": "tea", "size": null}', {"word": "tea"}),
        (OPEN, '{"word": "tea", "more": 1}', {"word": "tea", "more": 1}),
        (CLOSED, '{"word": "tea", "more": null}', {"word": "tea"}),
        ({"type": "array", "items": CLOSED}, '[{"word": "tea", "more": 1}, {}]', [{"word": "tea"}, {}]),
    ],
)
async def test_what_was_not_asked_is_left_out_and_null_is_nothing(
    gateway: Gateway, model: Model, schema: dict[str, Any], given: str, wanted: Any
) -> None:
    model.script = [given]
    assert json.loads((await ask(gateway, schema=schema)).text) == wanted


async def test_an_answer_with_too_many_entries_is_not_repaired(
    gateway: Gateway, model: Model, ledger: Ledger
) -> None:
    entries = {"type": "array", "items": {"type": "integer"}, "maxItems": 2}
    schema = {"type": "object", "properties": {"entries": entries}}
    model.script = ['{"entries": [1, 2, 3]}']
    with pytest.raises(AnswerTooLongError, match="maxItems 2"):
        await ask(gateway, schema=schema)
    assert len(model.prompts) == 1
    assert await ledger.spent_on(ANN, DAY) == (15, 70)


async def test_a_repair_that_the_budget_refuses_is_a_bad_answer(
    model: Model, ledger: Ledger, clock: ManualClock
) -> None:
    """A message that waited for the next day would pay for the bad answer on each day."""
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=10))
    model.script = ["tea"]
    with pytest.raises(BadAnswerError, match="is not JSON"):
        await ask(gateway, schema=SCHEMA)
    assert len(model.prompts) == 1
    with pytest.raises(BudgetError):
        await ask(gateway, schema=SCHEMA)
    assert len(model.prompts) == 1


async def test_a_second_bad_answer_is_a_transient_failure(gateway: Gateway, model: Model) -> None:
    model.script = ["tea", "more tea"]
    with pytest.raises(TransientError, match="is not JSON"):
        await ask(gateway, schema=SCHEMA)
    assert len(model.prompts) == 2


async def test_a_bad_answer_that_would_not_fit_into_the_window_is_not_sent_back(
    ledger: Ledger, model: Model, clock: ManualClock
) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(window_tokens=1000, max_output_tokens=400))
    for prompt, answer, sent in (("short", "x" * 1500, True), ("p" * 400, "x" * 1500, False)):
        model.prompts.clear()
        model.script = [answer, '{"word": "tea"}']
        await ask(gateway, prompt=prompt, schema=SCHEMA)
        assert (answer in [one.content for one in model.prompts[1]]) is sent
        assert sum(len(one.content) for one in model.prompts[1]) / 4 + 400 <= 1000
    await gateway.close()


# -- budgets -----------------------------------------------------------------------------------------


async def test_a_spent_budget_of_tokens(ledger: Ledger, model: Model, clock: ManualClock) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=30))
    for number in range(2):
        await ask(gateway, key=f"ann/{number}")
    with pytest.raises(BudgetError) as failed:
        await ask(gateway, key="ann/3")
    assert str(failed.value) == (
        f"the tokens budget of the tenant ann/home for {DAY} (UTC) is spent: 30 of 30 tokens "
        "(llm.tokens_per_day); its model work goes on with the next day"
    )
    left_s = (24 * 3600_000 - clock.now() % (24 * 3600_000)) / 1000
    assert left_s + 1 <= failed.value.retry_after <= left_s + 10
    (spent,) = gateway.budgets_spent()
    assert (spent.user_id, spent.mem_cube_id, spent.day, spent.what) == ("ann", "home", DAY, "tokens")
    assert (await ask(gateway, tenant=BOB, key="bob/1")).text == "ok"
    clock.advance(failed.value.retry_after)
    assert gateway.budgets_spent() == []
    assert (await ask(gateway, key="ann/3")).text == "ok"
    await gateway.close()


async def test_a_spent_budget_of_money(ledger: Ledger, model: Model, clock: ManualClock) -> None:
    prices = {"small": {"input": 2, "output": 10}}  # a call costs 70 micros
    settings = LlmSettings(model="small", money_per_day=0.0001, tokens_per_day=None, prices=prices)
    gateway = new_gateway(model, ledger, clock, settings)
    for number in range(2):
        await ask(gateway, key=f"ann/{number}")
    with pytest.raises(BudgetError, match=r"is spent: 0\.00014 of 0\.0001 \(llm\.money_per_day\)"):
        await ask(gateway, key="ann/3")
    await gateway.close()


def test_a_budget_of_money_needs_the_price_of_the_model() -> None:
    with pytest.raises(ValueError, match=r"no entry for the model 'gpt-4\.1-mini'"):
        LlmSettings(preset="openai", money_per_day=1, prices={"gpt-4o": {"input": 1, "output": 2}})
    LlmSettings(preset="openai", model="gpt-4o", money_per_day=1, prices={"gpt-4o": {"input": 1}})


async def test_calls_under_way_reserve_money_by_the_price_of_the_presets_model(
    ledger: Ledger, model: Model, clock: ManualClock
) -> None:
    prices = {"gpt-4.1-mini": {"input": 0, "output": 10}}
    settings = LlmSettings(
        preset="openai", money_per_day=0.001, tokens_per_day=None, prices=prices, max_output_tokens=100
    )
    gateway = new_gateway(model, ledger, clock, settings)
    model.held = asyncio.Event()
    calls = [asyncio.create_task(ask(gateway, key=f"ann/{number}")) for number in range(2)]
    await model.asked.acquire()
    model.held.set()
    await asyncio.gather(*calls)
    assert (await ledger.spent_on(ANN, DAY))[1] == 100
    assert model.most_at_once == 1  # the first one might have spent all
    await gateway.close()


async def test_a_clock_that_steps_back_does_not_hide_what_other_processes_spend(
    ledger: Ledger, model: Model, clock: ManualClock
) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=100))
    await ask(gateway, key="ann/1")
    await ledger.write_spent([spent_of("theirs", tokens=90)])
    clock.advance(-60)
    with pytest.raises(BudgetError, match="106 of 100"):
        await ask(gateway, key="ann/2")
    await gateway.close()


async def test_what_other_processes_spend_counts_soon(
    ledger: Ledger, model: Model, clock: ManualClock
) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=100))
    await ask(gateway, key="ann/1")
    spent = Spent(
        key="theirs", day=DAY, user_id="ann", mem_cube_id="home", label="x", model="m",
        input_tokens=90, output_tokens=0,
    )  # fmt: skip
    await ledger.write_spent([spent])
    clock.advance(6)
    with pytest.raises(BudgetError, match="105 of 100"):
        await ask(gateway, key="ann/2")
    await gateway.close()


async def test_calls_under_way_are_reserved_and_others_wait_for_them(
    ledger: Ledger, model: Model, clock: ManualClock
) -> None:
    """Of ten calls that start together, only those begin that the budget can pay for."""
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=40, max_output_tokens=19))
    model.held = asyncio.Event()
    calls = [asyncio.create_task(ask(gateway, key=f"ann/{number}")) for number in range(10)]
    await model.asked.acquire()
    await model.asked.acquire()
    assert len(model.prompts) == 2
    model.held.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results].count(Completion) == 3
    assert [type(one) for one in results].count(BudgetError) == 7
    assert (await ledger.spent_on(ANN, DAY))[0] == 45
    await gateway.close()


async def test_no_budget_at_all(ledger: Ledger, model: Model, clock: ManualClock) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(tokens_per_day=0))
    with pytest.raises(BudgetError, match="0 of 0 tokens"):
        await ask(gateway)
    assert model.prompts == []


# -- the ledger --------------------------------------------------------------------------------------


class Talker(Model):
    """A model that answers part by part, and counts whose answers were ended early."""

    def __init__(self) -> None:
        super().__init__()
        self.samplings: list[Sampling] = []
        self.closed = 0

    async def converse(self, prompt, sampling, *, idempotency_key=None):
        self.samplings.append(sampling)
        try:
            yield AnswerPart(reasoning="hm")
            yield AnswerPart(text="four letters")
            yield Completion(text="four letters", input_tokens=10, output_tokens=5, model="small")
        except GeneratorExit:
            self.closed += 1
            raise


async def test_an_answer_part_by_part_is_paid_even_if_nobody_hears_its_end(
    ledger: Ledger, clock: ManualClock
) -> None:
    model = Talker()
    settings = LlmSettings(model="small", max_output_tokens=100, tokens_per_day=25)
    gateway = new_gateway(model, ledger, clock, settings)

    def talk(**wishes):
        return gateway.converse(PROMPT, Sampling(**wishes), tenant=ANN, label="chat", key=str(wishes))

    parts = [part async for part in talk(max_tokens=1000, top_p=0.5)]
    assert parts == [AnswerPart(reasoning="hm"), AnswerPart(text="four letters")]
    assert await ledger.spent_on(ANN, DAY) == (15, 0)
    early = talk(max_tokens=50)
    assert await anext(early) == AnswerPart(reasoning="hm")
    await early.aclose()
    assert model.closed == 1
    given, answered = await ledger.spent_on(ANN, DAY), tokens_in("hello") + tokens_in("hm")
    assert given == (15 + answered, 0)
    assert [sampling.max_tokens for sampling in model.samplings] == [100, 50]
    while (await ledger.spent_on(ANN, DAY))[0] < 25:
        assert [part async for part in talk(temperature=len(model.samplings))]
    with pytest.raises(BudgetError):
        await anext(talk())
    await gateway.close()


def spent_of(key: str, day: str = DAY, user_id: str = "ann", label: str = "x", tokens: int = 1) -> Spent:
    return Spent(
        key=key, day=day, user_id=user_id, mem_cube_id="home", label=label, model="m",
        input_tokens=tokens, output_tokens=1, micros=3,
    )  # fmt: skip


async def test_sums_by_day_tenant_and_label(ledger: Ledger) -> None:
    await ledger.write_spent([])
    await ledger.write_spent([spent_of("1"), spent_of("1"), spent_of("2"), spent_of("3", label="y")])
    await ledger.write_spent([spent_of("1"), spent_of("4", day="2027-01-16"), spent_of("5", user_id="bob")])
    assert await ledger.spent_on(ANN, DAY) == (6, 9)
    assert await ledger.spent_on(("nobody", "home"), DAY) == (0, 0)
    everything = await ledger.usage(UsageQuery())
    assert [(one.day, one.user_id, one.label, one.calls, one.tokens) for one in everything] == [
        ("2027-01-16", "ann", "x", 1, 2),
        (DAY, "ann", "x", 2, 4),
        (DAY, "ann", "y", 1, 2),
        (DAY, "bob", "x", 1, 2),
    ]
    assert len(await ledger.usage(UsageQuery(limit=1))) == 1
    assert [one.day for one in await ledger.usage(UsageQuery(since="2027-01-16"))] == ["2027-01-16"]
    assert len(await ledger.usage(UsageQuery(until=DAY, user_id="ann", mem_cube_id="home"))) == 2
    assert await ledger.usage(UsageQuery(mem_cube_id="work")) == []


@pytest.mark.parametrize("user_id", [None, "ann"])
async def test_pages_of_sums_have_each_sum_once(ledger: Ledger, user_id: str | None) -> None:
    names = [(day, user, label) for day in (DAY, "2027-01-16") for user in ("ann", "b/ö") for label in "xy"]
    await ledger.write_spent(
        [spent_of(str(number), day, user, label) for number, (day, user, label) in enumerate(names)]
    )
    everything = await ledger.usage(UsageQuery(user_id=user_id))
    paged: list[Usage] = []
    while page := await ledger.usage(
        UsageQuery(user_id=user_id, after=paged[-1].place if paged else None, limit=1)
    ):
        paged += page
    assert paged == everything
    with pytest.raises(InvalidSelectionError, match="the `next` of the page before"):
        await ledger.usage(UsageQuery(after="5"))


async def test_keys_are_forgotten_after_two_days_and_sums_are_kept(
    tmp_path: Path, clock: ManualClock
) -> None:
    database = Database(str(tmp_path / "m.db"), "normal")
    store = SqliteMemoryStore(database, clock)
    await store.open()
    for day in (13, 14, 15, 16):
        await store.write_spent([spent_of(str(day), day=f"2027-01-{day}")])
    keys = await database.read(lambda connection: connection.execute("SELECT key FROM llm_calls").fetchall())
    assert keys == [("14",), ("15",), ("16",)]
    assert len(await store.usage(UsageQuery())) == 4
    await store.close()


# -- the budget of upkeep --------------------------------------------------------------------------------


async def test_upkeep_has_a_share_of_the_budget(model: Model, ledger: Ledger, clock: ManualClock) -> None:
    settings = LlmSettings(model="small", tokens_per_day=60, upkeep_share=0.5)
    gateway = new_gateway(model, ledger, clock, settings)
    await ask(gateway, key="1", label="mem_organize")
    await ask(gateway, key="2", label="memory_compression")
    for again in (gateway, new_gateway(model, ledger, clock, settings)):
        with pytest.raises(BudgetError, match=r"upkeep .* 30 of 30 tokens .*llm.upkeep_share"):
            await ask(again, key="3", label="mem_organize")
        assert again.budgets_spent() == []
    assert await ledger.spent_on(ANN, DAY, ("mem_organize",)) == (15, 0)
    await ask(gateway, key="4", tenant=BOB, label="mem_organize")
    await ask(gateway, key="5")
    await ask(gateway, key="6")
    with pytest.raises(BudgetError, match="60 of 60 tokens"):
        await ask(gateway, key="7")
    assert len(gateway.budgets_spent()) == 1
    clock.advance(24 * 3600)
    await ask(gateway, key="8", label="mem_organize")


async def test_other_work_may_spend_what_upkeep_would_have(
    model: Model, ledger: Ledger, clock: ManualClock
) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(model="small", tokens_per_day=15))
    await ask(gateway, key="1")
    with pytest.raises(BudgetError, match="15 of 15 tokens"):
        await ask(gateway, key="2", label="mem_organize")


async def test_without_a_limit_upkeep_has_none(model: Model, ledger: Ledger, clock: ManualClock) -> None:
    gateway = new_gateway(model, ledger, clock, LlmSettings(model="small", tokens_per_day=None))
    for number in range(3):
        await ask(gateway, key=str(number), label="mem_organize")
    none = new_gateway(model, ledger, clock, LlmSettings(model="small", upkeep_share=0))
    with pytest.raises(BudgetError, match="0 tokens"):
        await ask(none, key="4", label="mem_organize")
