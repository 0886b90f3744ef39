"""`/health`, `/ready`, `/alerts`, `/metrics`: what whoever operates it can see."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reverie import AsyncScheduler
from reverie.base.logs import get_logger
from reverie.cli.output import LogFormatter
from reverie.errors import BackendUnavailableError
from reverie.observe.event_log import log_events
from reverie.observe.events import Event, EventName
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path, clock) -> AsyncScheduler:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    settings = load_settings(queue={"url": url}, alerts={"pending": 1}, data_dir=tmp_path)
    return AsyncScheduler(settings=settings, clock=clock)


@pytest.fixture
async def client(request: pytest.FixtureRequest, scheduler: AsyncScheduler):
    """Of a running application; with the mark `worker` it runs a worker too."""
    app = create_app(scheduler, run_worker=hasattr(request, "param"))
    async with (
        app.router.lifespan_context(app),
        documented_client(app) as client,
    ):
        yield client


WITH_WORKER = pytest.mark.parametrize("client", ["worker"], indirect=True)


def obstruct(folder: Path) -> None:
    """Put a file where a folder was that has nothing left behind in it."""
    assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []
    folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")


async def away(*_):
    raise BackendUnavailableError("the server at here:1 did not answer")


async def test_health_is_the_state_of_the_queue(client, scheduler, clock) -> None:
    await scheduler.submit("work", user_id="ann")
    clock.advance(3)
    response = await client.get("/health")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    health = response.json()
    assert list(health)[:4] == ["pending", "processing", "failed", "oldestPendingAge"]
    assert (health["pending"], health["processing"], health["failed"], health["oldestPendingAge"]) == (
        1,
        0,
        0,
        3.0,
    )
    assert health["unhandled_labels"] == ["work"]
    assert health["workers"] == 0


async def test_health_of_a_queue_that_cannot_be_asked(client, scheduler, monkeypatch) -> None:
    monkeypatch.setattr(scheduler.runtime.backend.views, "labels", away)
    for path in ("/health", "/alerts", "/metrics"):
        response = await client.get(path)
        assert response.status_code == 503
        assert "here:1 did not answer" in response.text


NASTY = "x\x1b[2J\r\n\x7f\x9b31m\u2028\u202e\u2066y"
CONTROLS = set("\x1b\r\x7f\x9b\u2028\u202e\u2066")


async def test_a_label_with_control_characters_is_escaped_wherever_it_is_shown(
    client, scheduler, caplog
) -> None:
    caplog.set_level("INFO", "reverie")
    for label in (NASTY, "x\\x1b[2J\\r\\n\\x7f\\x9b31m\\u2028\\u202e\\u2066y"):
        await scheduler.submit(label, user_id="ann", item_id=label)
        await scheduler.submit(label, user_id="bob", item_id=label)
    await scheduler.control.pause(NASTY, NASTY)
    await scheduler.runtime.watcher.watch()
    for path in ("/health", "/alerts", "/ready"):
        text = (await client.get(path)).text
        assert not CONTROLS & set(text), path
        assert path == "/ready" or "\\u2028" in text
    assert NASTY in (await client.get("/health")).json()["unhandled_labels"]  # a program gets it as it is
    metrics = (await client.get("/metrics")).text
    assert not CONTROLS & set(metrics)
    lines = [line for line in metrics.splitlines() if "31m" in line and "waiting" in line]
    assert len(lines) == 1  # labels that look alike when escaped are counted together
    assert lines[0].endswith(" 4.0")
    assert "alert rule=" in caplog.text
    assert not CONTROLS & set(caplog.text)


def test_an_error_with_control_characters_is_escaped_in_the_log(caplog) -> None:
    error = ValueError(f"{NASTY}\n2026-01-01 ERROR not a line of its own")
    get_logger("reverie.tests").error("failed", label=NASTY, exc_info=error)
    logging.getLogger("other").warning("heard %s", NASTY)
    first, *trace = caplog.records[0].getMessage().split("\n")
    assert first == f"failed label={NASTY!r}"
    assert all(line.startswith("  ") for line in trace)
    assert not CONTROLS & set("".join(trace))
    formatter = LogFormatter()
    assert not CONTROLS & set("".join(formatter.format(record) for record in caplog.records))


def test_events_with_control_characters_are_escaped_in_the_log(caplog) -> None:
    caplog.set_level("INFO", "reverie.events")
    log_events([Event(EventName.ENQUEUE, 1, NASTY, user_id=NASTY, error=NASTY)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert not CONTROLS & set(line)
    assert json.loads(line)["label"] == NASTY


async def test_without_a_worker_it_watches_all_the_same(client, scheduler) -> None:
    assert scheduler.runtime.sampler._task is not None
    assert scheduler.runtime.watcher._task is not None


async def test_ready_names_what_it_depends_on(client, scheduler) -> None:
    response = await client.get("/ready")
    names = [one["name"] for one in response.json()["dependencies"]]
    assert names == ["queue", "memory"] + ["disk", "spool"] * bool(scheduler.runtime.databases.files)
    assert response.status_code == 200
    assert response.json()["ready"] is True


@WITH_WORKER
async def test_ready_asks_for_the_worker_if_there_should_be_one(client, scheduler) -> None:
    assert (await client.get("/ready")).status_code == 200
    await scheduler.runtime.worker.stop(5)
    response = await client.get("/ready")
    assert response.status_code == 503
    bad = [one for one in response.json()["dependencies"] if not one["ok"]]
    assert [one["name"] for one in bad] == ["worker"]
    assert "no worker of this process is alive" in bad[0]["why"]


@pytest.mark.parametrize(("name", "method"), [("queue", "labels"), ("memory", "get")])
async def test_ready_says_what_is_away(client, scheduler, monkeypatch, name: str, method: str) -> None:
    place = scheduler.runtime.backend.views if name == "queue" else scheduler.runtime.store
    monkeypatch.setattr(place, method, away)
    response = await client.get("/ready")
    assert response.status_code == 503
    assert response.json()["ready"] is False
    assert [one for one in response.json()["dependencies"] if not one["ok"]] == [
        {"name": name, "ok": False, "why": "the server at here:1 did not answer"}
    ]


@pytest.mark.parametrize("scheduler", ["sqlite"], indirect=True)
async def test_ready_looks_after_the_disk(client, scheduler, monkeypatch, tmp_path) -> None:
    (tmp_path / "r.db").rename(tmp_path / "elsewhere.db")
    response = await client.get("/ready")
    bad = {one["name"]: one["why"] for one in response.json()["dependencies"] if not one["ok"]}
    assert response.status_code == 503
    assert "was deleted, moved or replaced" in bad["disk"]
    (tmp_path / "elsewhere.db").rename(tmp_path / "r.db")
    assert (await client.get("/ready")).status_code == 200
    monkeypatch.setattr("reverie.storage.sqlite.LEAST_FREE_BYTES", 2**62)
    assert "bytes left: free space" in (await client.get("/ready")).text


@pytest.mark.parametrize("scheduler", ["sqlite"], indirect=True)
async def test_ready_looks_after_the_spool(client, scheduler) -> None:
    assert (await client.get("/ready")).status_code == 200
    obstruct(Path(scheduler.runtime.spool.folder))
    response = await client.get("/ready")
    bad = {one["name"]: one["why"] for one in response.json()["dependencies"] if not one["ok"]}
    assert response.status_code == 503
    assert "set spool.dir" in bad["spool"]


async def test_alerts_say_what_to_do(client, scheduler) -> None:
    assert (await client.get("/alerts")).json() == {"alerts": []}
    for _ in range(2):
        await scheduler.submit("work", user_id="ann")
    await scheduler.control.pause("work", "repairs")
    alerts = (await client.get("/alerts")).json()["alerts"]
    assert [alert["rule"] for alert in alerts] == ["paused", "pending", "unhandled"]
    assert alerts[0]["remedy"] == "let it go on: `reverie resume work`"
    assert all(alert["level"] == "warning" and alert["message"] for alert in alerts)


@WITH_WORKER
async def test_metrics_count_and_never_name_a_user(client, scheduler) -> None:
    scheduler.handler("work")(lambda message: None)
    receipt = await scheduler.submit("work", user_id="ann-the-user")
    await scheduler.wait(receipt.item_id, user_id="ann-the-user")
    await scheduler.submit("nobody", user_id="ann-the-user")
    response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "ann-the-user" not in response.text
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    counts = {(s.labels["label"], s.labels["status"]): s.value for s in families["reverie_messages"].samples}
    assert counts["work", "completed"] == 1
    assert counts["nobody", "waiting"] == 1
    assert {s.value for s in families["reverie_workers"].samples} == {1}
