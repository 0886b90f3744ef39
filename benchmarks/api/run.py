"""Measure the HTTP API: adding and searching over many connections, on SQLite and on Redis.

Each round measures the server that does nothing and then each of ours, on fresh files and servers, in another
order. A figure is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.api.load import ask_once, find_wrk, send
from benchmarks.api.servers import bare_server, server
from benchmarks.defaults import shipped_settings
from benchmarks.extras import version_of
from benchmarks.memory import load
from benchmarks.memory_texts import questions, turns_of
from benchmarks.redis.server import NODE_SIZE, OUR_NODE_SIZE, find_binary, running
from benchmarks.rounds import noise_of
from benchmarks.targets import judged
from reverie import AsyncScheduler
from reverie.evaluation.subject import until_indexed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.api.load import Measured

__all__ = ["Sizes", "measure"]

MANY, FEW = 64, 8
"""How many connections there are at once."""
WAYS = [(backend, worker) for backend in ("sqlite", "redis") for worker in ("outside", "inside")]
PATHS = {"add": "/product/add", "search": "/product/search"}
TURNS, QUESTIONS = 50, 20
"""Different requests of each user."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    seconds: float
    """How long each load lasts."""
    users: int
    memories: int
    """Memories of each user, before anything is measured."""
    rounds: int

    @classmethod
    def scaled(cls, scale: float, rounds: int) -> Sizes:
        """Sizes that are smaller by a factor, but large enough to measure anything at all."""
        return cls(max(1.0, 8 * scale), max(4, round(100 * scale)), max(10, round(200 * scale)), rounds)


@dataclass
class Rounds:
    """What was seen of one server, round by round: name of a load → what wrk saw."""

    loads: dict[str, list[Measured]] = field(default_factory=dict)

    def note(self, name: str, seen: Measured) -> None:
        self.loads.setdefault(name, []).append(seen)

    def rates(self, name: str) -> list[float]:
        return [seen.rps for seen in self.loads[name]]

    def figures(self) -> dict[str, float]:
        """The median of each figure."""
        return {
            key: value
            for name, seen in self.loads.items()
            for key, value in (
                (f"{name}_rps", round(statistics.median(one.rps for one in seen))),
                (f"{name}_p50_ms", round(statistics.median(one.p50_ms for one in seen), 2)),
                (f"{name}_p99_ms", round(statistics.median(one.p99_ms for one in seen), 2)),
            )
        }


def measure(
    scale: float, rounds: int, progress: Callable[[str], None], binary: Path | None = None
) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    find_wrk()
    load_average = os.getloadavg()[0]
    sizes = Sizes.scaled(scale, rounds)
    seen = {name: Rounds() for name in ("bare", *("_".join(way) for way in WAYS))}
    with tempfile.TemporaryDirectory() as folder:
        bodies = _write_bodies(Path(folder), sizes)
        order = [None, *WAYS]
        for number in range(rounds):
            for way in order:
                name = "bare" if way is None else "_".join(way)
                progress(f"round {number + 1} of {rounds}: {name.replace('_', ', worker ')}")
                if way is None:
                    _load_bare(seen[name], bodies, sizes)
                else:
                    _load_ours(seen[name], way, bodies, sizes, find_binary(binary))
            order = [*order[1:], order[0]]
    return _figures(scale, sizes, seen) | _quietness(seen["bare"], load_average)


def _quietness(bare: Rounds, load_average: float) -> dict[str, Any]:
    """How even the rounds of bare were, how busy the machine was before, and whether the run is worth it."""
    noise = noise_of(bare.rates("add"), bare.rates("search"))
    is_idle = load_average < (os.cpu_count() or 1)
    return noise | {"quiet": noise["quiet"] and is_idle, "load_average": round(load_average, 2)}


def _figures(scale: float, sizes: Sizes, seen: dict[str, Rounds]) -> dict[str, Any]:
    bare = seen["bare"].figures()
    ours = {
        backend: {
            worker: found | _ratios(found, bare)
            for worker in ("outside", "inside")
            for found in [seen[f"{backend}_{worker}"].figures()]
        }
        for backend in ("sqlite", "redis")
    }
    aims = {
        f"{backend}_{name}": (value, sign, bound)
        for backend, found in ours.items()
        for name, value, sign, bound in (
            ("add_ratio_to_bare", found["outside"]["add_ratio_to_bare"], ">=", 0.5),
            ("add_8_p99_ms", max(found[worker]["add_8_p99_ms"] for worker in found), "<=", 50),
        )
    }
    return {
        "scale": scale,
        "sizes": {name: getattr(sizes, name) for name in Sizes.__dataclass_fields__},
        "connections": MANY,
        "durability": shipped_settings("memory://").queue.sqlite_durability,
        **ours["sqlite"]["outside"],
        "ratio_to_bare": ours["sqlite"]["outside"]["add_ratio_to_bare"],
        "bare": bare,
        **ours,
        "each_round": {
            name: {load: [round(rate) for rate in rounds.rates(load)] for load in rounds.loads}
            for name, rounds in seen.items()
        },
        "targets": judged(aims),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("reverie", "fastapi", "pydantic", "uvicorn")},
    }


def _ratios(found: dict[str, float], bare: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ratio_to_bare": round(found[f"{name}_rps"] / bare[f"{name}_rps"], 3) for name in PATHS}


def _write_bodies(folder: Path, sizes: Sizes) -> dict[str, Path]:
    """Write the bodies of the requests, one in each line: users take turns."""
    said = [list(turns_of(user, TURNS)) for user in range(sizes.users)]
    asked = [questions(user, QUESTIONS, sizes.memories) for user in range(sizes.users)]
    bodies = {
        "add": [
            {"user_id": f"user-{user}", "messages": [{"role": "user", "content": turns[index].text}]}
            for index in range(TURNS)
            for user, turns in enumerate(said)
        ],
        "search": [
            {"user_id": f"user-{user}", "query": texts[index]}
            for index in range(QUESTIONS)
            for user, texts in enumerate(asked)
        ],
    }
    files = {}
    for name, requests in bodies.items():
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(body) + "\n" for body in requests))
    return files


def _load_bare(rounds: Rounds, bodies: dict[str, Path], sizes: Sizes) -> None:
    with bare_server() as address:
        for name in PATHS:
            rounds.note(name, _load(address, name, bodies, MANY, sizes))


def _load_ours(
    rounds: Rounds, way: tuple[str, str], bodies: dict[str, Path], sizes: Sizes, binary: Path
) -> None:
    """Search first, because adding leaves work behind; then add over few connections, then over many."""
    backend, worker = way
    with _place(backend, binary) as (url, folder):
        asyncio.run(_fill(url, sizes))
        with server(url, folder, worker=worker) as address:
            rounds.note("search", _load(address, "search", bodies, MANY, sizes))
            rounds.note("add_8", _load(address, "add", bodies, FEW, sizes))
            rounds.note("add", _load(address, "add", bodies, MANY, sizes))


def _load(address: str, what: str, bodies: dict[str, Path], connections: int, sizes: Sizes) -> Measured:
    """Send requests to a server: first until it is warm, then those that count."""
    path, file = PATHS[what], bodies[what]
    ask_once(address, path, file)
    if sizes.seconds > 1:
        send(address, path, file, connections=connections, seconds=1)
    return send(address, path, file, connections=connections, seconds=sizes.seconds)


@contextmanager
def _place(backend: str, binary: Path) -> Iterator[tuple[str, Path]]:
    """A URL of an empty queue, and the folder of its data."""
    if backend == "redis":
        with running(binary, {NODE_SIZE: OUR_NODE_SIZE}) as opened:
            yield opened.url, opened.folder
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/reverie.db", Path(folder)


async def _fill(url: str, sizes: Sizes) -> None:
    """Load memories of each user, and wait until they are indexed."""
    scheduler = AsyncScheduler(settings=shipped_settings(url))
    try:
        await scheduler.start()
        users = [(f"user-{user}", user) for user in range(sizes.users)]
        await load(scheduler.runtime.store, users, sizes.memories)
        await until_indexed(scheduler)
    finally:
        await scheduler.stop()
