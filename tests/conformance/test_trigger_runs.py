"""What the end of a run means for its trigger, in every trigger store."""

from __future__ import annotations

import msgspec
import pytest

from conformance.conftest import Bench, done, ids, settle
from conformance.triggering import (
    INTERVAL_S,
    TYPE,
    activity,
    due,
    fire,
    fired,
    firing,
    ready,
    run,
    state,
)
from reverie.backends.control import CancelItems, RequeueItems
from reverie.backends.moves import Move, Settlement
from reverie.backends.triggers import (
    RunTrigger,
)
from reverie.message import Message

# -- the end of a run --------------------------------------------------------------------------------


async def test_a_run_that_ends_well_is_completed(bench: Bench) -> None:
    await fired(bench)
    bench.clock.advance(2)
    await run(bench)
    found = await state(bench)
    assert (found.status, found.last_exec, found.scheduled_at) == ("completed", bench.clock.now(), None)
    assert found.retry_count == 0
    assert (await due(bench)).next_due is None


@pytest.mark.parametrize(("move", "error"), [(Move.BURY, "no"), (Move.CANCEL, None)])
async def test_a_run_that_ends_otherwise_is_failed(bench: Bench, move: Move, error: str | None) -> None:
    await fired(bench)
    await run(bench, move=move, error=error)
    found = await state(bench)
    assert (found.status, found.last_exec) == ("failed", None)


async def test_a_retry_is_counted_and_goes_on(bench: Bench) -> None:
    await fired(bench)
    await run(bench, move=Move.RETRY, error="again")
    found = await state(bench)
    assert (found.status, found.retry_count) == ("running", 1)
    await run(bench)
    found = await state(bench)
    assert (found.status, found.retry_count) == ("completed", 1)


async def test_a_run_that_is_lost_too_often_has_failed(bench: Bench) -> None:
    await fired(bench)
    for _ in range(3):
        await bench.claim(TYPE)
        await bench.advance(31)
    assert (await state(bench)).status == "failed"


async def test_a_waiting_run_that_is_cancelled_has_failed(bench: Bench) -> None:
    await fired(bench)
    item_id = (await state(bench)).item_id
    await bench.control(CancelItems, user_id="ann", item_ids=(item_id,))
    assert (await state(bench)).status == "failed"


async def test_activity_after_the_end_schedules_anew(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    bench.clock.advance(3)
    assert await bench.backend.triggers.touch([activity()]) == [True]
    found = await state(bench)
    assert (found.status, found.scheduled_at) == ("pending", bench.clock.now() + 10_000)


@pytest.mark.parametrize("move", [Move.COMPLETE, Move.BURY])
async def test_activity_during_a_run_leads_to_one_more(bench: Bench, move: Move) -> None:
    await fired(bench)
    claims = await bench.claim(TYPE)
    assert await bench.backend.triggers.touch([activity(), activity()]) == [True, False]
    bench.clock.advance(5)
    assert (await due(bench)).next_due is None, "nothing is due before the run has ended"
    await settle(bench, *(Settlement(claim=claim, move=move) for claim in claims))
    found = await state(bench)
    assert (found.status, found.scheduled_at) == ("pending", bench.clock.now() + 10_000)
    bench.clock.advance(10)
    assert await fire(bench) == [True]
    await run(bench)
    assert (await due(bench)).next_due is None


async def test_the_end_of_an_older_run_means_nothing(bench: Bench) -> None:
    await fired(bench)
    await run(bench, move=Move.BURY, error="no")
    first = (await state(bench)).item_id
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    await fire(bench)
    second = await state(bench)
    await bench.control(RequeueItems, user_id="ann", item_ids=(first,))
    claims = {claim.message.item_id: claim for claim in await bench.claim(TYPE)}
    await settle(bench, done(claims[first]))
    assert await state(bench) == second


async def test_the_claim_that_holds_a_run_can_be_found(bench: Bench) -> None:
    store = bench.backend.triggers
    await ready(bench)
    await store.touch([activity()])
    assert await store.held(TYPE, "ann:phone:bot") is None
    bench.clock.advance(INTERVAL_S)
    await fire(bench)
    assert await store.held(TYPE, "ann:phone:bot") is None, "nobody has claimed it"
    (claim,) = await bench.claim(TYPE)
    held = await store.held(TYPE, "ann:phone:bot")
    assert held is not None
    assert (held.claim_id, held.lease_until, held.key) == (claim.claim_id, claim.lease_until, claim.key)
    assert (held.message, held.submitted_at) == (claim.message, claim.submitted_at)
    await settle(bench, Settlement(claim=held, move=Move.RETRY))
    assert await store.held(TYPE, "ann:phone:bot") is None
    (again,) = await bench.claim(TYPE)
    found = await store.held(TYPE, "ann:phone:bot")
    assert found is not None
    assert (found.claim_id, found.message.attempts) == (again.claim_id, 1)
    (late,) = await bench.queue.settle([Settlement(claim=held, move=Move.COMPLETE)])
    assert late.state == "stale"
    await settle(bench, done(found))
    assert (await state(bench)).status == "completed"
    assert await store.held(TYPE, "bob:phone:bot") is None


async def test_a_stale_worker_ends_nothing(bench: Bench) -> None:
    await fired(bench)
    old = await bench.claim(TYPE, lease_ms=1000)
    await bench.advance(2)
    assert await settle(bench, *map(done, old)) == ["stale"]
    assert (await state(bench)).status == "running"


async def test_many_end_at_once(bench: Bench) -> None:
    users = [f"u{n}" for n in range(50)]
    await fired(bench, *users)
    await run(bench)
    found = await bench.backend.triggers.states(TYPE)
    assert {task.status for task in found} == {"completed"}
    assert len(found) == 50


async def test_what_has_ended_is_shown_for_its_ttl(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    bench.clock.advance(7199)
    assert (await due(bench)).triggers == []
    assert (await state(bench)).status == "completed"
    bench.clock.advance(1)
    assert (await due(bench)).triggers == []
    assert await state(bench) is None
    assert await bench.backend.triggers.states(TYPE) == []


async def test_when_it_last_ended_well_is_known_for_a_day(bench: Bench) -> None:
    """It is kept apart from the task, in whole seconds."""
    store = bench.backend.triggers
    bench.clock.advance(0.123)
    await fired(bench)
    ended = bench.clock.now()
    await run(bench)
    bench.clock.advance(7200)
    await due(bench)
    assert await store.touch([activity()]) == [True]
    found = await state(bench)
    assert (found.status, found.last_exec, found.item_id) == ("pending", ended // 1000 * 1000, None)
    assert (found.created_at, found.retry_count) == (bench.clock.now(), 0)
    bench.clock.advance(INTERVAL_S)
    await fire(bench)
    await run(bench)
    bench.clock.advance(7200)
    await due(bench)
    assert await store.control(RunTrigger(activity()))
    assert (await state(bench)).last_exec == (bench.clock.now() - 7_200_000) // 1000 * 1000


# -- messages that were there before -----------------------------------------------------------------


async def test_a_run_whose_message_has_ended_before_ends_with_it(bench: Bench) -> None:
    await fired(bench)
    await run(bench)
    ended = (await state(bench)).last_exec
    await bench.backend.triggers.control(RunTrigger(activity()))
    (again,) = (await due(bench)).triggers
    made = firing(msgspec.structs.replace(again, scheduled_at=ended))  # the id of the run before
    made = msgspec.structs.replace(made, trigger=again)
    bench.clock.advance(1)
    assert await bench.backend.triggers.fire([made]) == [True]
    assert await bench.claim(TYPE) == []
    found = await state(bench)
    assert (found.status, found.last_exec) == ("completed", bench.clock.now())


async def test_a_message_of_someone_else_holds_up_no_trigger(bench: Bench) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity()])
    bench.clock.advance(10)
    (one,) = (await due(bench)).triggers
    made = firing(one)
    await bench.queue.submit([Message(user_id="ann", label="other", item_id=made.message.item_id)])
    assert await bench.backend.triggers.fire([made]) == [True]
    assert (await state(bench)).status == "failed"
    (found,) = await bench.backend.triggers.statistics()
    assert (found.fired, found.runs, found.failures, found.running) == (1, 1, 1, 0)
    assert found.last_error == "its message was known already"
    assert ids(await bench.claim("other")) == [made.message.item_id]
