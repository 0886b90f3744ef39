"""Measure Reverie itself, at its shipped defaults."""

from __future__ import annotations

import random
import statistics
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.defaults import shipped_settings
from benchmarks.process import worker_process
from reverie import Message, Scheduler
from reverie.backends.moves import Status

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "IdleWorker",
    "drain_by_process",
    "drain_here",
    "latencies_here",
    "make_messages",
    "open_scheduler",
    "percentiles",
    "probe_now_and_then",
    "submit_by_threads",
    "submit_in_batches",
    "submit_singly",
    "watch_idle_process",
]

PROBES = 300
PAUSE_S = (0.005, 0.05)
"""Bounds of the random pause between two probes: each one meets a worker at rest, and in no rhythm."""
SETTLE_S = 1.0
"""How long a worker is left alone after its start before it counts as idle."""
IDLE_S = 10.0
"""How long an idle worker is watched."""
PATIENCE_S = 60.0
SLOWEST_RATE = 200.0
"""Messages a second; the measurement of a slower worker is given up."""
PROBE_PATIENCE_S = 30.0


def open_scheduler(url: str) -> Scheduler:
    """A scheduler that takes in messages and runs no worker."""
    scheduler = Scheduler(settings=shipped_settings(url))
    scheduler.open()
    return scheduler


def make_messages(count: int, lanes: int, first: int = 0, content: str = "{}") -> list[Message]:
    return [
        Message(user_id=f"user-{n % lanes}", label="noop", content=content)
        for n in range(first, first + count)
    ]


def submit_singly(scheduler: Scheduler, messages: int, lanes: int) -> float:
    """Measure one caller with one message per call; messages per second."""
    began = time.perf_counter()
    for n in range(messages):
        scheduler.submit("noop", user_id=f"user-{n % lanes}", content="{}")
    return messages / (time.perf_counter() - began)


def submit_by_threads(scheduler: Scheduler, messages: int, lanes: int, threads: int) -> float:
    """Measure many callers of one scheduler with one message per call; messages per second in all."""
    share = messages // threads
    gate = threading.Barrier(threads + 1)
    failures: list[Exception] = []

    def call(number: int) -> None:
        gate.wait()
        try:
            for n in range(share):
                scheduler.submit("noop", user_id=f"user-{(number * share + n) % lanes}", content="{}")
        except Exception as error:  # noqa: BLE001  a thread has nobody else to tell
            failures.append(error)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
    for caller in callers:
        caller.start()
    gate.wait()
    began = time.perf_counter()
    for caller in callers:
        caller.join()
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return share * threads / seconds


def submit_in_batches(scheduler: Scheduler, messages: list[Message], batch: int) -> float:
    """Measure one caller with `batch` messages per call; messages per second."""
    began = time.perf_counter()
    for start in range(0, len(messages), batch):
        scheduler.submit_messages(messages[start : start + batch])
    return len(messages) / (time.perf_counter() - began)


def drain_by_process(url: str, messages: int, way: str = "none") -> float:
    """Drain by a worker process, from its start until all messages are completed; messages per second.

    Workers usually run in a process of their own, and the measuring program does not share its interpreter.
    Starting Python and importing Reverie is not counted; opening the file and starting the worker is.
    """
    with worker_process("drain", url, str(messages), way) as worker:
        worker.tell("go")
        (seconds,) = worker.hear("drained", PATIENCE_S + messages / SLOWEST_RATE)
        return messages / float(seconds)


def drain_here(scheduler: Scheduler, messages: list[Message]) -> float:
    """Drain by a worker in this process, for a backend that no other can reach; messages per second."""
    done = threading.Event()
    left = len(messages)
    last: list[Message] = []

    @scheduler.handler("noop")
    def noop(message: Message) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            last.append(message)
            done.set()

    began = time.perf_counter()
    scheduler.start()
    done.wait()
    scheduler.wait(last[0].item_id, user_id=last[0].user_id)
    seconds = time.perf_counter() - began
    for user_id in {message.user_id for message in messages}:
        for item in scheduler.status(user_id):
            if item.status is not Status.COMPLETED:
                raise SystemExit(f"{item.item_id} is {item.status}, not completed")
    return len(messages) / seconds


@dataclass(frozen=True)
class IdleWorker:
    """What an idle worker costs, and how soon it starts a handler."""

    latencies: list[float]
    """Milliseconds from before a submit to its handler's start."""
    cpu_percent: float
    """CPU time of all threads of the process over the elapsed time."""
    counted_per_s: float


def watch_idle_process(
    url: str, count: Callable[[], int] = lambda: 0, probes: int = PROBES, seconds: float = IDLE_S
) -> IdleWorker:
    """Leave a worker process idle for `seconds`, then submit probes; `count` is read around the idle time.

    `time.monotonic()` is one clock for all processes of a Linux machine.
    """
    with worker_process("serve", url) as worker:
        time.sleep(SETTLE_S)
        worker.tell("cpu")
        (cpu,), counted, began = worker.hear("cpu"), count(), time.monotonic()
        time.sleep(seconds)
        worker.tell("cpu")
        (cpu_after,), more, passed = worker.hear("cpu"), count() - counted, time.monotonic() - began
        with closing(open_scheduler(url)) as scheduler:

            def probe() -> float:
                began = time.monotonic()
                receipt = scheduler.submit("probe", user_id="prober")
                item_id, started = worker.hear("probe", PROBE_PATIENCE_S)
                if item_id != receipt.item_id:
                    raise SystemExit(f"{item_id} was handled instead of {receipt.item_id}")
                return float(started) - began

            latencies = probe_now_and_then(probe, probes)
    return IdleWorker(latencies, 100 * (float(cpu_after) - float(cpu)) / passed, more / passed)


def latencies_here(scheduler: Scheduler, probes: int = PROBES) -> list[float]:
    """Measure the latencies of an idle worker in this process, which must be started."""
    started: list[float] = []
    heard = threading.Event()

    @scheduler.handler("probe")
    def handle(message: Message) -> None:
        started.append(time.monotonic())
        heard.set()

    def probe() -> float:
        heard.clear()
        began = time.monotonic()
        scheduler.submit("probe", user_id="prober")
        if not heard.wait(PROBE_PATIENCE_S):
            raise SystemExit(f"a probe was not handled within {PROBE_PATIENCE_S} s")
        return started[-1] - began

    return probe_now_and_then(probe, probes)


def percentiles(latencies: list[float]) -> dict[str, float]:
    return {
        "latency_p50_ms": round(statistics.median(latencies), 2),
        "latency_p99_ms": round(statistics.quantiles(latencies, n=100)[98], 2),
    }


def probe_now_and_then(probe: Callable[[], float], probes: int) -> list[float]:
    """Call `probe` with random pauses in between; return its answers in milliseconds."""
    pauses = random.Random(1)
    latencies = []
    for _ in range(probes):
        time.sleep(pauses.uniform(*PAUSE_S))
        latencies.append(probe() * 1000)
    return latencies
