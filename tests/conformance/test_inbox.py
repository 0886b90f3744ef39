"""Queue and memory in two databases: the inbox knows which acceptance of an id was applied."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.conftest import Bench, message
from reverie import Done, Message, Remember, Scheduler
from reverie.backends.control import DeleteItems, RequeueItems
from reverie.backends.moves import Claim, Move, Presence, Settlement, Status
from reverie.dispatch.renewer import Renewer
from reverie.dispatch.settler import Settler
from reverie.memory.query import SearchQuery
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.settings import load_settings
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock, drain

ONE = message("1")
DAY_S = 24 * 3600


def remember(claim: Claim, memory_id: str) -> Settlement:
    effect = Remember(memory_id=memory_id, text="some words")
    return Settlement(claim=claim, move=Move.COMPLETE, effects=(effect,))


class Memory:
    """A memory store beside the queue of a bench, and a settler between the two."""

    def __init__(self, bench: Bench, path: str) -> None:
        self.bench = bench
        self.store = SqliteMemoryStore(
            Database(path), bench.clock, MemorySettings(inbox_retention_s=30 * DAY_S)
        )
        self.stale: list[Settlement] = []
        self.settler = Settler(
            bench.backend,
            self.store,
            lambda _, stale: self.stale.extend(stale),
            lambda *_: pytest.fail("no conflict"),
        )

    async def settle(self, claim: Claim, memory_id: str | None = None, *, move: Move = Move.COMPLETE) -> None:
        ended = Settlement(claim=claim, move=move)
        self.settler.put([remember(claim, memory_id) if memory_id else ended])
        await self.settler.flush()

    async def found(self) -> list[str]:
        return sorted(h.item.id for h in await self.store.search(SearchQuery(text="words", user_id="ann")))


@pytest.fixture
async def memory(bench: Bench, tmp_path) -> AsyncIterator[Memory]:
    memory = Memory(bench, str(tmp_path / "memory.db"))
    await memory.store.open()
    yield memory
    await memory.store.close()


async def accept(bench: Bench) -> Claim:
    assert await bench.submit(ONE) == ["accepted"]
    (claim,) = await bench.claim()
    return claim


async def hand_on(bench: Bench) -> Claim:
    """Let the lease of the message run out, and claim it again."""
    assert (await bench.advance(30)).reaped == 1
    (claim,) = await bench.claim()
    return claim


async def forget(bench: Bench) -> None:
    """Let the status of the ended message expire."""
    assert (await bench.advance(61)).expired == 1


async def test_an_id_that_is_accepted_again_writes_its_effects(bench: Bench, memory: Memory) -> None:
    await memory.settle(await accept(bench), "a")
    await forget(bench)
    await memory.settle(await accept(bench), "b")
    assert (await bench.status(ONE)).status is Status.COMPLETED
    assert await memory.found() == ["a", "b"]
    await forget(bench)
    await memory.settle(await accept(bench), "c")
    assert await memory.found() == ["a", "b", "c"]


async def test_an_id_that_is_accepted_again_after_it_was_deleted(bench: Bench, memory: Memory) -> None:
    await memory.settle(await accept(bench), move=Move.BURY)
    assert (await bench.control(DeleteItems, user_id="ann", item_ids=("1",))).changed
    bench.clock.advance(0.001)
    await memory.settle(await accept(bench), "a")
    assert (await bench.status(ONE)).status is Status.COMPLETED
    assert await memory.found() == ["a"]


async def test_each_acceptance_is_applied_once(bench: Bench, memory: Memory) -> None:
    await memory.settle(await accept(bench), "a")
    await forget(bench)
    lost = await accept(bench)
    await memory.settler._apply(  # it dies before it can tell the queue
        memory.store,
        [remember(lost, "b")],
        [],
    )
    await memory.settle(await hand_on(bench), "c")
    assert (await bench.status(ONE)).status is Status.COMPLETED
    assert await memory.found() == ["a", "b"]


async def test_a_worker_that_slept_through_the_next_acceptance_writes_nothing(
    bench: Bench, memory: Memory
) -> None:
    asleep = await accept(bench)
    await memory.settle(await hand_on(bench), "a")
    await forget(bench)
    await memory.settle(await accept(bench), "b")
    await memory.settle(asleep, "late")
    assert [one.claim for one in memory.stale] == [asleep]
    assert (await bench.status(ONE)).status is Status.COMPLETED
    assert await memory.found() == ["a", "b"]
    await memory.settle(asleep, move=Move.BURY)  # nor does it close anything
    await forget(bench)
    await memory.settle(await accept(bench), "c")
    assert await memory.found() == ["a", "b", "c"]


async def test_a_worker_that_slept_while_the_next_acceptance_waits_writes_nothing(
    bench: Bench, memory: Memory
) -> None:
    asleep = await accept(bench)
    await memory.settle(await hand_on(bench), "a")
    await forget(bench)
    again = await accept(bench)
    await memory.settle(asleep, "late")
    await memory.settle(again, "b")
    assert await memory.found() == ["a", "b"]


async def test_a_requeued_message_is_the_same_acceptance(bench: Bench, memory: Memory) -> None:
    asleep = await accept(bench)
    await memory.settle(await hand_on(bench), move=Move.BURY)
    assert (await bench.control(RequeueItems, user_id="ann", item_ids=("1",))).changed
    await memory.settle(asleep, "late")
    assert await memory.found() == []
    (claim,) = await bench.claim()
    await memory.settle(claim, "a")
    assert (await bench.status(ONE)).status is Status.COMPLETED
    await memory.settle(asleep, "late")
    assert await memory.found() == ["a"]


async def test_an_answer_long_after_the_lease_is_refused_and_the_message_runs_again(
    bench: Bench, memory: Memory
) -> None:
    claim = await accept(bench)
    bench.clock.advance(30 + 30 * DAY_S + 1)  # nobody was awake to hand the message on
    await memory.settle(claim, "late")
    assert await memory.found() == []
    status = await bench.status(ONE)
    assert (status.status, status.losses) == (Status.WAITING, 1)
    (again,) = await bench.claim()
    await memory.settle(again, "a")
    assert await memory.found() == ["a"]


async def test_a_run_that_was_renewed_for_long_is_not_refused(bench: Bench, memory: Memory) -> None:
    claim = await accept(bench)
    renewer = Renewer(
        bench.queue,
        lambda: [claim],
        lambda: Presence(worker="w", labels=("work",)),
        lambda _: None,
        lease_s=DAY_S + 1,
        every_s=DAY_S,
    )
    memory.settler._lease_end = renewer.lease_end
    for _ in range(40):
        await renewer.renew()
        bench.clock.advance(DAY_S)
    await memory.settle(claim, "a")
    assert await memory.found() == ["a"]


@pytest.mark.parametrize("databases", ["memory", "one", "two"])
def test_without_a_server_an_id_that_is_accepted_again_writes_its_effects(tmp_path, databases: str) -> None:
    urls = {"one": ("q.db", "q.db"), "two": ("q.db", "m.db"), "memory": (None, None)}[databases]
    queue, store = (f"sqlite:///{tmp_path / name}" if name else "memory://" for name in urls)
    clock, runs = ManualClock(), iter("abc")
    settings = load_settings(data_dir=tmp_path, queue={"url": queue}, memory={"url": store})
    scheduler = Scheduler(settings=settings, clock=clock)

    @scheduler.handler("note")
    def note(message: Message) -> Done:
        return Done(effects=[Remember(memory_id=next(runs), text="some words")])

    with scheduler.used():
        for _ in range(2):
            assert scheduler.submit("note", user_id="ann", item_id="1").status == "accepted"
            drain(scheduler)
            clock.advance(7 * DAY_S + 1)
            drain(scheduler)
        assert {hit.item.id for hit in scheduler.memory.search("words", user_id="ann")} == {"a", "b"}
