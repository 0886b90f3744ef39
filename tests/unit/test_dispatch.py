"""What a run means for its message: outcomes, failures, batches, order, time-outs, a clean stop."""

from __future__ import annotations

import asyncio
import math
import operator
import threading

import pytest

from reverie import AsyncScheduler, Bury, Cancel, Done, Message, Remember, Retry, Scheduler, Snooze
from reverie.backends.moves import Status
from reverie.effect import Link, Supersede, Touch
from reverie.errors import InvalidSettingError, ReverieError
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path, clock: ManualClock):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    scheduler = Scheduler(settings=load_settings(queue={"url": url, "durability": "normal"}), clock=clock)
    yield scheduler
    scheduler.close()


def run_once(scheduler: Scheduler, clock: ManualClock | None = None, **handler):
    """Submit one message to the label `work`, run it, and say how it stands."""
    receipt = scheduler.submit("work", user_id="ann")
    drain(scheduler)
    return scheduler.status("ann", receipt.item_id)[0]


@pytest.mark.parametrize(
    ("answer", "status", "attempts", "error"),
    [
        (None, Status.COMPLETED, 1, None),
        (Done(), Status.COMPLETED, 1, None),
        (Retry(after=5, reason="later"), Status.WAITING, 1, "later"),
        (Snooze(after=5), Status.WAITING, 0, None),
        (Cancel(), Status.CANCELLED, 1, "cancelled"),
        (Bury("no use"), Status.FAILED, 1, "no use"),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async", "batch", "async batch"])
def test_outcomes(scheduler: Scheduler, kind: str, answer, status, attempts, error) -> None:
    def sync(message):
        return answer

    def batch(messages):
        return {message.key: answer for message in messages}

    async def asynchronous(message):
        return sync(message)

    async def async_batch(messages):
        return batch(messages)

    functions = {"sync": sync, "async": asynchronous, "batch": batch, "async batch": async_batch}
    scheduler.handler("work", batch="batch" in kind)(functions[kind])
    item = run_once(scheduler)
    assert (item.status, item.attempts, item.error) == (status, attempts, error)


@pytest.mark.parametrize("outcome", [Retry(after=5, reason="x"), Snooze(after=5), Cancel(), Bury("x")])
@pytest.mark.parametrize("batch", [False, True])
def test_an_outcome_may_be_raised(scheduler: Scheduler, outcome, batch: bool) -> None:
    @scheduler.handler("work", batch=batch)
    def work(given):
        raise outcome

    expected = {Retry: Status.WAITING, Snooze: Status.WAITING, Cancel: Status.CANCELLED, Bury: Status.FAILED}
    assert run_once(scheduler).status is expected[type(outcome)]


def test_a_failing_message_is_tried_three_times_and_buried_with_its_traceback(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    runs = []

    @scheduler.handler("work")
    def work(message: Message):
        runs.append(message.attempts)
        raise ZeroDivisionError("cannot share by none")

    receipt = scheduler.submit("work", user_id="ann")
    for _ in range(5):
        drain(scheduler)
        clock.advance(300)
    item = scheduler.status("ann", receipt.item_id)[0]
    assert runs == [0, 1, 2]
    assert (item.status, item.attempts) == (Status.FAILED, 3)
    assert "in work" in item.error
    assert item.error.rstrip().endswith("ZeroDivisionError: cannot share by none")


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError]
)
def test_no_exception_of_a_handler_stops_the_worker(scheduler: Scheduler, kind: str, error) -> None:
    def sync(given):
        raise error

    async def asynchronous(given):
        raise error

    function = asynchronous if kind == "async" else sync
    scheduler.handler("work", batch=kind == "batch", max_attempts=1)(function)
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert error.__name__ in item.error


@pytest.mark.parametrize("answer", [7, "done", lambda message: None])
def test_an_answer_that_is_no_outcome_is_a_failure(scheduler: Scheduler, answer) -> None:
    scheduler.handler("work", max_attempts=1)(lambda message: answer)
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert "expected an outcome or None" in item.error


def test_a_coroutine_that_nobody_awaits_is_a_failure_not_a_success(scheduler: Scheduler) -> None:
    async def forgotten():
        pytest.fail("never awaited")

    scheduler.handler("work", max_attempts=1)(lambda message: forgotten())
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert "async def" in item.error


def test_a_batch_spans_lanes_and_keeps_to_its_size(scheduler: Scheduler) -> None:
    batches = []
    scheduler.handler("work", batch=4)(lambda messages: batches.append([m.content for m in messages]))
    for user in ("ann", "bob", "cem"):
        for n in range(3):
            scheduler.submit("work", user_id=user, content=f"{user}{n}")
    drain(scheduler)
    assert max(len(batch) for batch in batches) == 4 or max(len(batch) for batch in batches) == 3
    for user in ("ann", "bob", "cem"):
        assert [c for b in batches for c in b if c.startswith(user)] == [f"{user}{n}" for n in range(3)]


def test_a_missing_answer_of_a_batch_is_a_failure(scheduler: Scheduler) -> None:
    scheduler.handler("work", batch=True, max_attempts=1)(lambda messages: {messages[0].key: Done()})
    first = scheduler.submit("work", user_id="ann")
    second = scheduler.submit("work", user_id="bob")
    drain(scheduler)
    statuses = {
        scheduler.status("ann", first.item_id)[0].status,
        scheduler.status("bob", second.item_id)[0].status,
    }
    assert statuses == {Status.COMPLETED, Status.FAILED}


def test_poison_in_a_batch_fails_alone(scheduler: Scheduler, clock: ManualClock) -> None:
    @scheduler.handler("work", batch=10, max_attempts=1)
    def work(messages):
        if any(message.content == "poison" for message in messages):
            raise ValueError("poison")

    ids = {c: scheduler.submit("work", user_id=c, content=c).item_id for c in ("a", "b", "poison", "d")}
    drain(scheduler)
    statuses = {user: scheduler.status(user, item)[0].status for user, item in ids.items()}
    assert statuses == dict.fromkeys("abd", Status.COMPLETED) | {"poison": Status.FAILED}


@pytest.mark.parametrize("batch", [False, True])
def test_after_a_retry_the_rest_of_the_lane_waits(
    scheduler: Scheduler, clock: ManualClock, batch: bool
) -> None:
    settled = []

    def answer(message: Message):
        if message.content == "1" and not message.attempts:
            return Retry(after=10)
        settled.append((message.user_id, message.content, message.attempts))
        return Done(effects=[Remember(memory_id=message.content, text=f"word {message.content}")])

    if batch:
        scheduler.handler("work", batch=True)(lambda messages: {m.key: answer(m) for m in messages})
    else:
        scheduler.handler("work")(answer)
    for content in ("0", "1", "2"):
        scheduler.submit("work", user_id="ann", content=content)
    scheduler.submit("work", user_id="bob", content="b")
    drain(scheduler)
    texts = [hit.text for hit in scheduler.memory.search("word", user_id="ann")]
    assert texts == ["word 0"]
    assert ("bob", "b", 0) in settled
    clock.advance(10)
    drain(scheduler)
    ann = [content for user, content, _ in settled if user == "ann"]
    assert ann[-2:] == ["1", "2"]
    assert len(scheduler.memory.search("word", user_id="ann")) == 3


def test_the_orchestrator_decides_the_level(scheduler: Scheduler) -> None:
    scheduler.orchestrator.tasks_priorities["work"] = 1
    order = []
    scheduler.handler("work")(lambda message: order.append("work"))
    assert scheduler.runtime.intake._prepare([Message(user_id="a", label="work")])[0].level == 1
    assert scheduler.runtime.intake._prepare([Message(user_id="a", label="unknown")])[0].level == 3
    assert scheduler.runtime.intake._prepare([Message(user_id="a", label="add")])[0].level == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda levels, wrong: operator.setitem(levels, "work", wrong["work"]),
        lambda levels, wrong: levels.update(wrong),
        lambda levels, wrong: levels.setdefault("work", wrong["work"]),
        operator.ior,
    ],
    ids=["set", "update", "setdefault", "or"],
)
def test_a_wrong_level_is_refused_however_it_is_set(scheduler: Scheduler, change) -> None:
    with pytest.raises(InvalidSettingError, match=r"tasks_priorities\['work'\] = 7: must be 1, 2 or 3"):
        change(scheduler.orchestrator.tasks_priorities, {"work": 7})
    assert scheduler.orchestrator.tasks_priorities["work"] == 3


@pytest.mark.parametrize("wrong", [-1, 10**23, 0.5, "5000", None])
def test_a_wrong_rest_is_refused_however_it_is_set(scheduler: Scheduler, wrong) -> None:
    orchestrator = scheduler.orchestrator
    orchestrator.tasks_min_idle_ms["work"] = 5000
    before = dict(orchestrator.tasks_min_idle_ms)
    with pytest.raises(
        InvalidSettingError, match=r"tasks_min_idle_ms\['work'\] = .*: must be a whole number"
    ):
        orchestrator.tasks_min_idle_ms["work"] = wrong
    with pytest.raises(InvalidSettingError, match="from 0 to 315360000000"):
        orchestrator.tasks_min_idle_ms = {"other": 1, "work": wrong}
    assert orchestrator.tasks_min_idle_ms == before


def test_a_follow_up_that_is_refused_fails_its_parent(scheduler: Scheduler) -> None:
    bad = Message(user_id="_system", label="next")
    scheduler.handler("work", max_attempts=1)(lambda message: Done(follow_ups=[bad]))
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert "user_id='_system'" in item.error


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (Remember(memory_id="", text="x"), "memory_id='': must not be empty"),
        (Remember(memory_id="a\x00b", text="x"), "memory_id='a\\x00b': must not contain a NUL character"),
        (Remember(memory_id="1", text="x", tier=""), "tier='': must not be empty"),
        (Touch(memory_id="x" * 521), "must be at most 520 bytes"),
        (Link(source_id="1", relation="about", target_id=""), "target_id='': must not be empty"),
        (Supersede(memory_id="1", version=1, successor=""), "successor='': must not be empty"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_effect_with_an_id_that_nothing_can_have_fails_its_message(
    scheduler: Scheduler, effect, words
) -> None:
    scheduler.handler("work", max_attempts=1)(lambda message: Done(effects=[effect]))
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert words in item.error


def cyclic() -> dict:
    info: dict = {}
    info["self"] = info
    return info


@pytest.mark.parametrize(
    "answer",
    [
        Bury("bad \ud800"),
        Bury(ValueError("not text")),
        Retry(reason=ValueError("not text")),
        ValueError("bad \ud800"),
        Done(effects=["text"]),
        Done(effects=[{"memory_id": "1"}]),
        Done(effects=7),
        Done(effects=[Remember(memory_id="1", text="half of it"), Remember(memory_id="2", text=None)]),
        Done(effects=[Remember(memory_id="1", text="\ud800")]),
        Done(effects=[Remember(memory_id="1", text="x", info=cyclic())]),
        Done(follow_ups=["text"]),
        Done(
            follow_ups=[Message(user_id="ann", label="next", item_id="next", timestamp=None, due="tomorrow")]
        ),
        Done(
            follow_ups=[Message(user_id="ann", label="next", item_id="next", timestamp=None, info=cyclic())]
        ),
    ],
    ids=repr,
)
def test_an_answer_that_cannot_be_kept_fails_alone_and_changes_nothing(scheduler: Scheduler, answer) -> None:
    @scheduler.handler("work", max_attempts=1)
    def work(message: Message):
        if message.user_id == "bob":
            return None
        if isinstance(answer, ValueError):
            raise answer
        return answer

    good = scheduler.submit("work", user_id="bob")
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert item.error
    assert scheduler.status("bob", good.item_id)[0].status is Status.COMPLETED
    assert not scheduler.memory.search("half", user_id="ann")


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("after", [math.inf, math.nan, 1e17, -5, True, "soon"], ids=repr)
def test_a_delay_that_is_no_sensible_number_of_seconds_fails_the_run_in_words(
    scheduler: Scheduler, kind, after
) -> None:
    scheduler.handler("work", max_attempts=1)(lambda message: kind(after=after))
    item = run_once(scheduler)
    assert item.status is Status.FAILED
    assert f"{kind.__name__}(after={after!r}): after must be a number of seconds, from 0 to" in item.error


async def test_an_async_handler_that_takes_too_long_is_cancelled() -> None:
    cancelled = asyncio.Event()
    async with AsyncScheduler("memory://") as scheduler:

        @scheduler.handler("work", timeout=0.05, max_attempts=1)
        async def work(message: Message) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        receipt = await scheduler.submit("work", user_id="ann")
        item = await scheduler.wait(receipt.item_id, user_id="ann")
    assert (item.status, item.error) == (Status.FAILED, "timeout: one call took longer than 0.05 s")
    assert cancelled.is_set()


async def test_a_sync_handler_that_hangs_is_given_up_and_its_label_goes_on() -> None:
    release = threading.Event()
    async with AsyncScheduler("memory://") as scheduler:

        @scheduler.handler("work", timeout=0.05, max_attempts=1, concurrency=1)
        def work(message: Message) -> None:
            if message.content == "hang":
                release.wait(60)

        hung = await scheduler.submit("work", user_id="ann", content="hang")
        after = await scheduler.submit("work", user_id="ann", content="next")
        assert (await scheduler.wait(hung.item_id, user_id="ann")).status is Status.FAILED
        assert (await scheduler.wait(after.item_id, user_id="ann")).status is Status.COMPLETED
        release.set()


async def test_while_too_many_threads_hang_sync_labels_are_not_claimed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    settings = load_settings(queue={"url": "memory://"}, worker={"max_abandoned": 1})
    async with AsyncScheduler(settings=settings) as scheduler:

        @scheduler.handler("work", timeout=0.5, max_attempts=1)
        def work(message: Message) -> None:
            if message.content == "hang":
                release.wait(60)

        @scheduler.handler("other")
        async def other(message: Message) -> None: ...

        for user in ("ann", "bob"):
            hung = await scheduler.submit("work", user_id=user, content="hang")
            assert (await scheduler.wait(hung.item_id, user_id=user)).status is Status.FAILED
        assert "worker.too_many_abandoned abandoned=2 max_abandoned=1" in caplog.text
        waiting = await scheduler.submit("work", user_id="cem")
        quick = await scheduler.submit("other", user_id="cem")
        assert (await scheduler.wait(quick.item_id, user_id="cem")).status is Status.COMPLETED
        assert (await scheduler.status("cem", waiting.item_id))[0].status is Status.WAITING
        alerts = {alert.rule: alert for alert in await scheduler.observe.alerts()}
        assert "2 calls of sync handlers hang" in alerts["too_many_abandoned"].message
        assert "memory:// lives in one process" in alerts["too_many_abandoned"].remedy
        release.set()
        assert (await scheduler.wait(waiting.item_id, user_id="cem")).status is Status.COMPLETED
        assert "too_many_abandoned" not in {alert.rule for alert in await scheduler.observe.alerts()}


async def test_a_stop_hands_back_what_does_not_finish_in_time(tmp_path) -> None:
    settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, worker={"grace_s": 0.05})
    started, release = threading.Event(), threading.Event()
    scheduler = AsyncScheduler(settings=settings)

    @scheduler.handler("work")
    def work(message: Message) -> None:
        started.set()
        release.wait(60)

    async with scheduler:
        receipt = await scheduler.submit("work", user_id="ann")
        await asyncio.to_thread(started.wait, 30)
    release.set()
    item = (await scheduler.status("ann", receipt.item_id))[0]
    assert (item.status, item.attempts, item.losses) == (Status.WAITING, 0, 0)
    await scheduler.stop()


async def test_a_stop_waits_for_what_finishes_in_time(tmp_path) -> None:
    scheduler = AsyncScheduler(f"sqlite:///{tmp_path / 'r.db'}")
    started, release = asyncio.Event(), asyncio.Event()

    @scheduler.handler("work")
    async def work(message: Message) -> None:
        started.set()
        await release.wait()

    async with scheduler:
        receipt = await scheduler.submit("work", user_id="ann")
        await started.wait()
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert (await scheduler.status("ann", receipt.item_id))[0].status is Status.COMPLETED
    await scheduler.stop()


async def test_a_handler_registered_while_the_worker_runs_is_used() -> None:
    async with AsyncScheduler("memory://") as scheduler:
        receipt = await scheduler.submit("late", user_id="ann")
        scheduler.handler("late")(lambda message: None)
        assert (await scheduler.wait(receipt.item_id, user_id="ann")).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("label", "function", "options", "words"),
    [
        ("", print, {}, "needs the name of its label"),
        ("work", lambda: None, {}, "must take the message"),
        ("work", "text", {}, "must take the message"),
        ("work", print, {"level": 9}, r"handler\('work', level\) = 9"),
        ("work", print, {"timeout": 0}, "timeout_s"),
        ("work", print, {"concurrency": 0}, "greater than or equal to 1"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_at_once(
    scheduler: Scheduler, label, function, options, words
) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        scheduler.handler(label, **options)(function)


def test_a_scheduler_can_be_used_again_after_it_was_closed(scheduler: Scheduler) -> None:
    scheduler.handler("work")(lambda message: None)
    for _ in range(2):
        with scheduler:
            receipt = scheduler.submit("work", user_id="ann")
            assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED


async def test_a_blocking_call_on_the_schedulers_own_thread_is_refused_not_hung() -> None:
    scheduler = Scheduler("memory://")

    @scheduler.handler("work", max_attempts=1)
    async def work(message: Message) -> None:
        scheduler.submit("other", user_id="ann")

    receipt = await asyncio.to_thread(scheduler.submit, "work", user_id="ann")
    await asyncio.to_thread(drain, scheduler)
    item = (await asyncio.to_thread(scheduler.status, "ann", receipt.item_id))[0]
    assert "use AsyncScheduler there" in item.error
    await asyncio.to_thread(scheduler.close)


def test_a_close_answers_the_calls_that_wait(tmp_path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'r.db'}")
    receipt = scheduler.submit("nobody's", user_id="ann")
    errors: list[Exception] = []

    def wait() -> None:
        try:
            scheduler.wait(receipt.item_id, user_id="ann", timeout=60)
        except ReverieError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    scheduler.status("ann")
    closing = [threading.Thread(target=scheduler.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    for thread in (*closing, waiting):
        thread.join(30)
        assert not thread.is_alive()
    assert len(errors) == 1


def test_a_context_that_may_be_left_out_is_given(scheduler: Scheduler) -> None:
    given = []

    @scheduler.handler("work")
    def work(message, ctx=None):
        given.append(ctx)

    assert run_once(scheduler).status is Status.COMPLETED
    assert given[0] is not None


def test_a_label_has_a_retry_policy_of_its_own(scheduler: Scheduler, clock: ManualClock, monkeypatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)

    @scheduler.handler("work", max_attempts=4, backoff_s=10, max_backoff_s=15)
    def work(message):
        raise RuntimeError("again")

    receipt = scheduler.submit("work", user_id="ann")
    for attempts, wait_s in ((1, 10), (2, 15), (3, 15)):
        drain(scheduler)
        clock.advance(wait_s - 0.001)
        drain(scheduler)
        assert scheduler.status("ann", receipt.item_id)[0].attempts == attempts
        clock.advance(0.001)
    drain(scheduler)
    assert scheduler.status("ann", receipt.item_id)[0].status is Status.FAILED


def test_start_consumer_runs_a_worker_as_start_does(scheduler: Scheduler) -> None:
    scheduler.handler("work")(lambda message: None)
    scheduler.start_consumer()
    scheduler.start()
    receipt = scheduler.submit("work", user_id="ann")
    assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED
