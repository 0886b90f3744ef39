"""How fast memories are added and searched, alone and among many tenants, and how much room they take.

Turns that are only searched are loaded in bulk through the store's own `apply`; the rate of adding is
measured through the whole product, one turn a message. Peers search the turns of one tenant, with vectors of
the same kind.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.defaults import shipped_settings
from benchmarks.extras import version_of
from benchmarks.memory_peers import PEERS
from benchmarks.memory_texts import questions, turns_of
from benchmarks.targets import judged
from reverie import AsyncScheduler
from reverie.capture.intake import add_message
from reverie.effect import Remember, Source
from reverie.evaluation.data import read_conversations
from reverie.evaluation.measure import measure as measure_recall
from reverie.evaluation.subject import temporary_store, until_indexed
from reverie.memory.interface import Application
from reverie.message import Message
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from benchmarks.memory_texts import Said
    from reverie.evaluation.data import Conversation
    from reverie.memory.interface import MemoryStore
    from reverie.settings import Settings

__all__ = ["Sizes", "add_turns", "load", "measure"]

BATCH = 500
"""Messages of one submit, and at most how many turns of one message that is loaded in bulk."""
AT_ONCE = 8
"""Messages of one bulk write; their effects are prepared at the same time."""
SMALL_AT_ONCE = 200
WARM_UP = 5
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured, in full; `scaled` makes it less."""

    added: int = 20_000
    """Turns of one round of adding, by 100 users."""
    tenants: int = 100
    items: int = 10_000
    """Items of each of the `tenants`."""
    few: int = 1_000
    many: int = 100_000
    small_tenants: int = 100_000
    small_items: int = 10
    searches: int = 500
    rounds: int = 3

    @classmethod
    def scaled(cls, scale: float, rounds: int) -> Sizes:
        """Sizes that are smaller by a factor, but large enough to measure anything at all."""

        def less(number: int, least: int) -> int:
            return max(least, round(number * scale))

        return cls(
            added=less(cls.added, 100),
            tenants=less(cls.tenants, 3),
            items=less(cls.items, 40),
            few=less(cls.few, 20),
            many=less(cls.many, 60),
            small_tenants=less(cls.small_tenants, 20),
            searches=less(cls.searches, 20),
            rounds=rounds,
        )


def measure(scale: float, rounds: int, data: Path | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    sizes = Sizes.scaled(scale, rounds)
    conversations = None if data is None else read_conversations(data)  # a bad file is refused at once
    figures: dict[str, Any] = {
        "scale": scale,
        "sizes": {name: getattr(sizes, name) for name in Sizes.__dataclass_fields__},
        "embedding": shipped_settings("memory://").memory.embedding,
        "durability": shipped_settings("memory://").queue.sqlite_durability,
        **asyncio.run(_measure_adding(sizes, progress)),
        **asyncio.run(_measure_searches(sizes, progress)),
        **_measure_small(sizes, progress),
        "recall_at_10": None if conversations is None else _recall(conversations, progress),
        **_measure_peers(sizes, progress),
    }
    aims = {
        "add_turns_per_s": (figures["add_turns_per_s"], ">=", 2000),
        "search_p50_ms": (figures["search_p50_ms"], "<=", 10),
        "search_p99_ms": (figures["search_p99_ms"], "<=", 50),
        "search_ratio_alone": (figures["search_ratio_alone"], ">=", 0.8),
        "bytes_per_small_tenant": (figures["bytes_per_small_tenant"], "<=", 15_000),
    }
    packages = ("reverie", "apsw", "wordllama", "chromadb", "mem0ai")
    return figures | {
        "targets": judged(aims),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in packages},
    }


async def load(store: MemoryStore, tenants: Sequence[tuple[str, int]], items: int) -> None:
    """Write the first `items` turns of each tenant (user id and number) with few, large calls of `apply`."""
    messages = (
        (user_id, start, said)
        for user_id, number in tenants
        for start, said in _parts(turns_of(number, items), BATCH)
    )
    at_once = AT_ONCE if items > BATCH // 2 else SMALL_AT_ONCE
    for _, batch in _parts(messages, at_once):
        applications = await asyncio.gather(*(_application(store, *each) for each in batch))
        for applied in await store.apply(applications):
            if applied.state != "applied":
                raise SystemExit(f"{applied.key} was {applied.state}: {applied.error}")


def _parts(things: Iterable[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
    """Lists of at most `size`, each with the number of things before it."""
    rest, start = iter(things), 0
    while part := list(islice(rest, size)):
        yield start, part
        start += len(part)


async def _application(store: MemoryStore, user_id: str, start: int, turns: Sequence[Said]) -> Application:
    item_id = f"{user_id}-{start}"
    effects = tuple(
        Remember(
            memory_id=f"{item_id}.{index}",
            text=said.text,
            kind="turn",
            session_id=f"{user_id}-{said.session}",
            sources=(Source(item_id=item_id, index=index, role="user", name=said.speaker),),
        )
        for index, said in enumerate(turns)
    )
    message = Message(label="add", user_id=user_id, mem_cube_id=user_id, item_id=item_id)
    return Application(message=message, effects=effects, prepared=await store.prepare(effects))


@asynccontextmanager
async def _opened(folder: str, name: str) -> AsyncIterator[AsyncScheduler]:
    """A scheduler on a file of its own, without a worker.

    Upkeep is off: it would begin with all that was loaded at once, and take both cores for a long time.
    """
    settings = shipped_settings(f"sqlite:///{folder}/{name}.db", upkeep={"enabled": False})
    scheduler = AsyncScheduler(settings=settings)
    try:
        await scheduler.open()
        yield scheduler
    finally:
        await scheduler.stop()


async def _indexed(scheduler: AsyncScheduler) -> None:
    """Run the services of a worker until everything that was loaded is indexed."""
    await scheduler.start()
    await until_indexed(scheduler)


# -- adding ----------------------------------------------------------------------------------------------


async def _measure_adding(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    rates = []
    for number in range(sizes.rounds):
        progress(f"round {number + 1} of {sizes.rounds}: adding {sizes.added:,} turns")
        with tempfile.TemporaryDirectory() as folder:
            rates.append(await add_turns(shipped_settings(f"sqlite:///{folder}/add.db"), sizes.added))
    return {
        "add_turns_per_s": round(statistics.median(rates)),
        "add_turns_per_s_rounds": [round(rate) for rate in rates],
    }


async def add_turns(settings: Settings, count: int) -> float:
    """Turns a second, one a message, 500 messages a submit, until all are settled and indexed."""
    users = min(100, count)
    said = [list(turns_of(user, -(-count // users))) for user in range(users)]
    messages = [
        add_message(
            [Turn(content=turn.text, name=turn.speaker)],
            user_id=f"user-{user}",
            item_id=f"{user}-{number}",
            session_id=f"session-{turn.session}",
        )
        for number in range(len(said[0]))
        for user, turns in enumerate(said)
        for turn in turns[number : number + 1]
    ][:count]
    last = {message.user_id: message.item_id for message in messages}
    async with AsyncScheduler(settings=settings) as scheduler:
        await scheduler.memory.search("warm up", user_id="user-0")
        began = time.perf_counter()
        for _, batch in _parts(messages, BATCH):
            await scheduler.submit_messages(batch)
        ends = [scheduler.wait(item, user_id=user, timeout=PATIENCE_S) for user, item in last.items()]
        for item in await asyncio.gather(*ends):
            if item.status != "completed":
                raise SystemExit(f"{item.item_id} is {item.status}: {item.error}")
        await until_indexed(scheduler)
        return count / (time.perf_counter() - began)


# -- searching -------------------------------------------------------------------------------------------


async def _measure_searches(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Search tenants of several sizes in one file, and the first of them in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with _opened(folder, "many") as many, _opened(folder, "alone") as alone:
            progress(f"loading {sizes.tenants} tenants of {sizes.items:,} items")
            began = time.perf_counter()
            tenants = [(f"user-{number}", number) for number in range(sizes.tenants)]
            await load(many.runtime.store, tenants, sizes.items)
            await load(many.runtime.store, [("few", 1_000_000)], sizes.few)
            await load(many.runtime.store, [("many", 2_000_000)], sizes.many)
            await load(alone.runtime.store, tenants[:1], sizes.items)
            await _indexed(many)
            await _indexed(alone)
            loaded = sizes.tenants * sizes.items + sizes.few + sizes.many + sizes.items
            rate = loaded / (time.perf_counter() - began)
            progress("searching")
            each = -(-sizes.searches // sizes.tenants)
            spread = [
                (user, question)
                for user, number in tenants
                for question in questions(number, each, sizes.items)
            ]
            of_few = [("few", question) for question in questions(1_000_000, sizes.searches, sizes.few)]
            of_many = [("many", question) for question in questions(2_000_000, sizes.searches, sizes.many)]
            figures = {
                "load_items_per_s": round(rate),
                **_percentiles("search", await _search(many, spread)),
                **_percentiles(f"search_{Sizes.few}", await _search(many, of_few)),
                **_percentiles(f"search_{Sizes.many}", await _search(many, of_many)),
            }
            return figures | await _ratio_alone(sizes, alone, many)


async def _ratio_alone(sizes: Sizes, alone: AsyncScheduler, many: AsyncScheduler) -> dict[str, Any]:
    """The median of the same searches of one tenant, in its own file and among others, in turn."""
    asked = [("user-0", question) for question in questions(0, sizes.searches, sizes.items)]
    times: dict[AsyncScheduler, list[float]] = {alone: [], many: []}
    order = [alone, many]
    for _, part in _parts(asked, max(10, sizes.searches // 10)):
        for scheduler in order:
            times[scheduler] += await _search(scheduler, part)
        order.reverse()
    p50_alone, p50_among = (statistics.median(times[each]) for each in (alone, many))
    return {
        "search_alone_p50_ms": round(p50_alone, 3),
        "search_among_p50_ms": round(p50_among, 3),
        "search_ratio_alone": round(p50_alone / p50_among, 3),
    }


async def _search(scheduler: AsyncScheduler, asked: Sequence[tuple[str, str]]) -> list[float]:
    """The time of each search, in milliseconds, after a few that do not count."""
    times = []
    for user_id, question in [*asked[:WARM_UP], *asked]:
        began = time.perf_counter()
        await scheduler.memory.search(question, user_id=user_id)
        times.append(1000 * (time.perf_counter() - began))
    return times[min(WARM_UP, len(asked)) :]


def _percentiles(name: str, times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        f"{name}_p{part}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 3)
        for part in (50, 99)
    }


# -- room ------------------------------------------------------------------------------------------------


def _measure_small(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """The bytes that each of very many small tenants takes in the file, and how fast one is searched."""
    progress(f"loading {sizes.small_tenants:,} tenants of {sizes.small_items} items")
    with tempfile.TemporaryDirectory() as folder:
        times = asyncio.run(_search_small(folder, sizes))
        size = Path(folder, "small.db").stat().st_size  # the last connection has written the log back
    return {
        "bytes_per_small_tenant": round(size / sizes.small_tenants),
        **_percentiles("search_small_tenant", times),
    }


async def _search_small(folder: str, sizes: Sizes) -> list[float]:
    async with _opened(folder, "small") as scheduler:
        tenants = [(f"small-{number}", number) for number in range(sizes.small_tenants)]
        await load(scheduler.runtime.store, tenants, sizes.small_items)
        await _indexed(scheduler)
        asked = tenants[:: -(-sizes.small_tenants // sizes.searches)]
        return await _search(
            scheduler, [(user, questions(number, 1, sizes.small_items)[0]) for user, number in asked]
        )


# -- recall and peers ------------------------------------------------------------------------------------


def _recall(conversations: Sequence[Conversation], progress: Callable[[str], None]) -> float:
    progress(f"recall in {len(conversations)} conversations")
    with temporary_store(shipped_settings("memory://")) as subject:
        found: float = measure_recall(subject, conversations)["all"]["recall_at_10"]
    return found


def _measure_peers(sizes: Sizes, progress: Callable[[str], None]) -> dict[str, Any]:
    """Each peer with the turns of one tenant alone; None and the reason if it cannot be measured here."""
    texts = [said.text for said in turns_of(0, sizes.items)]
    asked = questions(0, sizes.searches, sizes.items)
    peers: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, peer in PEERS.items():
        progress(f"{name}: {len(texts):,} items")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                added_s, times = peer(folder, texts, asked)
            except Exception as error:  # noqa: BLE001  whatever keeps a peer from running is its reason
                peers[name], reasons[name] = None, f"{type(error).__name__}: {error}"
                continue
        peers[name] = {
            "items": len(texts),
            "add_turns_per_s": round(len(texts) / added_s),
            **_percentiles("search", times),
        }
    return {"peers": peers, "peers_missing": reasons}
