"""The panels of the chart of a run on Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chart import OURS, PEER, RAW, Target
from benchmarks.redis.targets import BYTES_PER_MESSAGE

if TYPE_CHECKING:
    from benchmarks.chart import Bar, Panel

__all__ = ["panels", "title"]


def panels(figures: dict[str, Any]) -> list[Panel]:
    """Panels of submit, drain, latency, lanes and memory: ours, the raw limit and the neighbours."""
    return [
        _singles(figures),
        _batches(figures),
        _drain(figures),
        _latency(figures),
        _lanes(figures),
        _memory(figures),
    ]


def title(figures: dict[str, Any]) -> str:
    """The chart's title: what was measured, and on what."""
    versions, server = figures["versions"], figures["server"]
    peers = ", ".join(f"{name} {versions[name]}" for name in figures["peers"])
    return (
        f"Reverie {versions['reverie']} on {server['name'].capitalize()} {server['version']}, "
        f"appendfsync {figures['durability']}, {figures['cpu_count']} cores, Python {figures['python']}\n"
        f"raw limit: one stream, batches of 500, statuses written; {peers}, each at the best of its settings"
        + ("" if figures["quiet"] else "\nThe machine was not quiet: measure again before you believe this.")
    )


def _rate(name: str, rate: int, colour: str) -> Bar:
    return name, rate, f"{rate:,}", colour


def _peers(figures: dict[str, Any], key: str) -> list[Bar]:
    return [_rate(name, peer[key], PEER) for name, peer in figures["peers"].items()]


def _singles(figures: dict[str, Any]) -> Panel:
    bars = [
        _rate("Reverie, one caller", figures["submit_one_rate"], OURS),
        _rate("Reverie, 64 callers", figures["submit_64_rate"], OURS),
        _rate("raw limit, one caller", figures["raw"]["submit_one_rate"], RAW),
        *_peers(figures, "submit_one_rate"),
    ]
    return "Submit, one message per call (messages/s)", bars, []


def _batches(figures: dict[str, Any]) -> Panel:
    raw = figures["raw"]["submit_batch_rate"]
    bars = [_rate("Reverie", figures["submit_batch_rate"], OURS), _rate("raw limit", raw, RAW)]
    return "Submit, batches of 500 (messages/s)", bars, [Target(0.5 * raw, "0.5 of raw")]


def _drain(figures: dict[str, Any]) -> Panel:
    raw = figures["raw"]["drain_rate"]
    bars = [
        _rate("Reverie", figures["drain_rate"], OURS),
        _rate("Reverie, fsync always", figures["drain_rate_always"], OURS),
        _rate("Reverie, no AOF", figures["drain_rate_no_aof"], OURS),
        _rate("raw limit", raw, RAW),
        *_peers(figures, "drain_rate"),
    ]
    best = max(peer["drain_rate"] for peer in figures["peers"].values())
    targets = [Target(0.4 * raw, "0.4 of raw"), Target(5 * best, "5 times the best peer")]
    heading = f"Drain {figures['messages']:,} messages over {figures['lanes']:,} lanes (messages/s)"
    return heading, bars, targets


def _latency(figures: dict[str, Any]) -> Panel:
    p50s = {name: peer["latency_p50_ms"] for name, peer in figures["peers"].items()}
    mine = figures["latency_p50_ms"]
    bars: list[Bar] = [("Reverie", mine, f"{mine:.2f} (p99: {figures['latency_p99_ms']:.2f})", OURS)]
    bars += [(name, p50, f"{p50:.2f}", PEER) for name, p50 in p50s.items()]
    heading = "Submit to handler start, idle worker, p50 (ms)"
    return heading, bars, [Target(1.5 * min(p50s.values()), "1.5 times the best peer")]


def _lanes(figures: dict[str, Any]) -> Panel:
    rates = figures["drain_rate_by_lanes"]
    bars = [_rate(f"{int(lanes):,} lanes", rate, OURS) for lanes, rate in rates.items()]
    first = next(iter(rates.values()))
    return "Drain, one message in each lane (messages/s)", bars, [Target(0.8 * first, "0.8 of the first")]


def _memory(figures: dict[str, Any]) -> Panel:
    used = figures["stream_node_max_bytes"]
    bars = [
        _rate(
            f"{size} (used)" if int(size) == used else size, found["main"], OURS if int(size) == used else RAW
        )
        for size, found in figures["bytes_by_stream_node_max_bytes"].items()
    ]
    alone = figures["bytes_per_waiting_message_one_per_lane"]
    bars.append(_rate(f"{used}, one message per lane", alone, OURS))
    heading = "Bytes per waiting message, by stream-node-max-bytes"
    return heading, bars, [Target(BYTES_PER_MESSAGE, f"{BYTES_PER_MESSAGE:,}")]
