"""The settler between a queue and a memory store in two databases."""

from __future__ import annotations

import pytest

from reverie import Message, Remember
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, Settlement, Status, Want
from reverie.backends.views import StatusQuery
from reverie.dispatch.settler import Settler
from reverie.memory.interface import Application
from reverie.memory.query import SearchQuery
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.storage.sqlite import Database

ONE = Message(user_id="ann", label="work", item_id="1")
NEXT = Message(user_id="ann", label="next", item_id="2")


def effect(memory_id: str, text: str = "some words") -> Remember:
    return Remember(memory_id=memory_id, text=text)


@pytest.fixture
async def store(tmp_path, clock):
    store = SqliteMemoryStore(Database(str(tmp_path / "m.db")), clock)
    await store.open()
    yield store
    await store.close()


async def find(store, text: str, user_id: str = "ann") -> list[str]:
    return [hit.item.id for hit in await store.search(SearchQuery(text=text, user_id=user_id))]


async def settle(
    store, clock, earlier: Application | None, move: Move, *, losses: int = 0, **fields
) -> MemoryBackend:
    """Claim ONE, let an earlier run leave its row in the inbox, then settle."""
    backend = MemoryBackend(clock)
    request = ClaimRequest(worker="w", wants={"work": Want(slots=1)})
    await backend.queue.submit([ONE])
    (claim,) = await backend.queue.claim(request)
    for _ in range(losses):
        clock.advance(request.lease_ms / 1000)
        await backend.queue.advance(10)
        (claim,) = await backend.queue.claim(request)
    if earlier is not None:
        await store.apply([earlier])
    settler = Settler(backend, store, lambda *_: None, lambda *_: pytest.fail("no conflict"))
    settler.put([Settlement(claim=claim, move=move, **fields)])
    await settler.flush()
    return backend


async def status(backend: MemoryBackend, item_id: str = "1") -> Status | None:
    rows = (await backend.views.read(StatusQuery(user_id="ann", item_id=item_id))).rows
    return rows[0].status if rows else None


async def test_a_second_run_submits_the_follow_ups_of_the_first(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    backend = await settle(store, clock, earlier, Move.COMPLETE, effects=(effect("b"),))
    assert (await status(backend), await status(backend, "2")) == (Status.COMPLETED, Status.WAITING)
    assert await find(store, "words") == ["a"]


async def test_after_a_loss_a_run_that_has_nothing_to_apply_asks_what_the_lost_one_did(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    backend = await settle(store, clock, earlier, Move.COMPLETE, losses=1)
    assert (await status(backend), await status(backend, "2")) == (Status.COMPLETED, Status.WAITING)


@pytest.mark.parametrize(("losses", "late"), [(0, "applied"), (1, "already")])
async def test_a_run_that_was_alone_with_nothing_to_apply_leaves_no_row(store, clock, losses, late) -> None:
    backend = await settle(store, clock, None, Move.COMPLETE, losses=losses)
    assert await status(backend) is Status.COMPLETED
    (answer,) = await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert answer.state == late


async def test_what_an_earlier_run_applied_is_not_buried(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),))
    backend = await settle(store, clock, earlier, Move.BURY, error="no use")
    assert await status(backend) is Status.COMPLETED


async def test_what_an_earlier_run_closed_ends_without_effects(store, clock) -> None:
    earlier = Application(message=ONE, close=True)
    backend = await settle(store, clock, earlier, Move.COMPLETE, effects=(effect("b"),))
    assert await status(backend) is Status.FAILED
    assert await find(store, "words") == []


async def test_a_buried_message_is_closed_for_late_answers(store, clock) -> None:
    backend = await settle(store, clock, None, Move.BURY, error="no use")
    assert await status(backend) is Status.FAILED
    (late,) = await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert late.state == "closed"
