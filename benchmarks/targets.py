"""The targets, and whether a run reached them."""

from __future__ import annotations

from typing import Any

__all__ = ["judged", "ratios", "to_best"]


def judged(aims: dict[str, tuple[float, str, float]]) -> dict[str, Any]:
    """Each target with the value that was measured, the bound, and whether it is reached."""
    return {
        name: {"value": round(value, 4), "target": f"{sign} {bound:g}", "reached": _holds(value, sign, bound)}
        for name, (value, sign, bound) in aims.items()
    }


def to_best(figures: dict[str, Any], peers: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Our rates divided by the best rate among the neighbours."""
    return {
        name: figures[f"{name}_rate"] / max(peer[f"{name}_rate"] for peer in peers.values())
        for name in ("drain", "submit_one")
    }


def ratios(exact: dict[str, float]) -> dict[str, float]:
    return {name: round(ratio, 4) for name, ratio in exact.items()}


def _holds(value: float, sign: str, bound: float) -> bool:
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound}[sign]
