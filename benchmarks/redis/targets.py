"""The targets on Redis."""

from __future__ import annotations

from typing import Any

from benchmarks.targets import judged, ratios, to_best

__all__ = ["BYTES_PER_MESSAGE", "judge"]

BYTES_PER_MESSAGE = 1600


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
    soonest = min(peer["latency_p50_ms"] for peer in figures["peers"].values())
    to_peer["latency_p50"] = figures["latency_p50_ms"] / soonest
    few, *_, most = figures["drain_rate_by_lanes"].values()
    aims = {
        "drain_to_raw": (to_raw["drain"], ">=", 0.4),
        "drain_to_best_peer": (to_peer["drain"], ">=", 5.0),
        "submit_batch_to_raw": (to_raw["submit_batch"], ">=", 0.5),
        "latency_p50_to_best_peer": (to_peer["latency_p50"], "<=", 1.5),
        "drain_most_lanes_to_fewest": (most / few, ">=", 0.8),
        "idle_commands_per_s": (figures["idle_commands_per_s"], "<=", 20.0),
        "bytes_per_waiting_message": (figures["bytes_per_waiting_message"], "<=", BYTES_PER_MESSAGE),
    }
    return {
        "ratio_to_raw": ratios(to_raw),
        "ratio_to_best_peer": ratios(to_peer),
        "targets": judged(aims),
    }
