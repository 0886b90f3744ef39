"""Alerts: each rule at its limit and just above, who is told when, and the webhook against real receivers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from reverie import AsyncScheduler
from reverie.backends.breaker_state import Signal, SignalKind
from reverie.backends.moves import Presence
from reverie.base.service import BREAKER_AFTER, LoopService
from reverie.dispatch.breaker import breaker_key, rules_of
from reverie.errors import BackendUnavailableError, InvalidSettingError
from reverie.observe.bus import Wanted
from reverie.observe.health import Health, LabelHealth, Pace
from reverie.observe.rules import Alert, check
from reverie.observe.settings import AlertSettings
from reverie.observe.watcher import AlertWatcher
from reverie.observe.webhook import Webhook
from reverie.settings import load_settings
from support.living import wait_until
from support.receiving import receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.observe.events import Event
    from reverie.testing import ManualClock

FINE = Health(
    pending=0,
    processing=0,
    failed=0,
    oldest_pending_age=0.0,
    oldest_processing_age=0.0,
    last_completed_age=None,
    throughput_per_s=None,
    workers=1,
    labels=[],
    unhandled_labels=[],
)


def label(name: str = "work", **fields: Any) -> LabelHealth:
    given = {"waiting": 0, "in_progress": 0, "failed": 0, "handled": True, **fields}
    return LabelHealth(label=name, **given)


def alerts(
    settings: AlertSettings | None = None, *, breakers=None, services=None, **fields: Any
) -> list[Alert]:
    health = msgspec.structs.replace(FINE, **fields)
    return check(health, settings or AlertSettings(), breakers=breakers, services=services)


def ids(found: list[Alert]) -> list[str]:
    return [alert.id for alert in found]


# -- the rules ---------------------------------------------------------------------------------------


def test_nothing_is_wrong() -> None:
    assert alerts() == []


@pytest.mark.parametrize(
    ("field", "limit", "above", "rule", "level"),
    [
        ("pending", 100, 101, "pending", "warning"),
        ("failed", 10, 11, "failed", "error"),
        ("oldest_pending_age", 300.0, 300.001, "oldest_pending", "warning"),
    ],
)
def test_a_rule_at_its_limit_and_above(field: str, limit: float, above: float, rule: str, level: str) -> None:
    recent = {"last_completed_age": 0.0}
    assert alerts(**recent, **{field: limit}) == []
    (alert,) = alerts(**recent, **{field: above})
    assert (alert.rule, alert.level, alert.id) == (rule, level, rule)
    assert f"{above:.0f}" in alert.message
    assert "`reverie " in alert.remedy


def test_limits_are_settings() -> None:
    settings = AlertSettings(pending=0, failed=0, oldest_pending_s=1, stalled_s=2)
    fields = {"pending": 1, "failed": 1, "oldest_pending_age": 1.5}
    assert ids(alerts(settings, **fields)) == ["failed", "oldest_pending", "pending"]
    assert ids(alerts(settings, oldest_pending_age=2.5, oldest_waiting_age=2.5)) == [
        "stalled",
        "oldest_pending",
    ]
    assert ids(alerts(settings, oldest_pending_age=2.5, oldest_waiting_age=1.5)) == ["oldest_pending"]


@pytest.mark.parametrize(
    ("oldest", "last", "stalled"),
    [
        (300.0, None, False),
        (300.1, None, True),
        (300.1, 300.0, False),
        (300.1, 300.1, True),
        (0.0, 999.0, False),
    ],
)
def test_stalled(oldest: float, last: float | None, stalled: bool) -> None:
    found = ids(
        alerts(AlertSettings(oldest_pending_s=1000), oldest_waiting_age=oldest, last_completed_age=last)
    )
    assert found == (["stalled"] if stalled else [])


@pytest.mark.parametrize(
    ("fields", "words", "command"),
    [
        ({"workers": 0}, "no worker is running", "reverie worker start"),
        (
            {"processing": 2, "oldest_processing_age": 400.0},
            "the longest for 400 s",
            "reverie worker restart",
        ),
        ({}, "nothing is being worked on", "reverie worker restart"),
    ],
)
def test_why_it_is_stalled(fields: dict[str, Any], words: str, command: str) -> None:
    found = alerts(oldest_waiting_age=301.0, **fields)
    (alert,) = (alert for alert in found if alert.rule == "stalled")
    assert words in alert.message
    assert f"`{command}`" in alert.remedy


def test_labels() -> None:
    found = alerts(
        labels=[
            label("a b", waiting=1, paused="away"),
            label("-x", waiting=1, paused="away"),
            label("empty", paused="away"),
        ],
        unhandled_labels=["odd"],
    )
    assert ids(found) == ["paused:-x", "paused:a b", "unhandled:odd"]
    assert "`reverie resume -- -x`" in found[0].remedy
    assert "`reverie resume 'a b'`" in found[1].remedy
    (alone,) = alerts(workers=0, unhandled_labels=["odd"])
    assert "no worker is running" in alone.message


def test_dead_letters_are_named_by_the_label_that_has_most() -> None:
    (alert,) = alerts(failed=12, labels=[label("a", failed=2), label("b b", failed=10)])
    assert "`reverie dead requeue --label 'b b' --all`" in alert.remedy


def test_errors_come_first() -> None:
    found = alerts(
        pending=101, failed=11, breakers={"work/key": 12.4}, services={"settler": 3}, unhandled_labels=["odd"]
    )
    assert ids(found) == [
        "breaker_open:work/key",
        "failed",
        "service_failing:settler",
        "pending",
        "unhandled:odd",
    ]
    assert "tried again in 12 s" in found[0].message
    assert "failed 3 times in a row" in found[2].message


# -- the pace ----------------------------------------------------------------------------------------


def test_the_pace_is_that_of_the_last_minute_however_often_it_is_asked_for() -> None:
    pace = Pace()
    assert pace.observe(0, 0) is None
    for now in range(1, 200_000, 7):
        assert pace.observe(now, now // 100) == pytest.approx(10, abs=10 if now < 10_000 else 0.2)
        assert len(pace._seen) <= 61
    assert pace.observe(1000, 5000) is None, "the clock was set back"
    assert pace.observe(1500, 5005) == 10
    assert pace.observe(1600, 5) is None, "the queue was emptied"


# -- the watcher -------------------------------------------------------------------------------------


class Told:
    """Stands where a webhook would, and hears what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str, list[str]]] = []

    def send(self, at: int, state: str, alerts: list[Alert]) -> None:
        self.heard.append((at, state, ids(alerts)))


@pytest.fixture
async def scheduler(clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    scheduler = AsyncScheduler(settings=load_settings(queue={"url": "memory://"}), clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


def words(batch: list[Event]) -> list[tuple[str, str]]:
    return [(event.label, event.status) for event in batch]


async def test_what_begins_and_is_over_is_told_once(
    scheduler: AsyncScheduler, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reverie")
    runtime, told = scheduler.runtime, Told()
    watcher = AlertWatcher(runtime.backend, clock, AlertSettings(), runtime.bus, webhook=told)
    for _ in range(101):
        await scheduler.submit("work", user_id="ann")
    async with runtime.bus.stream(Wanted(events=frozenset({"alert"}))) as stream:
        await watcher.start()
        began = clock.now()
        assert words(await anext(stream)) == [("", "pending begun"), ("work", "unhandled begun")]
        assert set(watcher.current) == {"pending", "unhandled:work"}
        await scheduler.submit("other", user_id="ann")
        clock.advance(10)
        assert words(await anext(stream)) == [("other", "unhandled begun")]
        await scheduler.control.cancel(label="work")
        clock.advance(10)
        over = await anext(stream)
        assert words(over) == [("", "pending over"), ("work", "unhandled over")]
        assert over[0].at == clock.now()
        assert list(watcher.current) == ["unhandled:other"]
    await watcher.stop(5)
    assert told.heard == [
        (began, "begun", ["pending", "unhandled:work"]),
        (began + 10_000, "begun", ["unhandled:other"]),
        (began + 20_000, "over", ["pending", "unhandled:work"]),
    ]
    lines = [record.message for record in caplog.records if record.name == "reverie.observe.watcher"]
    assert [line.split()[:2] for line in lines] == [
        ["alert", "rule='pending'"],
        ["alert", "rule='unhandled'"],
        ["alert", "rule='unhandled'"],
        ["alert.over", "rule='pending'"],
        ["alert.over", "rule='unhandled'"],
    ]
    assert "reverie queue" in lines[0]


async def test_of_several_processes_one_tells(scheduler: AsyncScheduler, clock: ManualClock) -> None:
    runtime, told = scheduler.runtime, {name: Told() for name in ("a", "b", "no worker")}
    for name in ("a", "b"):
        presence = Presence(worker=name, labels=("other",), lives_ms=60_000)
        await runtime.backend.queue.renew([], 0, presence)
    await scheduler.submit("work", user_id="ann")
    watchers = [
        AlertWatcher(
            runtime.backend, clock, AlertSettings(), runtime.bus, worker=lambda name=name: name, webhook=ear
        )
        for name, ear in told.items()
    ]

    async def look() -> dict[str, list[str]]:
        for ear in told.values():
            ear.heard.clear()
        for watcher in watchers:
            await watcher.watch()
        return {name: [state for _, state, _ in ear.heard] for name, ear in told.items()}

    assert await look() == {"a": ["begun"], "b": [], "no worker": []}
    await runtime.backend.queue.renew([], 0, Presence(worker="a", labels=()))
    assert await look() == {"a": [], "b": ["begun"], "no worker": []}
    await scheduler.control.cancel(label="work")
    assert await look() == {"a": [], "b": ["over"], "no worker": []}


async def test_a_breaker_that_is_open(scheduler: AsyncScheduler, clock: ManualClock) -> None:
    runtime = scheduler.runtime
    rules = rules_of(runtime.settings.worker)
    for credential in ("work", "key: 1"):
        await runtime.backend.shared.report(
            breaker_key("work", credential), "", Signal(SignalKind.QUOTA), rules
        )
    _, found = await runtime.watcher.look()
    assert ids(found) == ["breaker_open:work", "breaker_open:work/key: 1"]
    assert found == await scheduler.observe.alerts()


class Duty(LoopService):
    name = "duty"


async def test_a_duty_that_fails(scheduler: AsyncScheduler, clock: ManualClock) -> None:
    duty = Duty()
    runtime = scheduler.runtime
    watcher = AlertWatcher(runtime.backend, clock, AlertSettings(), runtime.bus, services=lambda: [duty])
    duty.failures = BREAKER_AFTER - 1
    assert (await watcher.look())[1] == []
    duty.failures = BREAKER_AFTER
    assert ids((await watcher.look())[1]) == ["service_failing:duty"]


async def test_a_queue_that_is_away(
    scheduler: AsyncScheduler, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong in the process is told all the same; what was wrong with the queue is not over."""
    runtime, told, duty = scheduler.runtime, Told(), Duty()
    watcher = AlertWatcher(
        runtime.backend, clock, AlertSettings(), runtime.bus, services=lambda: [duty], webhook=told
    )

    async def away() -> None:
        raise BackendUnavailableError

    await scheduler.submit("work", user_id="ann")
    async with runtime.bus.stream(Wanted(events=frozenset({"alert"}))) as stream:
        await watcher.start()
        assert words(await anext(stream)) == [("work", "unhandled begun")]
        duty.failures = BREAKER_AFTER
        monkeypatch.setattr(runtime.backend.views, "health", away)
        clock.advance(10)
        assert words(await anext(stream)) == [("duty", "service_failing begun")]
        assert set(watcher.current) == {"unhandled:work", "service_failing:duty"}
    await watcher.stop(5)


# -- the webhook -------------------------------------------------------------------------------------

SOMETHING = [Alert(rule="pending", level="warning", message="101 messages wait", remedy="`reverie queue`")]


def webhook(url: str, **fields: Any) -> Webhook:
    return Webhook(AlertSettings(webhook_url=url, **fields), first_pause_s=0.001)


def idle(hook: Webhook) -> None:
    """Until all was delivered or given up."""
    wait_until(lambda: hook._thread is None)


def test_a_delivery_is_signed() -> None:
    with receiver() as server:
        hook = webhook(server.url, webhook_secret="hunter2")
        hook.send(1_800_000_000_000, "begun", SOMETHING)
        path, headers, body = server.next()
        idle(hook)
    assert path == "/alerts?team=a%20b"
    assert json.loads(body) == {
        "type": "alert.begun",
        "at": 1_800_000_000_000,
        "alerts": [
            {
                "rule": "pending",
                "level": "warning",
                "message": "101 messages wait",
                "remedy": "`reverie queue`",
            }
        ],
    }
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(b"hunter2", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["content-type"] == "application/json"


def test_without_a_secret_nothing_is_signed() -> None:
    with receiver() as server:
        hook = webhook(server.url)
        hook.send(1, "over", SOMETHING)
        assert "webhook-signature" not in server.next()[1]
        idle(hook)


def test_a_delivery_is_tried_again_under_the_same_id() -> None:
    with receiver(500, 302) as server:
        hook = webhook(server.url, webhook_secret="s")
        hook.send(1, "begun", SOMETHING)
        hook.send(2, "over", SOMETHING)
        tries = [server.next() for _ in range(4)]
        idle(hook)
        assert server.got.empty()
    deliveries = [headers["webhook-id"] for _, headers, _ in tries]
    assert deliveries[0] == deliveries[1] == deliveries[2] != deliveries[3]
    assert [json.loads(body)["at"] for _, _, body in tries] == [1, 1, 1, 2]


def test_a_delivery_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with receiver(500, 500, 500) as server:
        hook = webhook(server.url, webhook_attempts=3)
        hook.send(1, "begun", SOMETHING)
        idle(hook)
        hook.send(2, "over", SOMETHING)
        idle(hook)
        tries = [json.loads(server.next()[2])["at"] for _ in range(4)]
        assert server.got.empty()
    assert tries == [1, 1, 1, 2]
    assert [record.message.split()[0] for record in caplog.records] == [
        *["webhook.failed"] * 3,
        "webhook.given_up",
    ]
    assert "answered 500" in caplog.text


def test_a_delivery_that_breaks_does_not_stop_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as server:
        hook = webhook(server.url)
        with monkeypatch.context() as broken:
            broken.setattr(hook, "_secret", "\ud800")  # a byte of the environment that was no text
            hook.send(1, "begun", SOMETHING)
            idle(hook)
        assert "webhook.given_up" in caplog.text
        assert "UnicodeEncodeError" in caplog.text
        hook.send(2, "over", SOMETHING)
        assert json.loads(server.next()[2])["at"] == 2
        idle(hook)


def test_pauses_between_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with receiver(*[500] * 12) as server:
        hook = Webhook(AlertSettings(webhook_url=server.url, webhook_attempts=12))
        monkeypatch.setattr("random.uniform", lambda _, high: high)
        monkeypatch.setattr(hook._closed, "wait", pauses.append)
        hook.send(1, "begun", SOMETHING)
        idle(hook)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


def test_nobody_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    hook = webhook(f"http://127.0.0.1:{port}", webhook_attempts=2)
    hook.send(1, "begun", SOMETHING)
    idle(hook)
    assert "ConnectionRefusedError" in caplog.text
    assert "webhook.given_up" in caplog.text


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "drips"])
def test_a_receiver_that_hangs(caplog: pytest.LogCaptureFixture, drips: bool) -> None:
    """It never ends its answer, or sends a letter of it now and then: the time for one try holds."""
    over = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200")  # which is not yet an answer
            while drips and not over.wait(0.01):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=[server])
        thread.start()
        hook = webhook(
            f"http://127.0.0.1:{server.getsockname()[1]}", webhook_timeout_s=0.3, webhook_attempts=1
        )
        hook.send(1, "begun", SOMETHING)
        idle(hook)
        over.set()
        thread.join()
    assert "webhook.given_up" in caplog.text
    assert "no answer within 0.3 s" in caplog.text


def test_deliveries_that_wait_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = webhook(f"http://127.0.0.1:{silent.getsockname()[1]}", webhook_timeout_s=30)
        for _ in range(102):
            hook.send(1, "begun", SOMETHING)
        on_its_way, _ = silent.accept()
        hook.close()  # before that one fails, lest it is tried again
        on_its_way.close()
        idle(hook)
    assert caplog.text.count("webhook.dropped") in {1, 2}, (
        "as many as were sent before the first was taken up"
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "ftp://127.0.0.1/x",
        "https://",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:port/",
        "https://example.org/\N{SNOWMAN}",
        "http://me:hunter2@example.org/",
    ],
)
def test_an_address_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidSettingError, match="must be https://…") as refused:
        webhook(url)
    assert "hunter2" not in str(refused.value)
