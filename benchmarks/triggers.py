"""Timed tasks: how fast activity is noted, how fast due tasks become messages, and how late they begin.

Each backend is measured with few waiting tasks and with very many, because waiting tasks must not slow down
due ones. The neighbour is APScheduler 3 with its SQLAlchemy store on SQLite.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from benchmarks.defaults import shipped_settings
from benchmarks.extras import require, version_of
from benchmarks.redis.server import NODE_SIZE, OUR_NODE_SIZE, find_binary, running
from benchmarks.targets import judged
from reverie import AsyncScheduler, Message
from reverie.backends.triggers import Activity
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["measure"]

FEW = 1000
BATCH = 500
SINGLES = 2000
FAR_MS = 30 * 24 * 3600 * 1000
PER_SECOND = 1000
SECONDS = 10
AHEAD_MS = 3000
"""The time from scheduling the tasks whose lateness is measured until the first of them is due."""
PATIENCE_S = 300.0
TYPE = "bench"
RATES = ("schedule_rate", "schedule_batch_rate", "fire_rate")


def measure(
    waiting: int, due: int, progress: Callable[[str], None], server_binary: Path | None
) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    peer = _apscheduler(min(due, 2000), progress)
    found: dict[str, dict[str, Any]] = {}
    for backend in ("sqlite", "redis"):
        few, many = (
            asyncio.run(_measure_one(backend, count, due, progress, server_binary))
            for count in (FEW, waiting)
        )
        found[backend] = {
            **few,
            f"with_{waiting}": many,
            "ratio_million": round(many["fire_rate"] / few["fire_rate"], 3),
        }
    worse = {name: min(found[backend][name] for backend in found) for name in (*RATES, "ratio_million")}
    late = {name: max(found[b][name] for b in found) for name in ("lateness_p50_ms", "lateness_p99_ms")}
    aims = {
        "ratio_million": (worse["ratio_million"], ">=", 0.7),
        "lateness_p99_ms": (late["lateness_p99_ms"], "<=", 100.0),
        "fire_rate_to_apscheduler": (worse["fire_rate"] / peer["fire_rate"], ">=", 10.0),
    }
    return {
        "few": FEW,
        "waiting": waiting,
        "due": due,
        **worse,
        **late,
        **found,
        "peers": {"apscheduler": peer},
        "targets": judged(aims),
        "versions": {name: version_of(name) for name in ("reverie", "apscheduler", "sqlalchemy")},
    }


async def _measure_one(
    backend: str, waiting: int, due: int, progress: Callable[[str], None], server_binary: Path | None
) -> dict[str, float]:
    with _place(backend, server_binary) as url:
        scheduler = AsyncScheduler(settings=shipped_settings(url))
        scheduler.runtime.triggers.define(TYPE, TaskSettings(enabled=True, interval=FAR_MS / 1000))
        await scheduler.runtime.triggers.ready()
        progress(f"{backend}: {waiting:,} tasks that wait")
        await _touch(scheduler, waiting, FAR_MS, "waiting")
        progress(f"{backend}: scheduling")
        figures = {
            "schedule_rate": await _schedule_singly(scheduler),
            **(await _schedule_batches(scheduler, due)),
        }
        progress(f"{backend}: firing {due:,} tasks")
        figures["fire_rate"] = await _fire(scheduler, due)
        progress(f"{backend}: lateness of {PER_SECOND * SECONDS:,} tasks, {PER_SECOND:,} a second")
        figures |= await _lateness(scheduler)
        await scheduler.stop()
        return figures


@contextmanager
def _place(backend: str, server_binary: Path | None) -> Iterator[str]:
    if backend == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/queue.db"
    else:
        with running(find_binary(server_binary), {NODE_SIZE: OUR_NODE_SIZE}) as server:
            yield server.url


async def _touch(scheduler: AsyncScheduler, count: int, interval_ms: int, name: str) -> None:
    for start in range(0, count, BATCH):
        await scheduler.runtime.backend.triggers.touch(
            [_activity(f"{name}-{n}", interval_ms) for n in range(start, min(start + BATCH, count))]
        )


def _activity(user: str, interval_ms: int) -> Activity:
    return Activity(task_type=TYPE, user_key=user, user_id=user, interval_ms=interval_ms)


async def _schedule_singly(scheduler: AsyncScheduler) -> int:
    began = time.perf_counter()
    for n in range(SINGLES):
        await scheduler.schedule_user_task(TYPE, f"single-{n}")
    return round(SINGLES / (time.perf_counter() - began))


async def _schedule_batches(scheduler: AsyncScheduler, count: int) -> dict[str, int]:
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        whose: Sequence[tuple[str, None, None]] = [
            (f"batch-{n}", None, None) for n in range(start, min(start + BATCH, count))
        ]
        await scheduler.schedule_user_tasks(TYPE, whose)
    return {"schedule_batch_rate": round(count / (time.perf_counter() - began))}


async def _fire(scheduler: AsyncScheduler, count: int) -> int:
    """Turn due tasks into messages, as the trigger clock does; tasks per second."""
    await _touch(scheduler, count, 1, "due")
    await asyncio.sleep(0.01)
    triggers = scheduler.runtime.triggers
    types, fired = {TYPE: triggers.types.in_force[TYPE]}, 0
    began = time.perf_counter()
    while fired < count:
        due = await triggers.clock.fire_due(types)
        fired += len(due.triggers) if due is not None else 0
    return round(count / (time.perf_counter() - began))


async def _lateness(scheduler: AsyncScheduler) -> dict[str, float]:
    """How long after its due time the handler of a task begins, with `PER_SECOND` tasks due each second."""
    late: list[float] = []
    done = asyncio.Event()

    @scheduler.handler(TYPE)
    async def handle(message: Message) -> None:
        if message.user_id.startswith("late-"):
            late.append(time.time() * 1000 - int(message.item_id.rpartition(":")[2]))
            if len(late) == PER_SECOND * SECONDS:
                done.set()

    async with scheduler:
        while (await scheduler.observe.counts()).all_tasks_summary.waiting:  # noqa: ASYNC110  wait for the tasks fired before
            await asyncio.sleep(0.05)
        total, began = PER_SECOND * SECONDS, time.time()
        for start in range(0, total, BATCH):
            passed = round((time.time() - began) * 1000)
            await scheduler.runtime.backend.triggers.touch(
                [
                    _activity(f"late-{n}", AHEAD_MS - passed + n * 1000 // PER_SECOND)
                    for n in range(start, start + BATCH)
                ]
            )
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
    return {
        "lateness_p50_ms": round(statistics.median(late), 2),
        "lateness_p99_ms": round(statistics.quantiles(late, n=100)[98], 2),
    }


def _apscheduler(count: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure the neighbour: all jobs are due, and the time counts until the last one has run."""
    progress(f"apscheduler: {count:,} jobs")
    background = require("apscheduler.schedulers.background", "apscheduler<4")
    store = require("apscheduler.jobstores.sqlalchemy", "apscheduler<4")
    require("sqlalchemy", "sqlalchemy")
    _Ran.left, _Ran.all = count, threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        scheduler = background.BackgroundScheduler(
            jobstores={"default": store.SQLAlchemyJobStore(url=f"sqlite:///{folder}/jobs.db")},
            job_defaults={"misfire_grace_time": None},
            timezone=UTC,
        )
        scheduler.start(paused=True)
        began = time.perf_counter()
        for n in range(count):
            scheduler.add_job(_ran, "date", run_date=datetime.now(UTC), id=str(n))
        schedule_rate = count / (time.perf_counter() - began)
        began = time.perf_counter()
        scheduler.resume()
        if not _Ran.all.wait(PATIENCE_S):
            raise SystemExit(f"apscheduler has not run {_Ran.left} of {count} jobs within {PATIENCE_S:g} s")
        fire_rate = count / (time.perf_counter() - began)
        scheduler.shutdown()
    return {"jobs": count, "schedule_rate": round(schedule_rate), "fire_rate": round(fire_rate)}


class _Ran:
    """Counts the neighbour's jobs that have not run. It is global, because a job must be importable."""

    lock = threading.Lock()
    left = 0
    all = threading.Event()


def _ran() -> None:
    with _Ran.lock:
        _Ran.left -= 1
        if not _Ran.left:
            _Ran.all.set()
