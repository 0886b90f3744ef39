"""A queue on Redis with something of everything, and mending it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from reverie.backends.control import CancelItems
from reverie.backends.moves import Move, QueueLimits, ScopeLimits
from reverie.backends.redis import repair_queue
from reverie.backends.redis.keys import GROUP
from reverie.cli.commands.redis import MENDED
from support.redis_bench import Bench, message, open_bench, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.backends.redis import Repaired

LEASE_MS = 30_000
LIMITS = QueueLimits(retention_ms=60_000, tenant=ScopeLimits(concurrency=4))
LOOSE = {"ordered": False, "min_idle_ms": 0}


@asynccontextmanager
async def open_apart(redis_url: str) -> AsyncIterator[Bench]:
    """A queue in a database of its own: another one beside it would make a repair more careful."""
    parts = urlsplit(redis_url)
    url = f"{redis_url}?db=11" if parts.scheme == "unix" else parts._replace(path="/11").geturl()
    async with open_bench(url, LIMITS) as opened:
        opened.url = url
        yield opened


async def repair(bench: Bench, **options) -> Repaired:
    return await repair_queue(bench.url, LIMITS, prefix=bench.prefix, **{"lease_ms": LEASE_MS, **options})


async def mend(bench: Bench, **options) -> Repaired:
    """Repair, and see that a look has foreseen it and that nothing is left to mend."""
    before = everything(bench)
    foreseen = await repair(bench, dry_run=True, **options)
    assert everything(bench) == before
    repaired = await repair(bench, **options)
    assert repaired.mended == foreseen.mended
    assert repaired.lost == foreseen.lost
    assert (await repair(bench, **options)).mended == {}
    assert set(repaired.mended) <= set(MENDED)
    return repaired


def everything(bench: Bench) -> dict[str, object]:
    """All that the keys of the queue hold, but for the tokens that wake workers."""
    found: dict[str, object] = {}
    for key in sorted(bench.key_names()):
        name = bench.prefix + key
        if ":wake" in key or ":horizon" in key:
            continue
        match bench.server.type(name):
            case b"hash":
                texts = bench.server.hgetall(name).items()
                found[key] = {field.decode(): text.decode() for field, text in texts}
            case b"zset":
                found[key] = dict(bench.server.zrange(name, 0, -1, withscores=True))
            case b"set":
                found[key] = bench.server.smembers(name)
            case b"list":
                found[key] = bench.server.lrange(name, 0, -1)
            case b"stream":
                found[key] = bench.server.xrange(name), bench.server.xpending(name, GROUP)
    return found


def standing(bench: Bench) -> dict[str, object]:
    """The same without what a repair cannot know: turns, and what the next claim says of a lane."""
    found = everything(bench)
    for key in found:
        if key.startswith(":ready:"):
            found[key] = list(found[key])
        elif key.startswith(":lanes:"):
            texts = {name: text.split() or "0000" for name, text in found[key].items()}
            found[key] = {name: (returned, aside) for name, (returned, _, _, aside) in texts.items()}
    found[":labels"] = {name: text.split()[: 5 if name else 3] for name, text in found[":labels"].items()}
    found[":leases"] = set(found.get(":leases", ()))
    return found


async def set_the_scene(bench: Bench) -> None:
    """Something of everything that a queue can have."""
    submit = bench.queue.submit
    await submit([message(f"d{n}", "dan", task_id="t:1") for n in range(4)])
    done, failed, back, running = await bench.claim(slots=4)
    await bench.settle(done)
    await bench.settle(failed, move=Move.BURY, error="no")
    await bench.settle(back, move=Move.RETRY, error="again")
    bench.clock.advance(1)
    await submit([message(f"a{n}", "ann") for n in range(5)])
    bench.clock.advance(1)
    await submit([message(f"b{n}", "bob:x") for n in range(5)])
    first = await bench.claim(slots=1, quantum=1)
    assert [claim.message.item_id for claim in first] == ["a0"]
    bench.clock.advance(1)
    await submit([message(f"l{n}", "cem", label="loose") for n in range(8)])
    loose = await bench.claim("loose", slots=5, quantum=5, **LOOSE)
    assert len(loose) == 4  # their tenant may not have more
    await bench.settle(loose[0], move=Move.RETRY, delay_ms=5000, error="later")
    await bench.claim("loose", slots=1, **LOOSE)
    await submit([message("p", "cem", label="parked")])
    assert await bench.claim("parked") == []
    await submit([message("r1", "eve", label="rests"), message("r2", "eve", label="rests")])
    await bench.settle(*await bench.claim("rests", slots=1, quantum=1, min_idle_ms=9000))
    await submit(
        [
            message("later", "fay", due=within(50)),
            message("limited", "fay", label="idle", deadline=within(60)),
            message("child", "fay", label="idle", depends_on=("limited",)),
            message("only", "fay", label="idle", unique_key="k"),
            message("gone", "fay", label="idle"),
        ]
    )
    await bench.control(CancelItems, user_id="fay", item_ids=("gone",))
    assert running.message.item_id == "d3"


async def drain(bench: Bench) -> dict[str, list[str]]:
    """Let all claims be lost, then complete all there is; the items of each lane, as they were run."""
    order: defaultdict[str, list[str]] = defaultdict(list)
    for _ in range(40):
        bench.clock.advance(20)
        await bench.queue.advance(1000)
        for label in ("work", "loose", "parked", "rests", "idle"):
            for claim in await bench.claim(label, ordered=label != "loose"):
                order[f"{claim.message.user_id}:{label}"].append(claim.message.item_id)
                await bench.settle(claim)
    return dict(order)


async def counted(bench: Bench) -> dict[str, tuple[int, int]]:
    states = await bench.backend.views.labels()
    return {state.label: (state.waiting, state.in_progress) for state in states}


ORDER = {
    "dan:work": ["d2", "d3"],
    "ann:work": ["a0", "a1", "a2", "a3", "a4"],
    "bob:x:work": ["b0", "b1", "b2", "b3", "b4"],
    "cem:parked": ["p"],
    "eve:rests": ["r2"],
    "fay:work": ["later"],
    "fay:idle": ["limited", "only", "child"],
}


async def check_drained(bench: Bench) -> None:
    order = await drain(bench)
    assert sorted(order.pop("cem:loose")) == [f"l{n}" for n in range(8)]
    assert order == ORDER
    assert set((await counted(bench)).values()) == {(0, 0)}
    assert bench.lane_keys() == set()


def stream_of(bench: Bench, user: str, label: str = "work") -> str:
    return f"{bench.prefix}:{user}:{user}:{label}"
