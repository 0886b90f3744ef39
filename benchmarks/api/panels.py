"""The panels of the chart of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import OURS, RAW, Target

if TYPE_CHECKING:
    from benchmarks.chart import Bar, Panel

__all__ = ["panels", "title"]


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Panels of adding and searching: rates and how long an answer takes."""
    many = figures["connections"]
    half = round(figures["bare"]["add_rps"] / 2)
    return [
        (f"Add, {many} connections (requests/s)", _rates(figures, "add"), [Target(half, "half of bare")]),
        (f"Search, {many} connections (requests/s)", _rates(figures, "search"), []),
        ("Add, 8 connections, p99 (ms)", _times(figures, "add_8"), [Target(50, "50 ms")]),
        (f"Search, {many} connections, p99 (ms)", _times(figures, "search"), []),
    ]


def title(figures: dict[str, Any]) -> str:
    """The chart's title: what was measured, and on what."""
    versions = figures["versions"]
    return (
        f"Reverie {versions['reverie']} over HTTP, durability {figures['durability']}, one server process, "
        f"{figures['cpu_count']} cores shared with wrk and the worker, Python {figures['python']}\n"
        f"bare: FastAPI {versions['fastapi']} on uvicorn {versions['uvicorn']}, the same request models and "
        "envelope, empty functions"
    )


def _ways(figures: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return [
        (f"{name}, worker {worker}", figures[backend][worker])
        for backend, name in (("sqlite", "SQLite"), ("redis", "Redis"))
        for worker in ("outside", "inside")
    ]


def _rates(figures: dict[str, Any], name: str) -> list[Bar]:
    bare = figures["bare"][f"{name}_rps"]
    bars: list[Bar] = [("bare", bare, f"{bare:,}", RAW)]
    for way, found in _ways(figures):
        rate = found[f"{name}_rps"]
        bars.append((way, rate, f"{rate:,} ({found[f'{name}_ratio_to_bare']:.2f})", OURS))
    return bars


def _times(figures: dict[str, Any], name: str) -> list[Bar]:
    bars: list[Bar] = []
    for way, found in _ways(figures):
        p50, p99 = found[f"{name}_p50_ms"], found[f"{name}_p99_ms"]
        bars.append((way, p99, f"{p99:.1f} (p50 {p50:.1f})", OURS))
    return bars
