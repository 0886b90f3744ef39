"""One run on one backend, with the figures that all backends share."""

from __future__ import annotations

import os
import platform
from contextlib import closing
from typing import TYPE_CHECKING, Any

from benchmarks import ours
from benchmarks.extras import version_of
from benchmarks.rounds import (
    BATCH,
    Sizes,
    as_whole_numbers,
    medians,
    new_rounds,
    submit_by_callers,
    submit_singly,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["measure"]


def measure(
    backend: str, sizes: Sizes, progress: Callable[[str], None], server_binary: Path | None = None
) -> dict[str, Any]:
    """Measure all figures of one backend, ready for JSON."""
    about = {
        "backend": backend,
        "messages": sizes.messages,
        "lanes": sizes.lanes,
        "rounds": sizes.rounds,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
    }
    if backend == "redis":
        from benchmarks.redis.run import measure as on_redis  # noqa: PLC0415  its driver is an extra

        return about | on_redis(sizes, progress, server_binary)
    if backend == "sqlite":
        from benchmarks.sqlite.run import measure as on_sqlite  # noqa: PLC0415

        return about | on_sqlite(sizes, progress)
    return about | _in_memory(sizes, progress)


def _in_memory(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    mine = new_rounds()
    latencies: list[float] = []
    for number in range(sizes.rounds):
        progress(f"round {number + 1} of {sizes.rounds}")
        with closing(ours.open_scheduler("memory://")) as scheduler:
            submit_singly(mine, scheduler, sizes)
            submit_by_callers(mine, scheduler, sizes)
        with closing(ours.open_scheduler("memory://")) as scheduler:
            many = ours.make_messages(sizes.messages, sizes.lanes)
            mine["submit_batch_rate"].append(ours.submit_in_batches(scheduler, many, BATCH))
            mine["drain_rate"].append(ours.drain_here(scheduler, many))
            latencies += ours.latencies_here(scheduler)
    return {
        "durability": "none",
        **medians(mine),
        **ours.percentiles(latencies),
        "probes": len(latencies),
        "each_round": {"ours": as_whole_numbers(mine)},
        "versions": {"reverie": version_of("reverie")},
    }
