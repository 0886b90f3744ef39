"""The neighbours: other queues on SQLite, one caller and one consumer of no-op tasks each.

Each is measured at its default and with `synchronous = FULL`, consuming in the way that is fastest for it;
the better figure counts. No neighbour tracks the status of a task in lanes; some delete finished tasks.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["measure_peers"]

FULL = "PRAGMA synchronous = FULL"
CONTENT = "{}"
Figures = dict[str, int]


def measure_peers(messages: int, progress: Callable[[str], None]) -> dict[str, dict[str, Figures]]:
    """Measure each neighbour: messages per second submitted one by one, and drained.

    `peers` has the better figures of both durabilities, `peers_full` those at FULL, which is our default.
    """
    ways = {
        "huey": [huey_in_a_loop, huey_by_its_consumer],
        "persist-queue": [persist_queue],
        "litequeue": [litequeue],
    }
    answer: dict[str, dict[str, Figures]] = {"peers": {}, "peers_full": {}}
    for name, candidates in ways.items():
        runs: dict[bool, list[dict[str, float]]] = {}
        for full in (False, True):
            runs[full] = []
            progress(f"{name}, {'synchronous FULL' if full else 'its default'}")
            for way in candidates:
                with tempfile.TemporaryDirectory() as folder:
                    runs[full].append(way(Path(folder), messages, full=full))
        answer["peers"][name] = _best(runs[False] + runs[True])
        answer["peers_full"][name] = _best(runs[True])
    return answer


def _best(runs: list[dict[str, float]]) -> Figures:
    return {key: round(max(run[key] for run in runs)) for key in runs[0]}


def huey_in_a_loop(folder: Path, messages: int, *, full: bool) -> dict[str, float]:
    """Measure Huey's own dequeue and execute, without the consumer around them."""
    with _huey(folder, full=full) as queue:
        noop = queue.task()(_nothing)
        submitted = _rate(messages, noop)

        def run_one() -> None:
            queue.execute(queue.dequeue())

        return {"submit_one_rate": submitted, "drain_rate": _rate(messages, run_one)}


def huey_by_its_consumer(folder: Path, messages: int, *, full: bool) -> dict[str, float]:
    """Measure Huey's consumer with its default of one worker thread."""
    with _huey(folder, full=full) as queue:
        done = threading.Event()
        left = messages

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        submitted = _rate(messages, queue.task()(count))
        consumer = queue.create_consumer(workers=1, periodic=False, check_worker_health=False)
        began = time.perf_counter()
        consumer.start()
        done.wait()
        drained = messages / (time.perf_counter() - began)
        consumer.stop(graceful=True)
        return {"submit_one_rate": submitted, "drain_rate": drained}


def persist_queue(folder: Path, messages: int, *, full: bool) -> dict[str, float]:
    """Measure the queue of persist-queue that acknowledges."""
    queue = require("persistqueue", "persist-queue").SQLiteAckQueue(str(folder))
    if full:
        queue._putter.execute(FULL)  # noqa: SLF001  there is no option for it

    def run_one() -> None:
        queue.ack(id=queue.get(block=False, raw=True)["pqid"])

    figures = {
        "submit_one_rate": _rate(messages, lambda: queue.put(CONTENT)),
        "drain_rate": _rate(messages, run_one),
    }
    queue.close()
    return figures


def litequeue(folder: Path, messages: int, *, full: bool) -> dict[str, float]:
    """Measure Litequeue, whose default is `synchronous = NORMAL`."""
    queue = require("litequeue", "litequeue").LiteQueue(str(folder / "lite.db"))
    if full:
        queue.conn.execute(FULL)
    figures = {
        "submit_one_rate": _rate(messages, lambda: queue.put(CONTENT)),
        "drain_rate": _rate(messages, lambda: queue.done(queue.pop().message_id)),
    }
    queue.close()
    return figures


@contextmanager
def _huey(folder: Path, *, full: bool) -> Iterator[Any]:
    logging.getLogger("huey").setLevel(logging.ERROR)  # a log line for each task would slow Huey down
    options = {"fsync": True} if full else {}
    queue = require("huey", "huey").SqliteHuey("bench", filename=str(folder / "huey.db"), **options)
    try:
        yield queue
    finally:
        queue.storage.close()


def _nothing() -> None:
    """Do no work."""


def _rate(times: int, call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return times / (time.perf_counter() - began)
