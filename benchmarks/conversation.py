"""How fast conversations are kept and read for facts with a language model that takes a second to answer.

The model is scripted and has a process of its own, and so has the worker that reads buffers. Buffers are
loaded in bulk through the store's own `apply`; the rate of adding is measured through the whole product.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from benchmarks.defaults import shipped_settings
from benchmarks.extras import version_of
from benchmarks.memory import BATCH, add_turns
from benchmarks.memory_texts import turns_of
from benchmarks.process import WorkerProcess, worker_process
from benchmarks.scripted_model import FACT_EVERY, Report
from benchmarks.targets import judged
from reverie import AsyncScheduler
from reverie.effect import Buffer, Remember, Source
from reverie.memory.buffers import BufferKey, read_message
from reverie.memory.interface import Application
from reverie.message import Message
from reverie.models.tokens import tokens_in
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reverie.memory.interface import MemoryStore

__all__ = ["Sizes", "measure"]

NEVER_FULL = 1_000_000_000
"""Tokens of a buffer that is not full in any measurement, so that none of it is read."""
NOWHERE = "http://127.0.0.1:9/v1"
"""The address of a model that is never called."""
LOADED_AT_ONCE = 50
"""Buffers that are loaded in one transaction."""
FEW_TURNS = 3
"""Turns of each buffer around a rate limit, where only the calls count."""
PATIENCE_S = 60.0
MOST_NOISE = 2.0
"""The fastest round without a buffer over the slowest; beyond this the machine was not quiet."""
WINDOW_S = 5
"""Seconds over which the calls are averaged to tell whether their rate has come back."""
RECOVERED = 0.9
"""The share of the former rate at which it has come back."""
DONE = "SELECT count(*) FROM buffer_zone WHERE status = 'done'"


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and for how long, in full; `scaled` makes it less."""

    added: int = 20_000
    """Turns of one round of adding, by 100 users."""
    rounds: int = 3
    hold_s: float = 1.0
    """Seconds that the model takes to answer."""
    warm_up_s: float = 5.0
    steady_s: float = 20.0
    buffer_turns: int = 45
    """Turns of each buffer in the steady phase: about `buffer.max_tokens`."""
    limited_s: float = 20.0
    """Seconds of the rate limit, during which only `limited_to` calls are let through …"""
    limited_to: int = 10
    retry_after_s: float = 2.0
    """… and the Retry-After of the others."""
    before_s: float = 20.0
    after_s: float = 120.0
    """Seconds of the timeline before and after the rate limit."""
    quiet_s: float = 60.0
    """The setting `llm.quiet_s`."""

    @classmethod
    def scaled(cls, scale: float, rounds: int) -> Sizes:
        """Sizes and times that are smaller by a factor, but large enough to measure anything at all."""

        def less(number: float, least: float) -> float:
            return max(least, number * scale)

        return cls(
            added=round(less(cls.added, 100)),
            rounds=rounds,
            hold_s=min(cls.hold_s, less(10 * cls.hold_s, 0.5)),
            buffer_turns=round(less(cls.buffer_turns, 10)),
            warm_up_s=less(cls.warm_up_s, 0.5),
            steady_s=less(cls.steady_s, 1),
            limited_s=less(cls.limited_s, 1),
            before_s=less(cls.before_s, 2),
            after_s=less(cls.after_s, 3),
            quiet_s=less(cls.quiet_s, 0.5),
        )


def measure(scale: float, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    sizes = Sizes.scaled(scale, rounds)
    load_average = os.getloadavg()[0]
    figures: dict[str, Any] = {
        "scale": scale,
        "sizes": {name: getattr(sizes, name) for name in Sizes.__dataclass_fields__},
        "max_concurrency": shipped_settings("memory://").llm.max_concurrency,
        "turns_per_fact": FACT_EVERY,
        **_measure_adding(sizes, progress),
        **_measure_extraction(sizes, progress),
        **_measure_rate_limit(sizes, progress),
    }
    recovered_s = figures["recovered_s"]
    aims = {
        "fast_path_ratio": (figures["fast_path_ratio"], ">=", 0.9),
        "calls_in_flight": (figures["calls_in_flight"], ">=", 50),
        "cpu_share": (figures["cpu_share"], "<", 0.5),
        "recovered_s": (sizes.after_s + 1 if recovered_s is None else recovered_s, "<=", sizes.after_s),
    }
    plain = figures["fast_path_turns_per_s_without_buffer_rounds"]
    noise = max(plain) / max(1, min(plain))
    return figures | {
        "targets": judged(aims),
        "noise": round(noise, 2),
        "load_average": round(load_average, 1),
        "quiet": noise <= MOST_NOISE and load_average < (os.cpu_count() or 1),
        "durability": shipped_settings("memory://").queue.sqlite_durability,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("reverie", "apsw", "openai", "wordllama")},
    }


# -- adding ----------------------------------------------------------------------------------------------


def _measure_adding(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Turns a second with the buffer and without it, in turn and each first in every other round."""
    sections: dict[str, dict[str, Any]] = {
        "fast_path_turns_per_s": {"llm": _llm(NOWHERE), "buffer": {"max_tokens": NEVER_FULL}},
        "fast_path_turns_per_s_without_buffer": {},
    }
    rates: dict[str, list[float]] = {name: [] for name in sections}
    order = list(sections)
    for number in range(sizes.rounds):
        for name in order:
            progress(f"round {number + 1} of {sizes.rounds}: adding {sizes.added:,} turns")
            with tempfile.TemporaryDirectory() as folder:
                settings = shipped_settings(f"sqlite:///{folder}/add.db", **sections[name])
                rates[name].append(asyncio.run(add_turns(settings, sizes.added)))
        order.reverse()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    with_buffer, without = medians.values()
    return {
        **{name: round(median) for name, median in medians.items()},
        **{f"{name}_rounds": [round(rate) for rate in found] for name, found in rates.items()},
        "fast_path_ratio": round(with_buffer / without, 3),
    }


def _llm(url: str, **more: Any) -> dict[str, Any]:
    return {"preset": "custom", "url": url, "model": "scripted", **more}


# -- extraction ------------------------------------------------------------------------------------------


def _measure_extraction(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Full buffers of many users, read by one worker: what it reaches, and what it costs."""
    with tempfile.TemporaryDirectory() as folder, _model(sizes) as (model, sections):
        limit = shipped_settings("memory://").llm.max_concurrency
        seconds = sizes.warm_up_s + sizes.steady_s
        buffers = round(1.1 * limit * (seconds / sizes.hold_s + 2))
        progress(f"loading {buffers:,} buffers of {sizes.buffer_turns} turns")
        url = f"sqlite:///{folder}/read.db"
        asyncio.run(_load(url, buffers, sizes.buffer_turns))
        with worker_process("serve", url, json.dumps(sections)) as worker:
            progress("extraction, steady phase")
            _until_busy(model)
            time.sleep(sizes.warm_up_s)
            first = _Reading.now(worker, folder)
            time.sleep(sizes.steady_s)
            last = _Reading.now(worker, folder)
            seen = _report(model)
    return _steady_figures(seen, first, last)


class _Reading(msgspec.Struct):
    """A moment, the CPU seconds of the worker until then, and the turns that were read until then."""

    moment: float
    cpu_s: float
    turns: int

    @classmethod
    def now(cls, worker: WorkerProcess, folder: str) -> _Reading:
        worker.tell("cpu")
        cpu_s = float(worker.hear("cpu")[0])
        moment = time.monotonic()
        connection = apsw.Connection(f"{folder}/read.db", flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return cls(moment, cpu_s, connection.execute(DONE).get)
        finally:
            connection.close()


def _steady_figures(seen: Report, first: _Reading, last: _Reading) -> dict[str, Any]:
    calls = [call for call in seen.calls if first.moment <= call.ended < last.moment]
    seconds = last.moment - first.moment
    asked = sum(call.turns for call in calls) or 1
    read = last.turns - first.turns
    return {
        "extraction_turns_per_s": round(read / seconds),
        "extraction_calls_per_s": round(len(calls) / seconds, 1),
        "calls_in_flight": round(_median_in_flight(seen, first.moment, last.moment)),
        "calls_in_flight_mean": round(_mean_in_flight(seen, first.moment, last.moment), 1),
        "cpu_share": round((last.cpu_s - first.cpu_s) / seconds, 3),
        "cpu_ms_per_call": round(1000 * (last.cpu_s - first.cpu_s) / max(1, len(calls)), 2),
        "tokens_per_turn": round(sum(call.tokens for call in calls) / asked, 1),
        "llm_calls_per_turn": round(len(calls) / asked, 4),
    }


@contextmanager
def _model(sizes: Sizes) -> Iterator[tuple[WorkerProcess, dict[str, Any]]]:
    """A scripted model, and the settings of a worker that calls it."""
    with worker_process(str(sizes.hold_s), module="benchmarks.scripted_model") as model:
        (url,) = model.hear("url")
        yield model, {"llm": _llm(url, quiet_s=sizes.quiet_s)}


def _report(model: WorkerProcess) -> Report:
    model.tell("report")
    return msgspec.json.decode(model.hear("report")[0], type=Report)


def _until_busy(model: WorkerProcess) -> None:
    """Wait for the first answer of the model."""
    until = time.monotonic() + PATIENCE_S
    while not _report(model).calls:
        if time.monotonic() > until:
            raise SystemExit(f"the worker has made no call within {PATIENCE_S:g} s")
        time.sleep(0.1)


async def _load(url: str, buffers: int, turns: int) -> None:
    """Write turns and their rows in as many buffers, each of a user, and submit the message that reads it."""
    scheduler = AsyncScheduler(settings=shipped_settings(url))
    try:
        await scheduler.open()
        for start in range(0, buffers, LOADED_AT_ONCE):
            users = range(start, min(buffers, start + LOADED_AT_ONCE))
            store = scheduler.runtime.store
            await store.apply(await asyncio.gather(*(_application(store, user, turns) for user in users)))
        keys = [BufferKey(f"user-{user}", f"user-{user}") for user in range(buffers)]
        for start in range(0, buffers, BATCH):
            await scheduler.submit_messages([read_message(key) for key in keys[start : start + BATCH]])
    finally:
        await scheduler.stop()


async def _application(store: MemoryStore, user: int, turns: int) -> Application:
    effects: list[Remember | Buffer] = []
    for index, said in enumerate(turns_of(user, turns)):
        memory_id = f"{user}.{index}"
        source = Source(item_id=str(user), index=index, role="user", name=said.speaker)
        turn = Turn(content=said.text, name=said.speaker)
        effects += [
            Remember(memory_id=memory_id, text=said.text, kind="turn", sources=(source,)),
            Buffer(
                buffer_id=memory_id,
                blob_id=memory_id,
                content=msgspec.json.encode(turn).decode(),
                tokens=tokens_in(said.text),
            ),
        ]
    name = f"user-{user}"
    message = Message(label="add", user_id=name, mem_cube_id=name, item_id=str(user))
    return Application(message=message, effects=tuple(effects), prepared=await store.prepare(effects))


# -- a rate limit ----------------------------------------------------------------------------------------


def _measure_rate_limit(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """The calls of one worker before, during and after a time in which the model refuses most of them."""
    with tempfile.TemporaryDirectory() as folder, _model(sizes) as (model, sections):
        limit = shipped_settings("memory://").llm.max_concurrency
        seconds = sizes.warm_up_s + sizes.before_s + sizes.limited_s + sizes.after_s
        buffers = round(limit * (seconds / sizes.hold_s + 2))
        progress(f"loading {buffers:,} buffers of {FEW_TURNS} turns")
        url = f"sqlite:///{folder}/read.db"
        asyncio.run(_load(url, buffers, FEW_TURNS))
        with worker_process("serve", url, json.dumps(sections)) as worker:
            _until_busy(model)
            time.sleep(sizes.warm_up_s)
            progress("before, during and after a rate limit")
            began = time.monotonic()
            time.sleep(sizes.before_s)
            model.tell(f"limit {sizes.limited_to} {sizes.limited_s} {sizes.retry_after_s}")
            model.hear("limited")
            limited = time.monotonic()
            time.sleep(sizes.limited_s + sizes.after_s)
            seen = _report(model)
            worker.tell("cpu")  # proves that the worker is alive
            worker.hear("cpu")
    ends = [call.ended for call in seen.calls if call.status == 200]
    over = limited + sizes.limited_s
    return {
        "limited_from_to_s": [round(limited - began, 1), round(over - began, 1)],
        "refused_calls": sum(call.status != 200 for call in seen.calls),
        "recovered_s": _recovered_s(ends, began, limited, over, sizes.after_s),
        "concurrency_timeline": _timeline(seen, ends, began, int(over + sizes.after_s - began)),
    }


def _timeline(seen: Report, ends: Sequence[float], began: float, seconds: int) -> list[list[float]]:
    """For each second: the mean of the calls in flight, and how many have succeeded."""
    return [
        [
            second,
            round(_mean_in_flight(seen, began + second, began + second + 1), 1),
            _calls_within(ends, began + second, began + second + 1),
        ]
        for second in range(seconds)
    ]


def _recovered_s(
    ends: Sequence[float], began: float, limited: float, over: float, after_s: float
) -> float | None:
    """Seconds from the end of the rate limit to the end of the first window at the former rate."""
    before = _calls_within(ends, began, limited) / (limited - began)
    window_s = min(WINDOW_S, after_s / 3)
    for tenth in range(round(10 * (after_s - window_s))):
        start = over + tenth / 10
        if _calls_within(ends, start, start + window_s) >= RECOVERED * before * window_s:
            return round(tenth / 10 + window_s, 1)
    return None


def _calls_within(ends: Sequence[float], start: float, end: float) -> int:
    """How many calls have ended between two moments; `ends` is in order."""
    return bisect_right(ends, end) - bisect_right(ends, start)


def _lasting(seen: Report, start: float, end: float) -> dict[int, float]:
    """Number of calls in flight → for how many seconds there were as many."""
    lasting: dict[int, float] = {}
    moments = [moment for moment, _ in seen.in_flight]
    place = bisect_right(moments, start)
    moment, count = start, seen.in_flight[place - 1][1] if place else 0
    for then, changed in [*seen.in_flight[place : bisect_right(moments, end)], (end, 0)]:
        lasting[count] = lasting.get(count, 0) + then - moment
        moment, count = then, changed
    return lasting


def _mean_in_flight(seen: Report, start: float, end: float) -> float:
    return sum(count * seconds for count, seconds in _lasting(seen, start, end).items()) / (end - start)


def _median_in_flight(seen: Report, start: float, end: float) -> int:
    """The number of calls in flight that was exceeded for half of the time at most."""
    left = (end - start) / 2
    for count, seconds in sorted(_lasting(seen, start, end).items()):
        left -= seconds
        if left <= 0:
            return count
    return 0
