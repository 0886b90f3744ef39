"""One run on Redis or Valkey: ours, the raw limit and the neighbours, on servers of one kind and setting.

Figures that are compared with the raw limit are measured in rounds, because machines are noisy: ours and raw
in turn, each first in every other round, on fresh servers. A figure is the median of its rounds. Before each
part and at the end there is the same short raw drain. `noise` is the fastest raw drain over the slowest. If
it is above 2, `quiet` is false: measure again before you believe the figures.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import ours
from benchmarks.extras import require, version_of
from benchmarks.redis.peers import PEERS, measure_peers
from benchmarks.redis.raw import RawQueue
from benchmarks.redis.server import NODE_SIZE, OUR_NODE_SIZE, SETTINGS, Server, find_binary, running
from benchmarks.redis.targets import judge
from benchmarks.rounds import (
    BATCH,
    SINGLES,
    Rounds,
    Sizes,
    as_whole_numbers,
    medians,
    new_rounds,
    noise_of,
    submit_by_callers,
    submit_singly,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["measure"]

CONTENT = "x" * 400
"""The content of the messages whose memory is measured."""
NODE_SIZES = ("0", "300", "600", "1024", "4096")
"""Values of `stream-node-max-bytes`; 0 means no limit, 4096 is the servers' default."""
OTHER_DURABILITIES = {
    "drain_rate_always": {"appendfsync": "always"},
    "drain_rate_no_aof": {"appendonly": "no"},
}
OURS = {NODE_SIZE: OUR_NODE_SIZE}
AT_ONCE = 50_000
"""The most messages that are made before the clock starts; a million would take a gigabyte."""
YARDSTICK = 10_000
"""The number of messages in a short raw drain."""
FEW_ROUNDS = 3
"""The number of rounds for secondary figures."""


def measure(sizes: Sizes, progress: Callable[[str], None], server_binary: Path | None) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    for module, package in PEERS.items():
        require(module, package)
    binary = find_binary(server_binary)
    with running(binary) as server:
        about = server.about()
    yardstick: dict[str, int] = {}

    def begin(part: str) -> None:
        progress(part)
        yardstick[part] = round(_short_raw_drain(binary))

    begin("rounds")
    mine, raw = _rounds(binary, sizes, progress)
    begin("peers")
    peers = measure_peers(binary, sizes.messages, progress)
    begin("idle worker")
    with running(binary, OURS) as server:
        idle = ours.watch_idle_process(server.url, server.commands_processed)
    begin("durabilities")
    durabilities = _at_other_durabilities(binary, sizes, progress)
    begin("lanes")
    by_lanes = _by_lanes(binary, sizes, progress)
    begin("memory")
    memory = _memory(binary, sizes, progress)
    begin("end")
    figures: dict[str, Any] = {
        "server": about | {"settings": SETTINGS},
        "durability": SETTINGS["appendfsync"],
        **medians(mine),
        **durabilities,
        "drain_rate_by_lanes": by_lanes,
        **ours.percentiles(idle.latencies),
        "probes": len(idle.latencies),
        "idle_cpu_percent": round(idle.cpu_percent, 2),
        "idle_commands_per_s": round(idle.counted_per_s, 2),
        **memory,
        "raw": medians(raw),
        "peers": peers,
        **noise_of(raw["drain_rate"], yardstick.values()),
        "yardstick": yardstick,
        "each_round": {"ours": as_whole_numbers(mine), "raw": as_whole_numbers(raw)},
    }
    return figures | judge(figures) | {"versions": _versions()}


def _short_raw_drain(binary: Path) -> float:
    """Measure how fast the machine is right now, with whatever else runs on it."""
    with running(binary) as server:
        direct = RawQueue(server.client, YARDSTICK)
        direct.submit_in_batches(YARDSTICK, BATCH)
        return direct.drain(YARDSTICK)


def _rounds(binary: Path, sizes: Sizes, progress: Callable[[str], None]) -> tuple[Rounds, Rounds]:
    """Measure the rounds of ours and of raw, which are compared with each other."""
    mine, raw = new_rounds(), new_rounds()
    for number in range(sizes.rounds):
        for name, part in {"single submits": _round_of_singles, "batches, drain": _round_of_many}.items():
            progress(f"round {number + 1} of {sizes.rounds}: {name}")
            part(binary, sizes, mine, raw, raw_first=bool(number % 2))
    return mine, raw


def _round_of_singles(binary: Path, sizes: Sizes, mine: Rounds, raw: Rounds, *, raw_first: bool) -> None:
    """Measure one caller and 64 callers, and raw calls with one message."""
    with (
        running(binary, OURS) as server,
        running(binary) as other,
        closing(ours.open_scheduler(server.url)) as scheduler,
    ):
        direct = RawQueue(other.client, sizes.lanes)

        def one_raw() -> None:
            raw["submit_one_rate"].append(direct.submit_singly(min(SINGLES, sizes.messages)))

        one_ours = partial(submit_singly, mine, scheduler, sizes)
        many_ours = partial(submit_by_callers, mine, scheduler, sizes)
        steps = (one_ours, one_raw, many_ours)
        for step in reversed(steps) if raw_first else steps:
            step()


def _round_of_many(binary: Path, sizes: Sizes, mine: Rounds, raw: Rounds, *, raw_first: bool) -> None:
    """Submit all messages in batches, then drain them; the same with the raw queue."""
    with running(binary, OURS) as server, running(binary) as other:
        direct = RawQueue(other.client, sizes.lanes)

        def fill_ours() -> None:
            mine["submit_batch_rate"].append(_fill(server, sizes.messages, sizes.lanes))

        def fill_raw() -> None:
            raw["submit_batch_rate"].append(direct.submit_in_batches(sizes.messages, BATCH))

        def drain_ours() -> None:
            mine["drain_rate"].append(_drain(server, sizes.messages, sizes.lanes))

        def drain_raw() -> None:
            raw["drain_rate"].append(direct.drain(sizes.messages))

        for pair in ((fill_ours, fill_raw), (drain_ours, drain_raw)):
            for step in reversed(pair) if raw_first else pair:
                step()


def _at_other_durabilities(binary: Path, sizes: Sizes, progress: Callable[[str], None]) -> dict[str, int]:
    rates = new_rounds()
    for number in range(min(sizes.rounds, FEW_ROUNDS)):
        for name, changed in OTHER_DURABILITIES.items():
            progress(f"{name}, round {number + 1}")
            rates[name].append(_fill_and_drain(binary, sizes.messages, sizes.lanes, changed))
    return medians(rates)


def _by_lanes(binary: Path, sizes: Sizes, progress: Callable[[str], None]) -> dict[str, int]:
    """Drain lanes with one message each, in several rounds unless it takes longer than the main figure."""
    rates = {}
    for lanes in (sizes.most_lanes // 100, sizes.most_lanes // 10, sizes.most_lanes):
        progress(f"drain of {lanes:,} lanes with one message each")
        rounds = min(sizes.rounds, FEW_ROUNDS) if lanes <= sizes.messages else 1
        found = [_fill_and_drain(binary, lanes, lanes, {}) for _ in range(rounds)]
        rates[str(lanes)] = round(statistics.median(found))
    return rates


def _memory(binary: Path, sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure the server's bytes per waiting message: in the lanes of the main figure, and one per lane."""
    found = {}
    for size in NODE_SIZES:
        progress(f"memory, stream-node-max-bytes {size}")
        found[size] = {
            "main": _bytes_per_message(binary, sizes.messages, sizes.lanes, size),
            "one_per_lane": _bytes_per_message(binary, sizes.lanes, sizes.lanes, size),
        }
    used = found[OUR_NODE_SIZE]
    return {
        "stream_node_max_bytes": int(OUR_NODE_SIZE),
        "bytes_per_waiting_message": used["main"],
        "bytes_per_waiting_message_one_per_lane": used["one_per_lane"],
        "bytes_by_stream_node_max_bytes": found,
    }


def _bytes_per_message(binary: Path, messages: int, lanes: int, node_size: str) -> int:
    with running(binary, {NODE_SIZE: node_size}) as server:
        with closing(ours.open_scheduler(server.url)) as scheduler:
            before = server.used_memory()
            ours.submit_in_batches(scheduler, ours.make_messages(messages, lanes, content=CONTENT), BATCH)
        return round((server.used_memory() - before) / messages)


def _fill_and_drain(binary: Path, messages: int, lanes: int, changed: dict[str, str]) -> float:
    with running(binary, OURS | changed) as server:
        _fill(server, messages, lanes)
        return _drain(server, messages, lanes)


def _fill(server: Server, messages: int, lanes: int) -> float:
    seconds = 0.0
    with closing(ours.open_scheduler(server.url)) as scheduler:
        for start in range(0, messages, AT_ONCE):
            many = ours.make_messages(min(AT_ONCE, messages - start), lanes, start)
            seconds += len(many) / ours.submit_in_batches(scheduler, many, BATCH)
    return messages / seconds


def _drain(server: Server, messages: int, lanes: int) -> float:
    rate = ours.drain_by_process(server.url, messages)
    with closing(ours.open_scheduler(server.url)) as scheduler:
        counts = scheduler.observe.counts().all_tasks_summary
        statuses = {item.status for lane in (0, lanes - 1) for item in scheduler.status(f"user-{lane}")}
    if (counts.completed, counts.total, statuses) != (messages, messages, {"completed"}):
        raise SystemExit(f"the worker left {counts} of {messages} messages")
    return rate


def _versions() -> dict[str, str | None]:
    packages = ["reverie", "redis", "hiredis", *PEERS.values()]
    return {name: version_of(name) for name in packages}
