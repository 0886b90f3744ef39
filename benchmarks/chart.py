"""Draw the figures of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.extras import require

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OURS", "PEER", "RAW", "Bar", "Panel", "Target", "check", "draw"]

OURS, RAW, PEER, AIM = "#2f6f9f", "#9aa5ad", "#d9a441", "#b03a2e"
Bar = tuple[str, float, str, str]
"""A bar's name, its length, the text at its end, its colour."""


class Target(NamedTuple):
    """A line at a target's value, and the text beside it."""

    where: float
    words: str


Panel = tuple[str, list[Bar], list[Target]]
"""A panel's title, its bars, its targets."""


def check(path: Path) -> None:
    """Refuse a path at which the chart could not be drawn, before anything is measured."""
    require("matplotlib", "matplotlib")
    if path.suffix != ".png":
        raise SystemExit(f"{path} should end with .png")
    if not path.absolute().parent.is_dir():
        raise SystemExit(f"the folder of {path} does not exist")


def draw(path: Path, title: str, panels: list[Panel]) -> None:
    """Draw panels of bars, two in a row."""
    require("matplotlib", "matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot", "matplotlib")
    rows = (len(panels) + 1) // 2
    figure, places = pyplot.subplots(rows, 2, figsize=(13, 3.8 * rows + 0.4), layout="constrained")
    for place, panel in zip(places.flat, panels, strict=True):
        _draw_panel(place, *panel)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_panel(place: Any, title: str, bars: list[Bar], targets: list[Target]) -> None:
    names, lengths, texts, colours = zip(*bars, strict=True)
    drawn = place.barh(names, lengths, color=colours, height=0.6)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the line of a target may pass there
    place.bar_label(drawn, labels=texts, padding=4, fontsize=9, bbox=behind, zorder=3)
    # from top to bottom, and with bars of about the same height in all panels
    place.set_ylim(max(len(bars), 4) - 0.4 + 0.4 * len(targets), -0.6)
    longest = max(*lengths, *(target.where for target in targets))
    place.set_xlim(0, longest * 1.4)  # room for the figures at the ends
    for number, target in enumerate(sorted(targets)):
        place.axvline(target.where, color=AIM, linestyle="--", linewidth=1, zorder=0.5)
        place.annotate(
            f"target: {target.words}",
            (target.where, 0),
            xycoords=("data", "axes fraction"),
            xytext=(4, 3 + 12 * number),
            textcoords="offset points",
            color=AIM,
            fontsize=8,
            bbox=behind,
        )
    place.set_title(title, fontsize=11, loc="left")
    place.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    place.tick_params(axis="x", labelsize=8)
    place.spines[["top", "right"]].set_visible(False)
