"""The panels of the chart of a run on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import OURS, PEER, RAW

if TYPE_CHECKING:
    from benchmarks.chart import Bar, Panel

__all__ = ["panels", "title"]


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Panels of submit, drain and latency: ours, raw SQLite and the neighbours."""
    drain = f"Drain {figures['messages']:,} messages over {figures['lanes']:,} lanes (messages/s)"
    return [
        ("Submit, one message per call (messages/s)", _singles(figures), []),
        ("Submit, batches of 500 (messages/s)", _ours_and_raw(figures, "submit_batch_rate"), []),
        (drain, [*_ours_and_raw(figures, "drain_rate"), *_peers(figures, "drain_rate")], []),
        ("Submit to handler start, idle worker in another process (ms)", _latency(figures), []),
    ]


def title(figures: dict[str, Any]) -> str:
    """The chart's title: what was measured, and on what."""
    versions = figures["versions"]
    peers = ", ".join(f"{name} {versions[name]}" for name in figures["peers"])
    return (
        f"Reverie {versions['reverie']} on SQLite {versions['sqlite of apsw']}, "
        f"durability {figures['durability']}, {figures['cpu_count']} cores, Python {figures['python']}\n"
        f"raw SQLite at the same durability; {peers} on SQLite {versions['sqlite of the peers']}, "
        "each at the better of its default and synchronous = FULL"
    )


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
    """Bars of the neighbours' better figures; the text adds that at `synchronous = FULL` if it differs."""
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
