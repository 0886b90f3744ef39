"""A handler asks a language model that fails in each way: the message meets what `docs/failures.md` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import stamina

from reverie import Done, Message, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.models.usage import UsageQuery
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support.scripted_model import Answer, ScriptedModel, garbage, quota, rate_limit, reset, scripted

SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
GOOD = Answer(text='{"word": "tea"}')


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as opened, stamina.set_testing(True, attempts=3):
        opened.answers = lambda _: GOOD
        yield opened


@pytest.fixture
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, model: ScriptedModel):
    given = getattr(request, "param", {})
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'q.db'}", "durability": "normal"},
        memory={"embedding": "none"},
        llm={"preset": "custom", "url": model.url, "model": "small", "timeout_s": 20, **given},
    )
    opened = Scheduler(settings=settings, clock=clock)

    @opened.handler("read", credential="llm")
    async def read(message: Message, ctx) -> Done:
        answer = await ctx.models.complete(message.content, schema=SCHEMA)
        word = json.loads(answer.text)["word"]
        return Done(effects=[Remember(memory_id=message.item_id, text=f"{message.content} {word}")])

    yield opened
    opened.close()


def submit(scheduler: Scheduler, user_id: str, item_id: str = "1", label: str = "read") -> None:
    scheduler.submit(label, user_id=user_id, item_id=item_id, content=f"{user_id} {item_id}")


def standing(scheduler: Scheduler, user_id: str = "ann", item_id: str = "1"):
    item = scheduler.status(user_id, item_id)[0]
    return item.status, item.attempts, (item.error or "").split(":")[0]


def test_a_model_that_answers(scheduler: Scheduler, model: ScriptedModel) -> None:
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.COMPLETED, 1, "")
    assert scheduler.memory.get("1", user_id="ann").text == "ann 1 tea"
    (usage,) = scheduler.run(scheduler.runtime.store.usage(UsageQuery()))
    assert (usage.user_id, usage.label, usage.calls, usage.tokens) == ("ann", "read", 1, 15)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(status=401, code="invalid_api_key"), "credentials"),
        (Answer(status=404, message="no such model"), "credentials"),
        (quota(), "quota"),
    ],
)
def test_a_refused_credential_pauses_the_label_and_resumes_unaided(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel, answer: Answer, kind: str
) -> None:
    scheduler.handler("other")(lambda message: None)
    users = [f"user{number}" for number in range(5)]
    model.answers = lambda _: answer
    for user_id in users:
        submit(scheduler, user_id)
    submit(scheduler, "ann", label="other")
    drain(scheduler)
    assert standing(scheduler)[0] is Status.COMPLETED  # other labels run on
    assert {standing(scheduler, user_id)[:2] for user_id in users} == {(Status.WAITING, 0)}
    assert kind in {standing(scheduler, user_id)[2] for user_id in users}
    assert f"{answer.status} for the model small" in scheduler.status(users[0])[0].error
    model.taken()
    for pause in (30, 60, 120):
        clock.advance(pause - 1)
        drain(scheduler)
        assert model.taken() == []
        clock.advance(1)
        drain(scheduler)
        assert len(model.taken()) == 1  # the probe
    model.answers = lambda _: GOOD
    clock.advance(240)
    for _ in range(3):
        drain(scheduler)
        clock.advance(1)
    assert {standing(scheduler, user_id)[:2] for user_id in users} == {(Status.COMPLETED, 1)}
    assert len(model.taken()) == 5


def test_a_rate_limit_hands_the_message_back_without_an_attempt(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel
) -> None:
    model.script = [rate_limit(20)]
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.WAITING, 0, "rate_limited")
    submit(scheduler, "bob")  # who is not let through to the provider either
    drain(scheduler)
    assert standing(scheduler, "bob") == (Status.WAITING, 0, "rate_limited")
    clock.advance(19.999)
    drain(scheduler)
    assert model.calls == 1
    clock.advance(1.001)
    drain(scheduler)
    assert {standing(scheduler, user_id)[:2] for user_id in ("ann", "bob")} == {(Status.COMPLETED, 1)}
    assert model.calls == 3


def test_a_rate_limit_without_a_time_waits_two_seconds(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel
) -> None:
    model.script = [rate_limit()]
    submit(scheduler, "ann")
    drain(scheduler)
    clock.advance(1.999)
    drain(scheduler)
    assert (model.calls, standing(scheduler)[1]) == (1, 0)
    clock.advance(1.001)
    drain(scheduler)
    assert standing(scheduler)[:2] == (Status.COMPLETED, 1)


@pytest.mark.parametrize(
    "bad", [garbage(), Answer(text="no JSON"), Answer(text='{"word": 7}'), Answer(text="")]
)
def test_a_bad_answer_is_repaired_and_a_second_one_is_a_transient_failure(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel, bad: Answer
) -> None:
    model.script = [bad]
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler)[:2] == (Status.COMPLETED, 1)
    assert model.calls == 2
    model.script = [bad, bad]
    submit(scheduler, "bob")
    drain(scheduler)
    assert standing(scheduler, "bob") == (Status.WAITING, 1, "transient")
    clock.advance(2)
    drain(scheduler)
    assert standing(scheduler, "bob")[:2] == (Status.COMPLETED, 2)


def test_a_broken_connection_is_tried_three_times_in_one_call(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel
) -> None:
    model.script = [reset(), reset()]
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.COMPLETED, 1, "")
    assert model.calls == 3
    model.script = [reset(), reset(), reset()]
    submit(scheduler, "bob")
    drain(scheduler)
    assert standing(scheduler, "bob") == (Status.WAITING, 1, "transient")
    assert model.calls == 6


@pytest.mark.parametrize("scheduler", [{"timeout_s": 0.2}], indirect=True)
def test_a_time_out_is_tried_three_times_in_one_call(scheduler: Scheduler, model: ScriptedModel) -> None:
    model.answers = lambda _: Answer(hangs=True)
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.WAITING, 1, "transient")
    assert model.calls == 3


@pytest.mark.parametrize("status", [400, 413, 422])
def test_work_that_the_model_refuses_is_buried_at_once(
    scheduler: Scheduler, model: ScriptedModel, status: int
) -> None:
    model.script = [Answer(status=status)]
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.FAILED, 1, "invalid")


def test_an_outage_uses_up_the_attempts_of_few_messages(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel
) -> None:
    """Each message is tried when the outage begins; after that only probes are, and the others wait."""
    users = [f"user{number}" for number in range(20)]
    model.answers = lambda _: Answer(status=503)
    for user_id in users:
        submit(scheduler, user_id)
    for _ in range(60):
        drain(scheduler)
        clock.advance(5)
    assert model.calls < 30
    model.answers = lambda _: GOOD
    for _ in range(60):
        drain(scheduler)
        clock.advance(5)
    ends = [standing(scheduler, user_id)[0] for user_id in users]
    assert ends.count(Status.COMPLETED) >= 16
    assert set(ends) <= {Status.COMPLETED, Status.FAILED}


def test_a_provider_that_breaks(scheduler: Scheduler, clock: ManualClock, model: ScriptedModel) -> None:
    model.script = [Answer(status=503)]
    submit(scheduler, "ann")
    drain(scheduler)
    assert standing(scheduler) == (Status.WAITING, 1, "transient")
    clock.advance(1)
    drain(scheduler)
    assert standing(scheduler)[0] is Status.COMPLETED


@pytest.mark.parametrize("scheduler", [{"tokens_per_day": 30}], indirect=True)
@pytest.mark.parametrize("cpu", [False, True])
def test_a_budget_that_runs_out_in_a_batch_holds_up_only_its_tenant(
    scheduler: Scheduler, clock: ManualClock, model: ScriptedModel, cpu: bool
) -> None:
    """Ann has spent her budget after two of her three messages; bob's go on."""
    scheduler.handler("batch", batch=10, cpu=cpu)("support.context_handlers:read_batch")
    for number in range(3):
        submit(scheduler, "ann", str(number), label="batch")
    for number in range(2):
        submit(scheduler, "bob", str(number), label="batch")
    drain(scheduler)
    assert [standing(scheduler, "ann", str(number))[0] for number in range(2)] == [Status.COMPLETED] * 2
    assert standing(scheduler, "ann", "2") == (Status.WAITING, 0, "budget")
    error = scheduler.status("ann", "2")[0].error
    assert "the tokens budget of the tenant ann/ann for 2027-01-15 (UTC) is spent: 30 of 30 tokens" in error
    assert "llm.tokens_per_day" in error
    assert [standing(scheduler, "bob", str(number))[0] for number in range(2)] == [Status.COMPLETED] * 2
    (spent,) = scheduler.runtime.gateway.budgets_spent()
    assert (spent.user_id, spent.what) == ("ann", "tokens")
    clock.advance(24 * 3600)
    drain(scheduler)
    assert standing(scheduler, "ann", "2")[0] is Status.COMPLETED


def test_a_memo_is_not_paid_again(scheduler: Scheduler, clock: ManualClock, model: ScriptedModel) -> None:
    @scheduler.handler("digest")
    def digest(message: Message, ctx) -> None:
        assert ctx.models.has_language_model()
        text = ctx.memo("ask", lambda: ctx.models.complete("digest this").text)
        if not message.attempts:
            raise ConnectionError("the step after the call has failed")
        assert text == GOOD.text

    submit(scheduler, "ann", label="digest")
    drain(scheduler)
    clock.advance(1)
    drain(scheduler)
    assert standing(scheduler)[:2] == (Status.COMPLETED, 2)
    assert model.calls == 1


def test_without_a_model_a_handler_can_ask_first(tmp_path: Path, clock: ManualClock) -> None:
    scheduler = Scheduler("memory://", clock=clock)
    seen = []

    @scheduler.handler("ask")
    async def ask(message: Message, ctx) -> None:
        seen.append(await ctx.models.has_language_model())

    scheduler.submit("ask", user_id="ann")
    drain(scheduler)
    scheduler.close()
    assert seen == [False]


def test_a_batch_of_several_messages_names_one(scheduler: Scheduler, model: ScriptedModel) -> None:
    @scheduler.handler("batch", batch=10)
    def batch(messages: list[Message], ctx) -> None:
        ctx.models.complete("who pays?")

    for number in range(2):
        submit(scheduler, "ann", str(number), label="batch")
    scheduler.handler("single")(lambda message: None)
    drain(scheduler)
    assert model.calls == 2  # the batch has failed, and its messages have run singly
    assert standing(scheduler, "ann", "1")[0] is Status.COMPLETED
