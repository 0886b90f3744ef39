"""The neighbours: other queues on the same kind of server, each with its own worker command.

Each is measured with the settings that its documentation has for many short tasks; the best value of each
figure counts. One process submits; the workers are several processes or threads. A drain is timed after a
tenth of the tasks has run, so that no start of a process is in the figure. No neighbour keeps lanes, or the
status of a task.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.process import worker_process
from benchmarks.redis.apps.surroundings import ENTRY, RECORD, SOCKET
from benchmarks.redis.server import Server, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["PEERS", "measure_peers"]

PEERS = {
    "huey": "huey",
    "dramatiq": "dramatiq",
    "taskiq_redis": "taskiq-redis",
    "taskiq": "taskiq",
    "celery": "celery",
}
"""Module that is needed → its package."""
MESSAGES = 10_000
PROBES = 200
WARM_UP = 10
SETTLE_S = 1.0
LOOK_S = 0.02
DRAIN_PATIENCE_S = 600.0
END_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Way:
    """A neighbour, and how its worker is started."""

    name: str
    arguments: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The environment and the arguments as a person would type them."""
        names = (f"{name}={value}" for name, value in self.environment.items())
        return " ".join([*names, self.arguments])


APPS = "benchmarks.redis.apps"
CELERY = (
    f"celery -A {APPS}.celery worker --loglevel ERROR --without-gossip --without-mingle --without-heartbeat"
)
HUEY = f"huey.bin.huey_consumer {APPS}.huey.queue --no-periodic --quiet"
TASKIQ = f"taskiq worker {APPS}.taskiq:broker --workers 2 --log-level ERROR --no-parse"
WAYS = [
    Way("huey", f"{HUEY} -k process -w 2"),
    Way("huey", f"{HUEY} -k process -w 4"),
    Way("huey", f"{HUEY} -k thread -w 4"),
    Way("dramatiq", f"dramatiq {APPS}.dramatiq --processes 2 --threads 8"),
    Way("taskiq", TASKIQ, {"BENCHMARKS_BROKER": "list"}),
    Way("taskiq", TASKIQ, {"BENCHMARKS_BROKER": "stream"}),
    Way("celery", f"{CELERY} --pool prefork --concurrency 2 --prefetch-multiplier 64"),
    Way("celery", f"{CELERY} --pool solo --prefetch-multiplier 128"),
]


def measure_peers(binary: Path, messages: int, progress: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Measure each neighbour: messages per second submitted singly, and drained; latency when idle."""
    messages = min(messages, MESSAGES)
    peers: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        progress(way.setting)
        with running(binary) as server:
            found = _measure(way, server, messages)
        best = peers.setdefault(way.name, {"messages": messages, "probes": PROBES})
        for key, value in found.items():
            better = min if key == "latency_p50_ms" else max
            if key not in best or better(best[key], value) != best[key]:
                best[key] = value
                best[f"{key}_setting"] = way.setting
        best.pop("submit_one_rate_setting", None)  # a setting is about the worker, not about the submit
    return peers


def _measure(way: Way, server: Server, messages: int) -> dict[str, float]:
    record = server.folder / "record"
    environment = {SOCKET: server.socket, RECORD: str(record), **way.environment}
    with worker_process(way.name, module="benchmarks.redis.client", environment=environment) as client:

        def submit(count: int) -> float:
            client.tell(f"submit {count}")
            return count / float(client.hear("submitted")[0])

        submit(WARM_UP)
        submitted = submit(messages)
        with _worker(way, server.folder / "worker.log", environment) as worker:
            moments = _wait_for(record, WARM_UP + messages, worker, server.folder / "worker.log")
            time.sleep(SETTLE_S)
            client.tell(f"probe {PROBES}")
            latencies = [float(latency) for latency in client.hear("probed")]
    tenth = len(moments) // 10
    return {
        "submit_one_rate": round(submitted),
        "drain_rate": round((len(moments) - tenth) / (moments[-1] - moments[tenth])),
        "latency_p50_ms": round(statistics.median(latencies), 2),
    }


def _wait_for(record: Path, messages: int, worker: subprocess.Popen[bytes], log: Path) -> list[float]:
    """Wait until this many tasks have begun; return when each began."""
    deadline = time.monotonic() + DRAIN_PATIENCE_S
    while record.stat().st_size < messages * ENTRY.size:
        if worker.poll() is not None or time.monotonic() > deadline:
            ran = record.stat().st_size // ENTRY.size
            text = log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{worker.args!r} has run {ran} of {messages} tasks: {text}")
        time.sleep(LOOK_S)
    return sorted(moment for (moment,) in ENTRY.iter_unpack(record.read_bytes()))


@contextmanager
def _worker(way: Way, log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker by the neighbour's own command; end it with all its processes."""
    command = [sys.executable, "-m", *way.arguments.split()]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as worker,
    ):
        try:
            yield worker
        finally:
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.wait(END_PATIENCE_S)
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
