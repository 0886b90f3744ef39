"""What stands around a run: middleware of one's own, and what each class of failure does."""

from __future__ import annotations

import logging
import time

import pytest

from reverie import (
    AsyncScheduler,
    BudgetError,
    Bury,
    Done,
    InvalidWorkError,
    Message,
    RateLimitedError,
    Retry,
    Scheduler,
    Snooze,
    TransientError,
)
from reverie.backends.moves import Status
from reverie.testing import ManualClock, drain
from support.schedulers import status_of

# -- middleware --------------------------------------------------------------------------------------


def test_middleware_stands_around_every_run_the_first_outermost(scheduler: Scheduler) -> None:
    seen = []

    @scheduler.middleware
    async def outer(batch, proceed):
        seen.append(f"outer {batch.label} {[message.content for message in batch.messages]}")
        outcomes = await proceed(batch)
        seen.append(f"outer {outcomes}")
        return outcomes

    @scheduler.middleware
    async def inner(batch, proceed):
        seen.append("inner")
        return await proceed(batch)

    scheduler.handler("work")(lambda message: seen.append("run"))
    scheduler.submit("work", user_id="ann", content="a")
    drain(scheduler)
    assert seen == ["outer work ['a']", "inner", "run", f"outer {[Done()]}"]


def test_middleware_may_answer_without_running_or_change_an_answer(scheduler: Scheduler) -> None:
    runs = []

    @scheduler.middleware
    async def gate(batch, proceed):
        if batch.messages[0].user_id == "bob":
            return [Bury("not bob") for _ in batch.messages]
        return [Snooze(after=5, reason="changed") for _ in await proceed(batch)]

    scheduler.handler("work")(lambda message: runs.append(message.user_id))
    for user in ("ann", "bob"):
        scheduler.submit("work", user_id=user)
    drain(scheduler)
    assert runs == ["ann"]
    assert (status_of(scheduler).status, status_of(scheduler).error) == (Status.WAITING, "changed")
    assert (status_of(scheduler, "bob").status, status_of(scheduler, "bob").error) == (
        Status.FAILED,
        "not bob",
    )


async def raises(batch, proceed):
    raise ZeroDivisionError("in the middleware")


async def transient(batch, proceed):
    raise TransientError


async def too_few(batch, proceed):
    return []


async def nothing(batch, proceed):
    return None


async def garbage(batch, proceed):
    return ["done"]


def not_async(batch, proceed):
    return [Done()]


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (raises, "bug: Traceback"),
        (transient, "transient: Traceback"),
        (too_few, "0 outcomes for 1 messages"),
        (nothing, "bug: Traceback"),
        (garbage, "returned str"),
        (not_async, "bug: Traceback"),
    ],
)
def test_middleware_that_fails_is_a_failed_run(scheduler: Scheduler, middleware, words: str) -> None:
    scheduler.middleware(middleware)
    scheduler.handler("work", max_attempts=1)(lambda message: None)
    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    item = status_of(scheduler)
    assert item.status is Status.FAILED
    assert words in item.error


async def test_middleware_can_be_added_while_a_worker_runs_and_stays_after_a_stop(clock: ManualClock) -> None:
    seen = []
    scheduler = AsyncScheduler("memory://")
    scheduler.handler("work")(lambda message: None)
    for _ in range(2):
        async with scheduler:
            if not seen:

                @scheduler.middleware
                async def watch(batch, proceed):
                    seen.append(batch.label)
                    return await proceed(batch)

            receipt = await scheduler.submit("work", user_id="ann")
            await scheduler.wait(receipt.item_id, user_id="ann")
    assert seen == ["work", "work"]


# -- what each class does ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "prefix", "at_least", "at_most"),
    [
        (TransientError("away"), "transient", 0, 1),
        (TransientError("away", retry_after=50), "transient", 50, 51),
        (ZeroDivisionError("oops"), "bug", 0, 1),
    ],
)
def test_a_retry_waits_for_the_backoff_and_at_least_the_retry_after(
    scheduler: Scheduler, clock: ManualClock, error, prefix: str, at_least: float, at_most: float
) -> None:
    runs = []

    @scheduler.handler("work")
    def work(message: Message) -> None:
        runs.append(message.attempts)
        if not message.attempts:
            raise error

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    item = status_of(scheduler)
    assert (item.status, item.attempts) == (Status.WAITING, 1)
    assert item.error.startswith(f"{prefix}: Traceback")
    if at_least:
        clock.advance(at_least - 0.001)
        drain(scheduler)
        assert runs == [0]
        clock.advance(0.001)
    clock.advance(at_most - at_least)
    drain(scheduler)
    assert runs == [0, 1]
    assert status_of(scheduler).status is Status.COMPLETED


@pytest.mark.parametrize(("retry_after", "at_least"), [(None, 2), (0.5, 2), (100, 100)])
def test_a_rate_limit_hands_the_message_back_without_an_attempt(
    scheduler: Scheduler, clock: ManualClock, retry_after: float | None, at_least: float
) -> None:
    runs = []

    @scheduler.handler("work")
    def work(message: Message) -> None:
        runs.append(message.attempts)
        if len(runs) == 1:
            raise RateLimitedError("slowly", retry_after=retry_after)

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    item = status_of(scheduler)
    assert (item.status, item.attempts) == (Status.WAITING, 0)
    assert item.error.startswith("rate_limited: Traceback")
    clock.advance(at_least - 0.001)
    drain(scheduler)
    assert runs == [0]
    clock.advance(1.001)
    drain(scheduler)
    assert runs == [0, 0]
    assert status_of(scheduler).status is Status.COMPLETED


def test_invalid_work_is_buried_at_once(scheduler: Scheduler) -> None:
    @scheduler.handler("work")
    def work(message: Message) -> None:
        raise InvalidWorkError("no such document")

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    item = status_of(scheduler)
    assert (item.status, item.attempts) == (Status.FAILED, 1)
    assert item.error.startswith("invalid: ")
    assert "no such document" in item.error


def test_a_budget_snoozes_only_its_lane(scheduler: Scheduler, clock: ManualClock) -> None:
    spent = {"ann"}
    done = []

    @scheduler.handler("work", batch=True)
    def work(messages: list[Message]) -> None:
        if any(message.user_id in spent for message in messages):
            raise BudgetError(retry_after=600)
        done.extend(message.content for message in messages)

    for user in ("ann", "bob"):
        for number in range(3):
            scheduler.submit("work", user_id=user, content=f"{user}{number}")
    drain(scheduler)
    assert done == ["bob0", "bob1", "bob2"]
    assert {(item.status, item.attempts) for item in scheduler.status("ann")} == {(Status.WAITING, 0)}
    assert scheduler.status("ann")[0].error.startswith("budget: ")
    spent.clear()
    clock.advance(599)
    drain(scheduler)
    assert len(done) == 3
    clock.advance(1)
    drain(scheduler)
    assert done[3:] == ["ann0", "ann1", "ann2"]


def test_a_bug_raises_an_alert_but_not_a_flood(
    scheduler: Scheduler, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    @scheduler.handler("work", max_attempts=1)
    def work(message: Message):
        if message.content == "answer":
            return 7
        raise {"key": KeyError, "value": ValueError}[message.content]

    def alerts() -> list[str]:
        lines = [
            record.getMessage().split(" error=")[0]
            for record in caplog.records
            if record.getMessage().startswith("handler.bug")
        ]
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        caplog.clear()
        return sorted(lines)

    for content in ("key", "key", "value", "answer") * 5:
        scheduler.submit("work", user_id="ann", content=content)
    drain(scheduler)
    assert alerts() == [
        "handler.bug label='work' cause='KeyError' unlogged=0",
        "handler.bug label='work' cause='ValueError' unlogged=0",
        "handler.bug label='work' cause='answer' unlogged=0",
    ]
    clock.advance(60)
    scheduler.submit("work", user_id="ann", content="key")
    drain(scheduler)
    assert alerts() == ["handler.bug label='work' cause='KeyError' unlogged=9"]


def test_an_outcome_with_a_delay_that_is_no_number_fails_alone(scheduler: Scheduler) -> None:
    @scheduler.handler("work", batch=True)
    def work(messages):
        return {m.key: Retry(after="soon") if m.user_id == "ann" else Done() for m in messages}

    for user in ("ann", "bob"):
        scheduler.submit("work", user_id=user)
    drain(scheduler)
    assert (status_of(scheduler).status, status_of(scheduler).attempts) == (Status.WAITING, 1)
    assert "cannot be kept" in status_of(scheduler).error
    assert status_of(scheduler, "bob").status is Status.COMPLETED


def test_the_time_of_a_call_is_without_the_wait_for_its_turn(scheduler: Scheduler) -> None:
    """Many batches share the event loop: the wait would make quick handlers look slow."""
    calls: dict[str, list[float]] = {}

    @scheduler.middleware
    async def collect(batch, proceed):
        outcomes = await proceed(batch)
        calls[batch.label] = batch.calls
        return outcomes

    @scheduler.handler("blocking")
    async def blocking(message: Message) -> None:
        time.sleep(0.3)  # noqa: ASYNC251  it keeps the event loop from others

    @scheduler.handler("quick")
    async def quick(message: Message) -> None:
        pass

    for label in ("blocking", "quick"):
        scheduler.submit(label, user_id="ann")
    drain(scheduler)
    assert [len(taken) for taken in calls.values()] == [1, 1]
    assert sum(calls["quick"]) < 0.3 <= sum(calls["blocking"])
