"""The chart of a conversation's calls around a rate limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import AIM, OURS, PEER
from benchmarks.extras import require

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["draw_timeline"]


def draw_timeline(path: Path, figures: dict[str, Any]) -> None:
    """Draw the calls in flight and the calls a second, over time."""
    require("matplotlib", "matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot", "matplotlib")
    seconds, in_flight, calls = zip(*figures["concurrency_timeline"], strict=True)
    figure, place = pyplot.subplots(figsize=(13, 5), layout="constrained")
    start, end = figures["limited_from_to_s"]
    sizes = figures["sizes"]
    words = f"rate limit: {sizes['limited_to']} calls at once, Retry-After {sizes['retry_after_s']:g} s"
    place.axvspan(start, end, color=AIM, alpha=0.12, label=words)
    place.plot(seconds, in_flight, color=OURS, linewidth=2, label="calls in flight, mean of each second")
    place.plot(seconds, calls, color=PEER, linewidth=1.2, label="calls a second that succeed")
    recovered_s = figures["recovered_s"]
    if recovered_s is not None:
        place.axvline(end + recovered_s, ymax=0.9, color=AIM, linestyle="--", linewidth=1)
        place.annotate(
            f"90 % of the former rate\nafter {recovered_s:g} s",
            (end + recovered_s, 0.04),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            color=AIM,
            fontsize=9,
        )
    place.set_xlabel("seconds")
    place.set_ylim(0, 1.25 * max(*in_flight, *calls))
    place.set_xlim(0, max(seconds) + 1)
    place.spines[["top", "right"]].set_visible(False)
    place.legend(loc="upper right", fontsize=9, ncols=3, frameon=False)
    figure.suptitle(_title(figures), fontsize=12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _title(figures: dict[str, Any]) -> str:
    return (
        f"Reverie {figures['versions']['reverie']} on SQLite, one worker, a model that answers in "
        f"{figures['sizes']['hold_s']:g} s, llm.max_concurrency {figures['max_concurrency']}, "
        f"{figures['cpu_count']} cores, Python {figures['python']}"
    )
