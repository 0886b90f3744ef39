"""One run on SQLite: ours, raw SQLite and the neighbours, near each other in time.

Figures that are compared with raw SQLite are measured in rounds, because machines are noisy: ours and raw in
turn, each first in every other round, on fresh files. A figure is the median of its rounds. `noise` is the
fastest round of raw single commits over the slowest. If it is above 2, `quiet` is false: other programs used
the disk. The ratios to raw then look better than they are, because raw single commits are slowed down most.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from benchmarks import ours
from benchmarks.defaults import shipped_settings
from benchmarks.extras import require, version_of
from benchmarks.rounds import (
    BATCH,
    SINGLES,
    Rounds,
    Sizes,
    as_whole_numbers,
    medians,
    new_rounds,
    noise_of,
    submit_by_callers,
    submit_singly,
)
from benchmarks.sqlite.peers import measure_peers
from benchmarks.sqlite.raw import SQL, RawQueue
from benchmarks.sqlite.targets import judge

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure"]

PEER_MESSAGES = 5000
PEERS = {"huey": "huey", "persistqueue": "persist-queue", "litequeue": "litequeue"}


def measure(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    for module, package in PEERS.items():
        require(module, package)
    mine, raw = new_rounds(), new_rounds()
    for number in range(sizes.rounds):
        for name, part in {"single submits": _round_of_singles, "batches, drain": _round_of_many}.items():
            progress(f"round {number + 1} of {sizes.rounds}: {name}")
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder), sizes, mine, raw, raw_first=bool(number % 2))
    progress("latency and CPU of an idle worker")
    with tempfile.TemporaryDirectory() as folder:
        idle = ours.watch_idle_process(f"sqlite:///{folder}/idle.db")
    all_peers = measure_peers(min(sizes.messages, PEER_MESSAGES), progress)
    figures: dict[str, Any] = {
        "durability": shipped_settings("memory://").queue.sqlite_durability,
        **medians(mine),
        **ours.percentiles(idle.latencies),
        "idle_cpu_percent": round(idle.cpu_percent, 2),
        "raw": medians(raw),
        **all_peers,
        "probes": len(idle.latencies),
        **noise_of(raw["submit_one_rate"]),
        "each_round": {"ours": as_whole_numbers(mine), "raw": as_whole_numbers(raw)},
    }
    return figures | judge(figures) | {"versions": _versions()}


def _round_of_singles(folder: Path, sizes: Sizes, mine: Rounds, raw: Rounds, *, raw_first: bool) -> None:
    """Measure one caller and 64 callers, and raw single commits."""
    singles = min(SINGLES, sizes.messages)
    url = f"sqlite:///{folder}/ours.db"
    durability = shipped_settings(url).queue.sqlite_durability
    with (
        closing(ours.open_scheduler(url)) as scheduler,
        closing(RawQueue(folder / "raw.db", durability, sizes.lanes)) as direct,
    ):

        def one_raw() -> None:
            raw["submit_one_rate"].append(direct.submit_singly(singles))

        one_ours = partial(submit_singly, mine, scheduler, sizes)
        many_ours = partial(submit_by_callers, mine, scheduler, sizes)
        steps = (one_ours, one_raw, many_ours, one_raw)
        for step in reversed(steps) if raw_first else steps:
            step()


def _round_of_many(folder: Path, sizes: Sizes, mine: Rounds, raw: Rounds, *, raw_first: bool) -> None:
    """Submit all messages in batches, then drain them; the same rows with raw SQLite."""
    url = f"sqlite:///{folder}/ours.db"
    durability = shipped_settings(url).queue.sqlite_durability
    many = ours.make_messages(sizes.messages, sizes.lanes)
    with closing(RawQueue(folder / "raw.db", durability, sizes.lanes)) as direct:

        def fill_ours() -> None:
            with closing(ours.open_scheduler(url)) as scheduler:
                mine["submit_batch_rate"].append(ours.submit_in_batches(scheduler, many, BATCH))

        def fill_raw() -> None:
            raw["submit_batch_rate"].append(direct.submit_in_batches(sizes.messages, BATCH))

        def drain_ours() -> None:
            mine["drain_rate"].append(ours.drain_by_process(url, sizes.messages))
            _verify(folder / "ours.db", sizes.messages)

        def drain_raw() -> None:
            raw["drain_rate"].append(direct.drain(sizes.messages))

        for pair in ((fill_ours, fill_raw), (drain_ours, drain_raw)):
            for step in reversed(pair) if raw_first else pair:
                step()


def _verify(path: Path, messages: int) -> None:
    """Check in the file that the worker process has completed all messages."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        counts = connection.execute(SQL["count_by_status"]).fetchall()
    if counts != [("completed", messages)]:
        raise SystemExit(f"the worker left {counts} of {messages} messages")


def _versions() -> dict[str, str | None]:
    packages = ["reverie", "apsw", *PEERS.values()]
    versions = {name: version_of(name) for name in packages}
    return versions | {
        "sqlite of apsw": apsw.sqlite_lib_version(),
        "sqlite of the peers": sqlite3.sqlite_version,
    }
