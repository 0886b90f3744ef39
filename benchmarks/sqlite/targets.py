"""The targets on SQLite."""

from __future__ import annotations

from typing import Any

from benchmarks.targets import judged, ratios, to_best

__all__ = ["judge"]


def judge(figures: dict[str, Any]) -> dict[str, Any]:
    """The ratios of a run, and each target with its value and whether it is reached."""
    raw = figures["raw"]
    to_raw = {
        "drain": figures["drain_rate"] / raw["drain_rate"],
        "submit_one": figures["submit_one_rate"] / raw["submit_one_rate"],
        "submit_64": figures["submit_64_rate"] / raw["submit_one_rate"],
        "submit_batch": figures["submit_batch_rate"] / raw["submit_batch_rate"],
    }
    to_peer = to_best(figures, figures["peers"])
    aims = {
        "drain_to_raw": (to_raw["drain"], ">=", 0.35),
        "drain_to_best_peer": (to_peer["drain"], ">=", 8.0),
        "submit_one_to_raw_single": (to_raw["submit_one"], ">=", 0.5),
        "submit_64_to_raw_single": (to_raw["submit_64"], ">=", 2.0),
        "latency_p50_ms": (figures["latency_p50_ms"], "<=", 3.0),
        "idle_cpu_percent": (figures["idle_cpu_percent"], "<", 1.0),
    }
    return {
        "ratio_to_raw": ratios(to_raw),
        "ratio_to_best_peer": ratios(to_peer),
        "ratio_to_best_peer_full": ratios(to_best(figures, figures["peers_full"])),
        "targets": judged(aims),
    }
