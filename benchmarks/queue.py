"""One run over one backend: ours, the raw limit and the neighbours, near each other in time.

Machines are noisy, so what is compared with raw SQLite is measured in rounds, ours and raw in turn and each
first in every other round, on fresh files; a figure is the median of its rounds. `noise` is the fastest round
of raw single commits over the slowest. If it is above 2, `quiet` is false: others used the disk, which slows
raw single commits most, so that the ratios to raw look better than they are.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import tempfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from benchmarks import ours
from benchmarks.defaults import shipped_settings
from benchmarks.peers import measure_peers, require
from benchmarks.raw import SQL, RawQueue
from benchmarks.targets import judge

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure"]

BATCH = 500
SINGLES = 1000
THREADS = 64
CALLS_PER_THREAD = 50
PEER_MESSAGES = 5000
MOST_NOISE = 2.0
PEERS = {"huey": "huey", "persistqueue": "persist-queue", "litequeue": "litequeue"}
Rounds = defaultdict[str, list[float]]


def measure(
    backend: str, messages: int, lanes: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """All figures of one backend, ready for JSON."""
    about = {
        "backend": backend,
        "durability": shipped_settings("memory://").queue.durability if backend == "sqlite" else "none",
        "messages": messages,
        "lanes": lanes,
        "rounds": rounds,
    }
    if backend == "memory":
        return about | _measure_memory(messages, lanes, rounds, progress) | _machine()
    for module, package in PEERS.items():
        require(module, package)
    return about | _measure_sqlite(messages, lanes, rounds, progress) | _machine()


def _measure_sqlite(
    messages: int, lanes: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    mine: Rounds = defaultdict(list)
    raw: Rounds = defaultdict(list)
    for number in range(rounds):
        for name, part in {"single submits": _round_of_singles, "batches, drain": _round_of_many}.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder), messages, lanes, mine, raw, raw_first=bool(number % 2))
    progress("latency and CPU of an idle worker")
    with tempfile.TemporaryDirectory() as folder:
        latencies, cpu = ours.latencies_of_process(f"sqlite:///{folder}/idle.db")
    all_peers = measure_peers(min(messages, PEER_MESSAGES), progress)
    noise = max(raw["submit_one_rate"]) / min(raw["submit_one_rate"])
    figures: dict[str, Any] = {
        **_medians(mine),
        **ours.percentiles(latencies),
        "idle_cpu_percent": round(cpu, 2),
        "raw": _medians(raw),
        **all_peers,
        "probes": len(latencies),
        "noise": round(noise, 2),
        "quiet": noise <= MOST_NOISE,
        "each_round": {"ours": _rounded(mine), "raw": _rounded(raw)},
    }
    return figures | judge(figures)


def _round_of_singles(
    folder: Path, messages: int, lanes: int, mine: Rounds, raw: Rounds, *, raw_first: bool
) -> None:
    """One caller and 64 callers, beside raw single commits."""
    singles = min(SINGLES, messages)
    url = f"sqlite:///{folder}/ours.db"
    durability = shipped_settings(url).queue.durability
    with (
        closing(ours.open_scheduler(url)) as scheduler,
        closing(RawQueue(folder / "raw.db", durability, lanes)) as direct,
    ):

        def one_ours() -> None:
            mine["submit_one_rate"].append(ours.submit_singly(scheduler, singles, lanes))

        def many_ours() -> None:
            calls = THREADS * CALLS_PER_THREAD
            mine["submit_64_rate"].append(ours.submit_by_threads(scheduler, calls, lanes, THREADS))

        def one_raw() -> None:
            raw["submit_one_rate"].append(direct.submit_singly(singles))

        steps = (one_ours, one_raw, many_ours, one_raw)
        for step in reversed(steps) if raw_first else steps:
            step()


def _round_of_many(
    folder: Path, messages: int, lanes: int, mine: Rounds, raw: Rounds, *, raw_first: bool
) -> None:
    """All messages in batches, then drained; the same rows beside it, raw."""
    url = f"sqlite:///{folder}/ours.db"
    durability = shipped_settings(url).queue.durability
    many = ours.make_messages(messages, lanes)
    with closing(RawQueue(folder / "raw.db", durability, lanes)) as direct:

        def fill_ours() -> None:
            with closing(ours.open_scheduler(url)) as scheduler:
                mine["submit_batch_rate"].append(ours.submit_in_batches(scheduler, many, BATCH))

        def fill_raw() -> None:
            raw["submit_batch_rate"].append(direct.submit_in_batches(messages, BATCH))

        def drain_ours() -> None:
            mine["drain_rate"].append(ours.drain_by_process(url, messages))
            _verify(folder / "ours.db", messages)

        def drain_raw() -> None:
            raw["drain_rate"].append(direct.drain(messages))

        for pair in ((fill_ours, fill_raw), (drain_ours, drain_raw)):
            for step in reversed(pair) if raw_first else pair:
                step()


def _measure_memory(
    messages: int, lanes: int, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    mine: Rounds = defaultdict(list)
    latencies: list[float] = []
    singles = min(SINGLES, messages)
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        with closing(ours.open_scheduler("memory://")) as scheduler:
            mine["submit_one_rate"].append(ours.submit_singly(scheduler, singles, lanes))
            calls = THREADS * CALLS_PER_THREAD
            mine["submit_64_rate"].append(ours.submit_by_threads(scheduler, calls, lanes, THREADS))
        with closing(ours.open_scheduler("memory://")) as scheduler:
            many = ours.make_messages(messages, lanes)
            mine["submit_batch_rate"].append(ours.submit_in_batches(scheduler, many, BATCH))
            mine["drain_rate"].append(ours.drain_here(scheduler, many))
            latencies += ours.latencies_here(scheduler)
    return {
        **_medians(mine),
        **ours.percentiles(latencies),
        "probes": len(latencies),
        "each_round": {"ours": _rounded(mine)},
    }


def _verify(path: Path, messages: int) -> None:
    """Count what the worker process says it has completed."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        counts = connection.execute(SQL["count_by_status"]).fetchall()
    if counts != [("completed", messages)]:
        raise SystemExit(f"the worker left {counts} of {messages} messages")


def _medians(rounds: Rounds) -> dict[str, int]:
    return {name: round(statistics.median(rates)) for name, rates in rounds.items()}


def _rounded(rounds: Rounds) -> dict[str, list[int]]:
    return {name: [round(rate) for rate in rates] for name, rates in rounds.items()}


def _machine() -> dict[str, Any]:
    packages = ["reverie", "apsw", "huey", "persist-queue", "litequeue"]
    versions = {name: _version(name) for name in packages}
    versions |= {"sqlite of apsw": apsw.sqlite_lib_version(), "sqlite of the peers": sqlite3.sqlite_version}
    return {"versions": versions, "cpu_count": os.cpu_count(), "python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
