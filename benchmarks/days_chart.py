"""The chart of a simulated user: items, tokens and recall over the days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import AIM, OURS, PEER
from benchmarks.extras import require

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["draw_days"]


def draw_days(path: Path, figures: dict[str, Any]) -> None:
    """Draw how many items there are, what they have cost, and how many facts are found, day by day."""
    require("matplotlib", "matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot", "matplotlib")
    course, days = figures["course"], range(1, figures["days"] + 1)
    figure, (items, tokens, recall) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    items.plot(days, course["turns"], color=AIM, linestyle="--", linewidth=1, label="turns said")
    items.plot(days, course["kept"], color=PEER, linewidth=1.2, label="items kept, with superseded ones")
    items.plot(days, course["items"], color=OURS, linewidth=2, label="living items in long-term memory")
    items.set_title("items")
    tokens.plot(days, [count / 1000 for count in course["tokens"]], color=OURS, linewidth=2)
    tokens.set_title(f"thousand tokens, {figures['tokens_per_turn']:g} a turn")
    asked, found = zip(*course["recall"], strict=True)
    recall.plot([day + 1 for day in asked], found, color=OURS, linewidth=2, marker="o")
    recall.set_title("share of all facts so far found among ten hits")
    recall.set_ylim(0, 1.05)
    for place in (items, tokens, recall):
        place.set_xlabel("day")
        place.set_xlim(0, figures["days"] + 1)
        place.spines[["top", "right"]].set_visible(False)
    for place in (items, tokens):
        place.set_ylim(bottom=0)
    items.legend(loc="upper left", fontsize=9, frameon=False)
    figure.suptitle(
        f"Reverie {figures['versions']['reverie']}: a simulated user of {figures['days']} days, upkeep with "
        f"a scripted model, compression ratio {figures['compression_ratio']:g}",
        fontsize=12,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
