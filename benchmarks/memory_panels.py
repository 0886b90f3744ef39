"""The panels of the chart of memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import OURS, PEER, Target

if TYPE_CHECKING:
    from benchmarks.chart import Bar, Panel

__all__ = ["panels", "title"]


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Panels of search, adding, the cost of neighbours, and room."""
    sizes = figures["sizes"]
    room = figures["bytes_per_small_tenant"]
    alone, among = figures["search_alone_p50_ms"], figures["search_among_p50_ms"]
    return [
        ("Search, embedding included (ms)", _searches(figures), [Target(10, "p50 10 ms at 10,000 items")]),
        ("Add (turns/s)", _adding(figures), [Target(2000, "2,000")]),
        (
            f"The same searches of one tenant of {sizes['items']:,} items, p50 (ms)",
            [
                ("alone in its file", alone, f"{alone:.2f}", OURS),
                (f"among {sizes['tenants']} tenants", among, f"{among:.2f}", OURS),
            ],
            [],
        ),
        (
            f"Room of a tenant of {sizes['small_items']} items, {sizes['small_tenants']:,} tenants (bytes)",
            [("Reverie", room, f"{room:,}", OURS)],
            [Target(15_000, "15,000")],
        ),
    ]


def title(figures: dict[str, Any]) -> str:
    """The chart's title: what was measured, and on what."""
    versions, packages = figures["versions"], {"chromadb": "chromadb", "mem0": "mem0ai"}
    peers = [f"{name} {versions[packages[name]]}" for name, found in figures["peers"].items() if found]
    beside = f"\n{' and '.join(peers)} with one tenant and wordllama vectors" if peers else ""
    return (
        f"Reverie {versions['reverie']} on SQLite, embedding {figures['embedding']}, durability "
        f"{figures['durability']}, {figures['cpu_count']} cores, Python {figures['python']}{beside}"
    )


def _searches(figures: dict[str, Any]) -> list[Bar]:
    sizes = figures["sizes"]
    kinds = {"search_1000": sizes["few"], "search": sizes["items"], "search_100000": sizes["many"]}
    bars: list[Bar] = [
        _search_bar(f"Reverie, {items:,} items", figures, name, OURS) for name, items in kinds.items()
    ]
    return bars + [
        _search_bar(f"{name}, {found['items']:,} items", found, "search", PEER)
        for name, found in figures["peers"].items()
        if found
    ]


def _search_bar(name: str, figures: dict[str, Any], key: str, colour: str) -> Bar:
    p50, p99 = figures[f"{key}_p50_ms"], figures[f"{key}_p99_ms"]
    return (name, p50, f"{p50:.1f} (p99 {p99:.1f})", colour)


def _adding(figures: dict[str, Any]) -> list[Bar]:
    ours = figures["add_turns_per_s"]
    return [
        ("Reverie", ours, f"{ours:,}", OURS),
        *(
            (name, found["add_turns_per_s"], f"{found['add_turns_per_s']:,}", PEER)
            for name, found in figures["peers"].items()
            if found
        ),
    ]
