"""Events: who hears what, in which order, with which durations, and what it costs those who publish."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from bisect import bisect_left
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler, Bury, Done, Message, Retry, Scheduler
from reverie.base.clock import from_epoch_ms
from reverie.observe.bus import EventBus, Wanted
from reverie.observe.events import BATCH_BYTES, Event, EventName, decode_events, encode_events
from reverie.observe.metrics import Metrics, _Durations
from reverie.observe.tracing import current_trace_id, trace_id_of
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support.living import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

PATIENCE_S = 20.0


class Outside:
    """Other processes, as a bus sees them."""

    def __init__(self) -> None:
        self.is_heard = False
        self.said: list[bytes] = []

    def say(self, news: bytes) -> None:
        self.said.append(news)

    async def listen(self) -> AsyncGenerator[bytes]:
        yield b""


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.batches = 0

    def __call__(self, events: list[Event]) -> None:
        self.batches += 1
        self.events += events

    def names(self, item_id: str | None = None) -> list[str]:
        return [str(event.event) for event in self.events if item_id in {None, event.item_id}]


def event(number: int, name: EventName = EventName.FINISH, **fields) -> Event:
    return Event(name, number, **{"label": "work", "item_id": str(number), **fields})


@pytest.fixture
def bus() -> EventBus:
    return EventBus(Outside())


# -- the bus -----------------------------------------------------------------------------------------


def test_nobody_listens_at_first(bus: EventBus) -> None:
    assert not bus.active
    bus.publish([event(1)])


def test_a_listener_hears_all_in_order_until_it_is_closed(bus: EventBus) -> None:
    ear = Ear()
    subscription = bus.subscribe(ear)
    assert bus.active
    for number in range(1000):
        bus.publish([event(number)])
    assert subscription.flush(PATIENCE_S)
    assert [heard.at for heard in ear.events] == list(range(1000))
    assert ear.batches < 1000
    subscription.close()
    bus.flush(PATIENCE_S)
    bus.publish([event(2000)])
    assert len(ear.events) == 1000


def test_a_listener_may_want_some_only(bus: EventBus) -> None:
    ear = Ear()
    wanted = Wanted(events=frozenset({"finish"}), labels=frozenset({"work"}), user_id="ann")
    subscription = bus.subscribe(ear, wanted)
    bus.publish(
        [
            event(1, user_id="ann"),
            event(2, user_id="bob"),
            event(3, user_id="ann", label="other"),
            event(4, EventName.START, user_id="ann"),
        ]
    )
    assert subscription.flush(PATIENCE_S)
    assert [heard.at for heard in ear.events] == [1]


def test_what_nobody_wants_need_not_be_made(bus: EventBus) -> None:
    assert not bus.wants(EventName.START)
    bus.subscribe(Ear(), Wanted(events=frozenset({"finish"})))
    assert bus.wants(EventName.FINISH)
    assert not bus.wants(EventName.START)
    everything = bus.subscribe(Ear(), Wanted(labels=frozenset({"work"})))
    assert bus.wants(EventName.START)
    everything.close()
    assert not bus.wants(EventName.START)


def test_one_that_does_not_keep_up_loses_the_oldest_and_delays_nobody(bus: EventBus) -> None:
    gate, slow, quick = threading.Event(), Ear(), Ear()

    def stuck(events: list[Event]) -> None:
        gate.wait(PATIENCE_S)
        slow(events)

    held = bus.subscribe(stuck, most_waiting=10)
    free = bus.subscribe(quick)
    bus.publish([event(0)])
    for number in range(1, 101):
        bus.publish([event(number)])
    assert free.flush(PATIENCE_S)
    assert len(quick.events) == 101
    gate.set()
    assert held.flush(PATIENCE_S)
    assert [heard.at for heard in slow.events][-10:] == list(range(91, 101))
    assert held.dropped == 101 - len(slow.events)
    assert held.dropped >= 89


def test_a_batch_that_is_too_large_is_cut(bus: EventBus) -> None:
    ear = Ear()
    subscription = bus.subscribe(ear, most_waiting=10)
    bus.publish([event(number) for number in range(100)])
    assert subscription.flush(PATIENCE_S)
    assert [heard.at for heard in ear.events] == list(range(90, 100))
    assert subscription.dropped == 90


def test_a_listener_that_fails_hears_the_next(bus: EventBus, caplog: pytest.LogCaptureFixture) -> None:
    heard = []

    def broken(events: list[Event]) -> None:
        heard.extend(events)
        raise ValueError("no")

    subscription = bus.subscribe(broken)
    bus.publish([event(1)])
    assert subscription.flush(PATIENCE_S)
    bus.publish([event(2)])
    assert subscription.flush(PATIENCE_S)
    assert [one.at for one in heard] == [1, 2]
    assert "event_listener.failed" in caplog.text


async def test_a_stream_gives_batches_to_async_code(bus: EventBus) -> None:
    async with bus.stream(Wanted(item_id="2")) as batches:
        bus.publish([event(1), event(2)])
        assert [one.at for one in await anext(batches)] == [2]
    assert not bus.active


def test_other_processes_hear_while_they_listen() -> None:
    outside = Outside()
    bus = EventBus(outside)
    bus.publish([event(1)])
    outside.is_heard = True
    assert bus.active
    bus.publish([event(2), event(3)])
    bus.flush(PATIENCE_S)
    outside.is_heard = False
    bus.publish([event(4)])
    assert not bus.active
    assert [one.at for piece in outside.said for one in decode_events(piece)] == [2, 3]


def test_events_travel_in_pieces_that_fit() -> None:
    pieces: list[bytes] = []
    many = [event(number, error="x" * 500) for number in range(500)]
    encode_events([*many, event(500, error="y" * 1_000_000)], pieces.append)
    assert all(len(piece) <= BATCH_BYTES for piece in pieces)
    arrived = [one for piece in pieces for one in decode_events(piece)]
    assert arrived[:500] == many
    assert arrived[500].error.endswith("yyy")
    assert decode_events(b"nonsense") == decode_events(b"") == []


# -- what a scheduler tells --------------------------------------------------------------------------


def test_the_way_of_a_message(scheduler: Scheduler, clock: ManualClock) -> None:
    @scheduler.handler("work")
    def work(message: Message) -> None:
        clock.advance(0.25)

    ear = Ear()
    subscription = scheduler.observe.subscribe(ear)
    receipt = scheduler.submit("work", user_id="ann", task_id="t", trace_id="trace", mem_cube_id="cube")
    clock.advance(2)
    drain(scheduler)
    assert subscription.flush(PATIENCE_S)
    enqueue, dequeue, start, finish = ear.events
    assert ear.names() == ["enqueue", "dequeue", "start", "finish"]
    for one in ear.events:
        assert (one.label, one.user_id, one.item_id) == ("work", "ann", receipt.item_id)
        assert (one.task_id, one.trace_id, one.mem_cube_id) == ("t", "trace", "cube")
    assert (enqueue.queue_wait_ms, enqueue.worker) == (None, None)
    assert (dequeue.queue_wait_ms, dequeue.status, dequeue.attempt) == (2000, "in_progress", 1)
    assert start.worker == scheduler.runtime.worker.name
    assert (finish.status, finish.queue_wait_ms, finish.total_duration_ms) == ("completed", 2000, 2250)
    assert finish.exec_duration_ms is not None
    assert finish.exec_duration_ms >= 0


def test_a_run_that_fails_is_told_as_such(scheduler: Scheduler, clock: ManualClock) -> None:
    answers = iter([Retry(after=5, reason="busy"), Bury("broken")])

    @scheduler.handler("work")
    def work(message: Message):
        return next(answers)

    ear = Ear()
    subscription = scheduler.observe.subscribe(ear, events=["finish", "message_processing_failed"])
    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    clock.advance(6)
    drain(scheduler)
    assert subscription.flush(PATIENCE_S)
    told = [(str(one.event), one.status, one.attempt, one.error, one.last) for one in ear.events]
    assert told == [
        ("finish", "waiting", 1, "busy", None),
        ("message_processing_failed", "waiting", 1, "busy", False),
        ("finish", "failed", 2, "broken", None),
        ("message_processing_failed", "failed", 2, "broken", True),
    ]
    assert ear.events[0].total_duration_ms is None
    assert ear.events[2].total_duration_ms == 6000


def test_the_wait_of_a_second_run_begins_when_it_came_back(scheduler: Scheduler, clock: ManualClock) -> None:
    @scheduler.handler("work")
    def work(message: Message):
        return Done() if message.attempts else Retry(after=1)

    ear = Ear()
    subscription = scheduler.observe.subscribe(ear, events=["dequeue"])
    scheduler.submit("work", user_id="ann")
    clock.advance(10)
    drain(scheduler)
    clock.advance(3)
    drain(scheduler)
    assert subscription.flush(PATIENCE_S)
    assert [one.queue_wait_ms for one in ear.events] == [10_000, 3000]


def test_follow_ups_are_told_and_belong_to_the_same_trace(scheduler: Scheduler) -> None:
    seen = []

    @scheduler.handler("parent")
    def parent(message: Message):
        scheduler.submit("submitted", user_id="ann")
        return Done(follow_ups=[Message(user_id="ann", label="child")])

    @scheduler.handler("child")
    @scheduler.handler("submitted")
    def child(message: Message) -> None:
        seen.append((message.label, message.trace_id, current_trace_id.get()))

    ear = Ear()
    subscription = scheduler.observe.subscribe(ear, events=["enqueue"])
    scheduler.submit("parent", user_id="ann", trace_id="abc")
    drain(scheduler)
    assert subscription.flush(PATIENCE_S)
    assert sorted(seen) == [("child", "abc", "abc"), ("submitted", "abc", "abc")]
    assert sorted(one.label for one in ear.events) == ["child", "parent", "submitted"]


def test_what_is_submitted_twice_is_told_once(scheduler: Scheduler) -> None:
    ear = Ear()
    subscription = scheduler.observe.subscribe(ear)
    for _ in range(2):
        scheduler.submit("work", user_id="ann", item_id="1")
    assert subscription.flush(PATIENCE_S)
    assert ear.names() == ["enqueue"]


def test_a_cancellation_is_told(scheduler: Scheduler) -> None:
    ear = Ear()
    subscription = scheduler.observe.subscribe(ear)
    scheduler.submit("work", user_id="ann", item_id="1", trace_id="abc")
    scheduler.control.cancel("1", user_id="ann")
    assert subscription.flush(PATIENCE_S)
    told = [(str(one.event), one.label, one.status, one.trace_id) for one in ear.events]
    assert told == [("enqueue", "work", "waiting", "abc"), ("finish", "work", "cancelled", "abc")]


def test_what_is_sent_back_is_told(scheduler: Scheduler) -> None:
    scheduler.handler("work")(lambda message: Bury("no"))
    scheduler.submit("work", user_id="ann", item_id="1")
    drain(scheduler)
    ear = Ear()
    subscription = scheduler.observe.subscribe(ear)
    scheduler.control.requeue("1", user_id="ann")
    assert subscription.flush(PATIENCE_S)
    assert [(str(one.event), one.label, one.status) for one in ear.events] == [("enqueue", "work", "waiting")]


def test_a_deadline_that_passes_is_told(scheduler: Scheduler, clock: ManualClock) -> None:
    ear = Ear()
    subscription = scheduler.observe.subscribe(ear, events=["finish"])
    scheduler.submit("work", user_id="ann", deadline=from_epoch_ms(clock.now()) + timedelta(seconds=1))
    clock.advance(2)
    drain(scheduler)
    assert subscription.flush(PATIENCE_S)
    assert [(one.status, one.queue_wait_ms) for one in ear.events] == [("failed", None)]


def test_log_lines_on_request(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reverie.events")
    settings = load_settings(queue={"url": "memory://"}, events={"log": True})
    with Scheduler(settings=settings, clock=clock).used() as scheduler:
        scheduler.handler("work")(lambda message: None)
        scheduler.submit("work", user_id="ann", content="a\nb")
        drain(scheduler)
        scheduler.runtime.bus.flush(PATIENCE_S)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "reverie.events"]
    assert [line["event"] for line in lines] == ["enqueue", "dequeue", "start", "finish"]


# -- metrics, samples, traces ------------------------------------------------------------------------


def test_metrics_tell_a_bounded_number_of_labels_apart(bus: EventBus) -> None:
    metrics = Metrics(bus, most_labels=2)
    waits = {"queue_wait_ms": 3.0, "exec_duration_ms": 2000.0, "user_id": "a-secret-user"}
    bus.publish([event(n, label=f"label-{n}", **waits) for n in range(5)])
    bus.flush(PATIENCE_S)
    with Scheduler("memory://").used() as scheduler:
        text = metrics.render([], scheduler.observe.health(), []).decode()
    assert 'reverie_queue_wait_seconds_count{label="label-0"} 1.0' in text
    assert 'reverie_queue_wait_seconds_count{label="other"} 3.0' in text
    assert 'reverie_queue_wait_seconds_bucket{label="other",le="0.0025"} 0.0' in text
    assert 'reverie_queue_wait_seconds_bucket{label="other",le="0.005"} 3.0' in text
    assert 'reverie_exec_seconds_sum{label="other"} 6.0' in text
    assert "a-secret-user" not in text


def test_metrics_are_read_while_a_label_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = _Durations("waits", "Of a test.")

    def read_in_between(*given: object) -> int:
        durations.family()
        return bisect_left(*given)

    monkeypatch.setattr("reverie.observe.metrics.bisect_left", read_in_between)
    durations.observe("work", 3.0)
    samples = {sample.name: sample.value for sample in durations.family().samples}
    assert (samples["waits_count"], samples["waits_sum"]) == (1, 0.003)


async def test_the_monitor_samples_how_much_waits(clock: ManualClock) -> None:
    settings = load_settings(queue={"url": "memory://"}, events={"sample_s": 5, "samples_kept": 2})
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    for number in range(3):
        await scheduler.submit("work", user_id="ann", item_id=str(number))
        await scheduler.runtime.sampler.sample()
        clock.advance(5)
    samples = await scheduler.observe.samples()
    assert [sample.waiting for sample in samples] == [{"work": 2}, {"work": 3}]
    assert samples[1].at - samples[0].at == 5000
    await scheduler.start_background_monitor()
    await scheduler.start_background_monitor()
    await scheduler.stop()


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("cc-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01-more", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-01", None),
        ("nonsense", None),
    ],
)
def test_a_traceparent_is_read_as_the_standard_says(header: str, trace_id: str | None) -> None:
    assert trace_id_of(header) == trace_id


def test_anyone_can_make_up_labels(clock: ManualClock) -> None:
    settings = load_settings(queue={"url": "memory://", "max_labels": 3000})
    with Scheduler(settings=settings, clock=clock).used() as scheduler:
        made_up = [Message(user_id="ann", label=f"label-{n}") for n in range(2000)]
        scheduler.submit_messages([*made_up, *(Message(user_id="ann", label="real") for _ in range(2))])
        health = scheduler.observe.health()
        assert (len(health.labels), health.labels_in_all, health.pending) == (100, 2001, 2002)
        assert "real" in health.unhandled_labels
        assert len(scheduler.observe.alerts()) == 101
        sample = scheduler.run(scheduler.runtime.sampler.sample())
        assert len(sample.waiting) == 1000


def test_a_scheduler_that_was_stopped_tells_others_again(tmp_path: Path) -> None:
    listening = Scheduler(f"sqlite:///{tmp_path}/q.db")
    speaking = Scheduler(f"sqlite:///{tmp_path}/q.db")
    with listening.used(), speaking.used():
        speaking.open()
        speaking.observe.metrics()
        speaking.stop()
        assert not speaking.runtime.bus.active
        listening.open()
        heard = listening.run(_hear_one(listening, speaking))
    assert [one.item_id for one in heard] == ["1"]


async def _hear_one(listening: Scheduler, speaking: Scheduler) -> list[Event]:
    async with asyncio.timeout(PATIENCE_S), aclosing(listening.runtime.backend.broadcast.listen()) as news:
        first = asyncio.ensure_future(anext(news))
        await until(lambda: speaking.runtime.bus.active)
        await asyncio.to_thread(speaking.submit, "work", user_id="ann", item_id="1")
        return decode_events(await first)
