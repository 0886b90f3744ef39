"""The figures of a run as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers import require

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check", "draw"]

OURS, RAW, PEER = "#2f6f9f", "#9aa5ad", "#d9a441"
Bar = tuple[str, float, str, str]
"""What it is, its length, what stands at its end, its colour."""


def check(path: Path) -> None:
    """Refuse before anything is measured what would fail at the end."""
    require("matplotlib", "matplotlib")
    if path.suffix != ".png":
        raise SystemExit(f"{path} should end with .png")
    if not path.absolute().parent.is_dir():
        raise SystemExit(f"the folder of {path} does not exist")


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw submit, drain and latency, ours beside raw SQLite and the neighbours."""
    require("matplotlib", "matplotlib").use("Agg")
    pyplot = require("matplotlib.pyplot", "matplotlib")
    figure, places = pyplot.subplots(2, 2, figsize=(13, 8), layout="constrained")
    panels = {
        "Submit, one message per call (messages/s)": _singles(figures),
        "Submit, batches of 500 (messages/s)": _ours_and_raw(figures, "submit_batch_rate"),
        f"Drain {figures['messages']:,} messages over {figures['lanes']:,} lanes (messages/s)": [
            *_ours_and_raw(figures, "drain_rate"),
            *_peers(figures, "drain_rate"),
        ],
        "Submit to handler start, idle worker in another process (ms)": _latency(figures),
    }
    for place, (title, bars) in zip(places.flat, panels.items(), strict=True):
        _panel(place, title, bars)
    figure.suptitle(_title(figures), fontsize=12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(place: Any, title: str, bars: list[Bar]) -> None:
    names, lengths, texts, colours = zip(*bars, strict=True)
    drawn = place.barh(names, lengths, color=colours, height=0.6)
    place.bar_label(drawn, labels=texts, padding=4, fontsize=9)
    place.set_ylim(max(len(bars), 4) - 0.4, -0.6)  # downwards, and bars of about the same height everywhere
    place.set_xlim(0, max(lengths) * 1.4)  # room for the figures at the ends
    place.set_title(title, fontsize=11, loc="left")
    place.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    place.tick_params(axis="x", labelsize=8)
    place.spines[["top", "right"]].set_visible(False)


def _singles(figures: dict[str, Any]) -> list[Bar]:
    one, many = figures["submit_one_rate"], figures["submit_64_rate"]
    raw = figures["raw"]["submit_one_rate"]
    return [
        ("Reverie, one caller", one, f"{one:,}", OURS),
        ("Reverie, 64 callers", many, f"{many:,}", OURS),
        ("raw SQLite, one caller", raw, f"{raw:,}", RAW),
        *_peers(figures, "submit_one_rate"),
    ]


def _ours_and_raw(figures: dict[str, Any], key: str) -> list[Bar]:
    mine, raw = figures[key], figures["raw"][key]
    return [("Reverie", mine, f"{mine:,}", OURS), ("raw SQLite", raw, f"{raw:,}", RAW)]


def _peers(figures: dict[str, Any], key: str) -> list[Bar]:
    """Their better figure, and beside it the one at `synchronous = FULL` if that is another."""
    bars = []
    for name, best in figures["peers"].items():
        full = figures["peers_full"][name][key]
        text = f"{best[key]:,}" if full == best[key] else f"{best[key]:,} (FULL: {full:,})"
        bars.append((name, best[key], text, PEER))
    return bars


def _latency(figures: dict[str, Any]) -> list[Bar]:
    middle, slow = figures["latency_p50_ms"], figures["latency_p99_ms"]
    return [
        ("Reverie, p50", middle, f"{middle:.2f}", OURS),
        ("Reverie, p99", slow, f"{slow:.2f}", OURS),
    ]


def _title(figures: dict[str, Any]) -> str:
    versions = figures["versions"]
    peers = ", ".join(f"{name} {versions[name]}" for name in figures["peers"])
    return (
        f"Reverie {versions['reverie']} on SQLite {versions['sqlite of apsw']}, "
        f"durability {figures['durability']}, {figures['cpu_count']} cores, Python {figures['python']}\n"
        f"raw SQLite at the same durability; {peers} on SQLite {versions['sqlite of the peers']}, "
        "each at the better of its default and synchronous = FULL"
    )
