"""What was aimed at, and whether a run reached it."""

from __future__ import annotations

from typing import Any

__all__ = ["judge", "judged"]


def judge(figures: dict[str, Any]) -> dict[str, Any]:
    """The ratios of a run, and each target with its value and whether it is reached."""
    raw = figures["raw"]
    to_raw = {
        "drain": figures["drain_rate"] / raw["drain_rate"],
        "submit_one": figures["submit_one_rate"] / raw["submit_one_rate"],
        "submit_64": figures["submit_64_rate"] / raw["submit_one_rate"],
        "submit_batch": figures["submit_batch_rate"] / raw["submit_batch_rate"],
    }
    to_peer = _to_best(figures, figures["peers"])
    aims = {
        "drain_to_raw": (to_raw["drain"], ">=", 0.35),
        "drain_to_best_peer": (to_peer["drain"], ">=", 8.0),
        "submit_one_to_raw_single": (to_raw["submit_one"], ">=", 0.5),
        "submit_64_to_raw_single": (to_raw["submit_64"], ">=", 2.0),
        "latency_p50_ms": (figures["latency_p50_ms"], "<=", 3.0),
        "idle_cpu_percent": (figures["idle_cpu_percent"], "<", 1.0),
    }
    return {
        "ratio_to_raw": {name: round(ratio, 4) for name, ratio in to_raw.items()},
        "ratio_to_best_peer": {name: round(ratio, 3) for name, ratio in to_peer.items()},
        "ratio_to_best_peer_full": {
            name: round(ratio, 3) for name, ratio in _to_best(figures, figures["peers_full"]).items()
        },
        "targets": judged(aims),
    }


def judged(aims: dict[str, tuple[float, str, float]]) -> dict[str, Any]:
    """Each aim with what was found, what was wanted, and whether it is reached."""
    return {
        name: {"value": round(value, 4), "target": f"{sign} {bound:g}", "reached": _holds(value, sign, bound)}
        for name, (value, sign, bound) in aims.items()
    }


def _to_best(figures: dict[str, Any], peers: dict[str, dict[str, int]]) -> dict[str, float]:
    return {
        name: figures[f"{name}_rate"] / max(peer[f"{name}_rate"] for peer in peers.values())
        for name in ("drain", "submit_one")
    }


def _holds(value: float, sign: str, bound: float) -> bool:
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound}[sign]
