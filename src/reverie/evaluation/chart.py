"""Draw the recall of an evaluation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reverie.errors import InvalidSettingError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_chart", "draw_chart"]

COLOURS = ("#9aa5ad", "#2f6f9f", "#b7cbda", "#d9a441")


def check_chart(path: Path) -> None:
    """Refuse a path at which the chart could not be drawn, before anything is measured."""
    if path.suffix != ".png":
        raise InvalidSettingError("--chart", str(path), "must end with .png")
    if not path.absolute().parent.is_dir():
        raise InvalidSettingError("--chart", str(path), "its folder does not exist")
    _matplotlib("matplotlib")


def draw_chart(path: Path, figures: dict[str, Any]) -> None:
    """Draw the recall at each cut as bars, for all questions and for each group of them."""
    _matplotlib("matplotlib").use("Agg")
    pyplot = _matplotlib("matplotlib.pyplot")
    groups = next(figures[name] for name in ("by_kind", "by_conversation") if name in figures)
    rows = {"all": figures["all"]} | groups
    rows = {name: scores for name, scores in rows.items() if scores["n"]}
    cuts = [name for name in figures["all"] if name.startswith("recall_at_")]
    height = 0.8 / len(cuts)
    figure, place = pyplot.subplots(figsize=(9, 1.2 + 0.8 * len(rows)), layout="constrained")
    for number, cut in enumerate(cuts):
        values = [100 * scores[cut] for scores in rows.values()]
        bars = place.barh(
            [row + number * height for row in range(len(rows))],
            values,
            height,
            color=COLOURS[number % len(COLOURS)],
            label=cut.replace("recall_at_", "recall@"),
        )
        place.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    names = [f"{name} ({scores['n']})" for name, scores in rows.items()]
    place.set_yticks([row + 0.4 - height / 2 for row in range(len(rows))], names)
    place.invert_yaxis()
    place.set_xlim(0, 108)
    place.set_xlabel("share of the turns that answer a question, in percent")
    place.legend(fontsize=8, loc="lower right")
    place.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _matplotlib(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError("bench") from error
