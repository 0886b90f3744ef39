"""The breaker: a label is paused for a credential that is refused, tried, and resumed by itself."""

from __future__ import annotations

from collections import Counter

import pytest

from reverie import (
    AsyncScheduler,
    CredentialsError,
    InvalidWorkError,
    Message,
    QuotaError,
    RateLimitedError,
    Scheduler,
    TransientError,
)
from reverie.backends.moves import Status
from reverie.errors import BackendUnavailableError, InvalidSettingError
from reverie.message import Key
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support.schedulers import new_scheduler, status_of
from support.servers import valkey


class SharedCalls:
    """What all workers share, and how often it is asked."""

    def __init__(self, scheduler: Scheduler) -> None:
        breaker = scheduler.runtime.worker._breaker
        self._inner, breaker._shared = breaker._shared, self
        self.count: Counter[str] = Counter()

    async def acquire(self, *arguments):
        self.count["acquire"] += 1
        return await self._inner.acquire(*arguments)

    async def report(self, *arguments):
        self.count["report"] += 1
        return await self._inner.report(*arguments)


class Provider:
    """A provider that can be told to refuse, and counts who called."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.error: type[Exception] = QuotaError
        self.calls: list[str] = []

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.refused or "*" in self.refused:
            raise self.error("refused")

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.mark.parametrize("error", [QuotaError, CredentialsError])
def test_a_refused_credential_pauses_its_label_until_a_probe_gets_through(
    scheduler: Scheduler, clock: ManualClock, error: type[Exception]
) -> None:
    provider = Provider("*")
    provider.error = error
    scheduler.handler("work", concurrency=1)(lambda message: provider.call(message.user_id))
    scheduler.handler("other")(lambda message: provider.calls.append("other"))
    shared = SharedCalls(scheduler)
    for number in range(200):
        scheduler.submit("work", user_id=f"user{number}")
    drain(scheduler)
    assert len(provider.taken()) == 1
    waits = []
    for pause in (30, 60, 120, 240):
        scheduler.submit("other", user_id="ann")
        clock.advance(pause - 0.001)
        drain(scheduler)
        waits.append(provider.taken())
        clock.advance(0.001)
        drain(scheduler)
        assert len(provider.taken()) == 1  # the probe, and nobody else
    assert waits == [["other"]] * 4
    items = [status_of(scheduler, f"user{number}") for number in range(200)]
    assert {(item.status, item.attempts) for item in items} == {(Status.WAITING, 0)}
    assert any(item.error and item.error.startswith(f"{error.kind}: ") for item in items)
    assert sum(item.started_at is not None for item in items) <= 5  # nobody else was even claimed
    assert shared.count == {"report": 5, "acquire": 4}

    provider.refused.clear()
    clock.advance(480)
    drain(scheduler)
    assert len(provider.taken()) == 200
    assert {(status_of(scheduler, f"user{n}").status) for n in range(200)} == {Status.COMPLETED}
    assert shared.count == {"report": 6, "acquire": 5}


def test_a_label_that_never_failed_asks_nobody(scheduler: Scheduler, clock: ManualClock) -> None:
    shared = SharedCalls(scheduler)

    @scheduler.handler("work", max_attempts=2)
    def work(message: Message) -> None:
        if message.content == "bad":
            raise TransientError

    for number in range(50):
        scheduler.submit("work", user_id=f"user{number % 5}", content="bad" if number == 7 else "good")
    drain(scheduler)
    clock.advance(10)
    drain(scheduler)
    assert shared.count == {}


@pytest.mark.parametrize(
    ("answer", "next_probe_s"),
    [(TransientError(), 30), (ValueError(), 0), (RateLimitedError(), None), (InvalidWorkError(), None)],
)
def test_what_a_probe_that_fails_otherwise_says(
    scheduler: Scheduler, clock: ManualClock, answer: Exception, next_probe_s: float | None
) -> None:
    answers: list[Exception | None] = [QuotaError(), answer]
    calls = []

    @scheduler.handler("work", concurrency=1, ordered=False)
    def work(message: Message) -> None:
        calls.append(message.content)
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error

    for number in range(10):
        scheduler.submit("work", user_id="ann", content=str(number))
    drain(scheduler)
    clock.advance(30)
    drain(scheduler)
    if next_probe_s:
        assert len(calls) == 2
        clock.advance(next_probe_s)
        drain(scheduler)
    assert len(calls) >= 11  # the first of all and the probe run again, unless one was buried
    clock.advance(300)
    drain(scheduler)
    ended = {item.status for item in scheduler.status("ann")}
    assert ended <= {Status.COMPLETED, Status.FAILED}


def test_a_function_of_the_message_tells_credentials_apart(scheduler: Scheduler, clock: ManualClock) -> None:
    provider = Provider("bad")
    scheduler.handler("work", credential=lambda message: message.content)(
        lambda message: provider.call(message.content)
    )
    for user in ("ann", "bob"):
        for content in ("good", "bad", "good", "good"):
            scheduler.submit("work", user_id=user, content=content)
    scheduler.submit("work", user_id="cem", content="good")
    drain(scheduler)
    assert provider.taken().count("good") == 3  # those behind a bad one in their lane wait
    for user in ("dan", "eve"):
        scheduler.submit("work", user_id=user, content="bad")
        scheduler.submit("work", user_id=user, content="good")
    scheduler.submit("work", user_id="fay", content="good")
    drain(scheduler)
    assert provider.taken() == ["good"]
    assert {(i.status, i.attempts) for i in scheduler.status("dan")} == {(Status.WAITING, 0)}
    assert scheduler.status("dan")[0].error == "paused: the credential 'bad' of the label 'work' is refused"
    provider.refused.clear()
    for _ in range(5):
        clock.advance(30)
        drain(scheduler)
    assert Counter(provider.taken()) == {"bad": 4, "good": 6}
    for user in ("ann", "bob", "cem", "dan", "eve", "fay"):
        assert {item.status for item in scheduler.status(user)} == {Status.COMPLETED}


def test_a_credential_function_that_fails_does_not_lose_the_message(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    provider = Provider("*")
    scheduler.handler("work", credential=lambda message: message.info["key"])(
        lambda message: provider.call(message.user_id)
    )
    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    provider.refused.clear()
    clock.advance(30)
    drain(scheduler)
    assert status_of(scheduler).status is Status.COMPLETED


def test_an_error_may_name_the_credential(scheduler: Scheduler, clock: ManualClock) -> None:
    refused = {"x"}
    runs = []

    @scheduler.handler("work", credential=lambda message: message.content)
    def work(message: Message) -> None:
        runs.append(message.content)
        if message.content == "y" and "x" in refused:  # it was given another one instead
            raise QuotaError(credential="x")

    scheduler.submit("work", user_id="ann", content="y")
    drain(scheduler)
    scheduler.submit("work", user_id="bob", content="x")
    scheduler.submit("work", user_id="cem", content="y")
    drain(scheduler)
    assert runs == ["y", "y"]
    refused.clear()
    clock.advance(31)
    drain(scheduler)
    assert sorted(runs[2:]) == ["x", "y", "y"]


def test_a_credential_that_only_the_error_knows_pauses_its_messages_one_by_one(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    runs = []

    @scheduler.handler("work")
    def work(message: Message) -> None:
        runs.append(message.content)
        if message.content == "x":
            raise QuotaError(credential="x")

    for user, content in (("ann", "x"), ("bob", "y")):
        scheduler.submit("work", user_id=user, content=content)
    drain(scheduler)
    assert sorted(runs) == ["x", "y"]
    for pause in (30, 60, 120):
        scheduler.submit("work", user_id="cem", content="y")
        clock.advance(pause - 1)
        drain(scheduler)
        assert runs[-1] == "y"
        clock.advance(1)
        drain(scheduler)
        assert runs[-1] == "x"
    assert (len(runs), status_of(scheduler).attempts) == (8, 0)


def test_another_credential_for_a_paused_label_begins_at_once(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    provider = Provider("old")
    scheduler.handler("work", credential="old", concurrency=1)(lambda message: provider.call("old"))
    for number in range(5):
        scheduler.submit("work", user_id=f"user{number}")
    drain(scheduler)
    assert provider.taken() == ["old"]
    scheduler.handler("work", credential="new")(lambda message: provider.call("new"))
    drain(scheduler)
    assert provider.taken() == ["new"] * 4
    clock.advance(30)
    drain(scheduler)
    assert provider.taken() == ["new"]


def test_two_labels_with_a_credential_each_have_their_own_pause(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    provider = Provider("one")
    scheduler.handler("one", credential="openai")(lambda message: provider.call("one"))
    scheduler.handler("two", credential="openai")(lambda message: provider.call("two"))
    for label in ("one", "two"):
        scheduler.submit(label, user_id="ann")
    drain(scheduler)
    assert sorted(provider.taken()) == ["one", "two"]
    assert {item.task_type: item.status for item in scheduler.status("ann")} == {
        "one": Status.WAITING,
        "two": Status.COMPLETED,
    }


def test_a_refused_batch_is_not_run_singly(scheduler: Scheduler, clock: ManualClock) -> None:
    sizes = []

    @scheduler.handler("work", batch=10)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))
        if len(sizes) == 1:
            raise CredentialsError

    for number in range(10):
        scheduler.submit("work", user_id=f"user{number}")
    drain(scheduler)
    assert sizes == [10]
    clock.advance(30)
    drain(scheduler)
    assert sizes == [10, 1, 9]


def test_a_pause_can_be_set(tmp_path, clock: ManualClock) -> None:
    scheduler = new_scheduler("memory://", clock, worker={"pause_s": 5, "max_pause_s": 8})
    provider = Provider("*")
    scheduler.handler("work")(lambda message: provider.call("work"))
    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    for pause in (5, 8, 8):
        clock.advance(pause - 1)
        drain(scheduler)
        clock.advance(1)
        drain(scheduler)
    assert len(provider.taken()) == 4
    scheduler.close()


def test_the_settings_may_name_the_credential(clock: ManualClock) -> None:
    scheduler = new_scheduler("memory://", clock, labels={"work": {"credential": "theirs"}})
    scheduler.handler("work", credential="mine")(lambda message: None)
    assert scheduler.runtime.registry.get("work").credential == "theirs"
    with pytest.raises(InvalidSettingError, match="credential"):
        scheduler.handler("work", credential="")
    scheduler.close()


def test_workers_of_one_file_share_pause_and_probe(tmp_path, clock: ManualClock) -> None:
    url, provider = f"sqlite:///{tmp_path / 'r.db'}", Provider("*")
    first, second = (new_scheduler(url, clock) for _ in range(2))
    for scheduler in (first, second):
        scheduler.handler("work", concurrency=1)(lambda message: provider.call(message.user_id))
    for number in range(20):
        first.submit("work", user_id=f"user{number}")
    drain(first)
    drain(second)  # does not know yet: one run tells it
    assert len(provider.taken()) == 2
    clock.advance(30)
    drain(second)
    drain(first)  # finds that the other has tried
    assert len(provider.taken()) == 1
    provider.refused.clear()
    clock.advance(60)
    drain(second)
    assert len(provider.taken()) >= 18
    clock.advance(1)
    drain(first)
    assert {first.status(f"user{n}")[0].status for n in range(20)} == {Status.COMPLETED}
    assert {first.status(f"user{n}")[0].attempts for n in range(20)} == {1}
    first.close()
    second.close()


def test_without_an_answer_about_others_a_worker_pauses_by_itself(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    class Away:
        async def acquire(self, *arguments):
            raise BackendUnavailableError

        report = acquire

    provider = Provider("*")
    breaker = scheduler.runtime.worker._breaker
    there, breaker._shared = breaker._shared, Away()
    scheduler.handler("work")(lambda message: provider.call("work"))
    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    clock.advance(30)
    drain(scheduler)
    assert provider.taken() == ["work"]
    breaker._shared = there
    provider.refused.clear()
    clock.advance(30)
    drain(scheduler)
    assert status_of(scheduler).status is Status.COMPLETED


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_worker_wakes_up_when_a_pause_ends(kind: str, tmp_path, clock: ManualClock) -> None:
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    provider = Provider("*")
    settings = load_settings(queue={"url": url, "durability": "normal"})
    async with AsyncScheduler(settings=settings, clock=clock) as scheduler:

        @scheduler.handler("work", concurrency=1)
        async def work(message: Message) -> None:
            provider.call("work")

        keys = [Key(f"user{number}", "1") for number in range(5)]
        with scheduler.runtime.finishes.watch(keys) as settled:
            for key in keys:
                await scheduler.submit("work", user_id=key.user_id, item_id=key.item_id)
            for pause in (30, 60, 120):
                await settled.wait()
                settled.clear()
                if pause == 120:
                    provider.refused.clear()
                clock.advance(pause)
        for key in keys:
            item = await scheduler.wait(key.item_id, user_id=key.user_id)
            assert (item.status, item.attempts) == (Status.COMPLETED, 1)
    assert len(provider.taken()) == 3 + 5


async def test_a_label_resumes_on_redis_by_the_clocks_of_the_real_world() -> None:
    refusals = 3
    with valkey() as url:
        settings = load_settings(
            queue={"url": url}, memory={"url": "memory://"}, worker={"pause_s": 0.02, "max_pause_s": 0.05}
        )
        async with AsyncScheduler(settings=settings) as scheduler:

            @scheduler.handler("work", concurrency=1)
            async def work(message: Message) -> None:
                nonlocal refusals
                refusals -= 1
                if refusals >= 0:
                    raise QuotaError

            receipts = [await scheduler.submit("work", user_id="ann") for _ in range(5)]
            for receipt in receipts:
                item = await scheduler.wait(receipt.item_id, user_id="ann")
                assert (item.status, item.attempts) == (Status.COMPLETED, 1)
    assert refusals == -5
