"""Shared by the runs on all backends: sizes, rounds, and how rounds become a figure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import ours

if TYPE_CHECKING:
    from collections.abc import Collection

    from reverie import Scheduler

__all__ = [
    "BATCH",
    "SINGLES",
    "Rounds",
    "Sizes",
    "as_whole_numbers",
    "medians",
    "new_rounds",
    "noise_of",
    "submit_by_callers",
    "submit_singly",
]

BATCH = 500
SINGLES = 1000
THREADS = 64
CALLS_PER_THREAD = 50
MOST_NOISE = 2.0
Rounds = defaultdict[str, list[float]]
"""Name of a figure → its value in each round."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    messages: int
    lanes: int
    rounds: int
    most_lanes: int
    """Redis: the largest number of lanes with one message each."""


def new_rounds() -> Rounds:
    return defaultdict(list)


def submit_singly(rounds: Rounds, scheduler: Scheduler, sizes: Sizes) -> None:
    """Measure one caller with one message per call."""
    rate = ours.submit_singly(scheduler, min(SINGLES, sizes.messages), sizes.lanes)
    rounds["submit_one_rate"].append(rate)


def submit_by_callers(rounds: Rounds, scheduler: Scheduler, sizes: Sizes) -> None:
    """Measure 64 callers with one message per call."""
    rate = ours.submit_by_threads(scheduler, THREADS * CALLS_PER_THREAD, sizes.lanes, THREADS)
    rounds["submit_64_rate"].append(rate)


def medians(rounds: Rounds) -> dict[str, int]:
    return {name: round(statistics.median(rates)) for name, rates in rounds.items()}


def as_whole_numbers(rounds: Rounds) -> dict[str, list[int]]:
    return {name: [round(rate) for rate in rates] for name, rates in rounds.items()}


def noise_of(*same: Collection[float]) -> dict[str, Any]:
    """The fastest of several equal measurements over the slowest; above 2, the machine was busy."""
    noise = max(max(rates) / min(rates) for rates in same)
    return {"noise": round(noise, 2), "quiet": noise <= MOST_NOISE}
