"""What observation costs: draining while others listen, and status requests among a million items.

Drains are measured in rounds on fresh files. Each round measures all ways, in another order; a figure is the
median of its rounds. Status requests go over HTTP to a server in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks import ours
from benchmarks.targets import judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["measure"]

BATCH = 500
QUESTIONS = 300
USERS = 10_000
PATIENCE_S = 60.0
WAYS = {"none": "nobody listens", "subscribers": "ten subscribers", "log": "log lines"}


def measure(
    messages: int, lanes: int, rounds: int, items: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    rates = _drain_in_turn(messages, lanes, rounds, progress)
    medians = {way: statistics.median(found) for way, found in rates.items()}
    figures: dict[str, Any] = {
        "messages": messages,
        "lanes": lanes,
        "rounds": rounds,
        "items": items,
        **{f"drain_rate_{way}": round(rate) for way, rate in medians.items()},
        "drain_ratio_subscribers": round(medians["subscribers"] / medians["none"], 3),
        "drain_ratio_log": round(medians["log"] / medians["none"], 3),
        "each_round": {way: [round(rate) for rate in found] for way, found in rates.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        figures |= _ask(Path(folder), items, progress)
    aims = {
        "drain_ratio_subscribers": (figures["drain_ratio_subscribers"], ">=", 0.8),
        "status_p50_ms": (figures["status_p50_ms"], "<=", 5.0),
        "allstatus_p50_ms": (figures["allstatus_p50_ms"], "<=", 5.0),
    }
    return figures | {"targets": judged(aims), "cpu_count": os.cpu_count()}


def _drain_in_turn(
    messages: int, lanes: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    order = list(WAYS)
    for number in range(rounds):
        for way in order:
            progress(f"round {number + 1} of {rounds}: drain, {WAYS[way]}")
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/queue.db"
                _fill(url, messages, lanes)
                rates[way].append(ours.drain_by_process(url, messages, way))
        order = [*order[1:], order[0]]
    return dict(rates)


def _fill(url: str, messages: int, lanes: int) -> None:
    scheduler = ours.open_scheduler(url)
    for start in range(0, messages, BATCH):
        count = min(BATCH, messages - start)
        scheduler.submit_messages(ours.make_messages(count, lanes, start))
    scheduler.close()


def _ask(folder: Path, items: int, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure status requests to a server with this many completed items."""
    url = f"sqlite:///{folder}/queue.db"
    progress(f"submitting {items:,} items")
    _fill(url, items, USERS)
    progress(f"completing {items:,} items")
    ours.drain_by_process(url, items)
    progress("asking how they stand")
    users = random.Random(1)
    with _server(url) as get:
        known = {}
        for _ in range(QUESTIONS):
            user = f"user-{users.randrange(min(USERS, items))}"
            rows = get(f"/product/scheduler/status?user_id={user}")
            known[user] = rows[0]["task_id"]
        return {
            "status_p50_ms": _median(get, [f"status?user_id={u}&task_id={t}" for u, t in known.items()]),
            "status_user_p50_ms": _median(get, [f"status?user_id={user}" for user in known]),
            "allstatus_p50_ms": _median(get, ["allstatus"] * QUESTIONS),
            "task_queue_status_p50_ms": _median(get, [f"task_queue_status?user_id={user}" for user in known]),
        }


def _median(get: Callable[[str], Any], questions: list[str]) -> float:
    times = []
    for question in questions:
        began = time.perf_counter()
        get(f"/product/scheduler/{question}")
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 2)


@contextmanager
def _server(url: str) -> Iterator[Callable[[str], Any]]:
    """Start a server on a free port, and yield a function that sends it a GET request."""
    environment = os.environ | {"REVERIE_QUEUE__URL": url, "REVERIE_SERVER__PORT": "0"}
    command = [sys.executable, "-m", "reverie", "serve"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            words = (word for line in server.stderr for word in line.split())
            address = urlsplit(next(word for word in words if word.startswith("http://")))
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)

            def get(path: str) -> Any:
                connection.request("GET", path)
                answer = connection.getresponse()
                body = json.loads(answer.read())
                if answer.status != 200:
                    raise SystemExit(f"{path} answered {answer.status}: {body}")
                return body["data"]

            while not _listens(connection):
                time.sleep(0.05)
            yield get
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _listens(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/ready")
        connection.getresponse().read()
    except OSError:
        connection.close()
        return False
    return True
