"""What every queue does, one move at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie.backends.moves import ClaimRequest, Move, Settlement, Status, Want
from reverie.backends.views import StatusQuery
from reverie.base.clock import from_epoch_ms
from support.living import passes, started

# -- submit ------------------------------------------------------------------------------------------


async def test_a_submitted_message_waits(bench: Bench) -> None:
    one = message("1", task_id="t")
    assert await bench.submit(one) == ["accepted"]
    status = await bench.status(one)
    assert status.status is Status.WAITING
    assert (status.task_type, status.mem_cube_id, status.task_id) == ("work", "ann", "t")
    assert status.submitted_at == bench.clock.now()
    assert (status.started_at, status.ended_at) == (None, None)


async def test_a_known_id_is_a_duplicate_or_a_conflict(bench: Bench) -> None:
    one = message("1", info={"a": 1, "b": 2})
    same = message("1", info={"b": 2, "a": 1}, trace_id="another")
    other = message("1", info={"a": 2})
    assert await bench.submit(one, same, other) == ["accepted", "duplicate", "conflict"]
    assert await bench.submit(same, other) == ["duplicate", "conflict"]
    assert ids(await bench.claim()) == ["1"]


async def test_one_id_of_two_users_is_two_messages(bench: Bench) -> None:
    assert await bench.submit(message("1", "ann"), message("1", "bob")) == ["accepted", "accepted"]
    assert len(await bench.claim()) == 2


async def test_a_claimed_message_is_what_was_submitted(bench: Bench) -> None:
    one = message(
        "i:1",
        user_id="ann:b c%/é",
        mem_cube_id="cube",
        session_id="s",
        task_id="t",
        trace_id="r",
        user_name="Ann",
        info={"doc": 7, "nested": {"a": [1, None, "x"]}},
        timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        level=2,
    )
    await bench.submit(one)
    (claim,) = await bench.claim()
    seen = claim.message
    for field in (
        "item_id",
        "user_id",
        "mem_cube_id",
        "label",
        "content",
        "session_id",
        "task_id",
        "trace_id",
    ):
        assert getattr(seen, field) == getattr(one, field), field
    assert (seen.user_name, seen.info, seen.timestamp, seen.level) == ("Ann", one.info, one.timestamp, 2)
    assert (seen.attempts, seen.losses) == (0, 0)


async def test_the_timestamp_is_when_the_message_was_made(bench: Bench) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    one = message("1")
    assert before < one.timestamp <= datetime.now(UTC)
    await bench.submit(one)
    (claim,) = await bench.claim()
    assert claim.message.timestamp == one.timestamp


async def test_a_message_without_a_timestamp_gets_the_time_of_its_acceptance(bench: Bench) -> None:
    await bench.submit(message("1", timestamp=None))
    (claim,) = await bench.claim()
    assert claim.message.timestamp == from_epoch_ms(bench.clock.now())


# -- claim -------------------------------------------------------------------------------------------


async def test_a_lane_is_served_in_order(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(5)))
    assert ids(await bench.claim()) == ["0", "1", "2", "3", "4"]


async def test_a_lane_gives_at_most_a_quantum_and_then_waits_for_its_settlement(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(5)))
    first = await bench.claim(quantum=2)
    assert ids(first) == ["0", "1"]
    assert await bench.claim(quantum=2) == []
    assert await settle(bench, done(first[0])) == ["applied"]
    assert await bench.claim(quantum=2) == []
    await settle(bench, done(first[1]))
    assert ids(await bench.claim(quantum=2)) == ["2", "3"]


async def test_lanes_take_turns(bench: Bench) -> None:
    await bench.submit(*(message(f"a{n}", "ann") for n in range(6)))
    await bench.submit(message("b0", "bob"))
    first = await bench.claim(slots=1, per_slot=1)
    assert ids(first) == ["a0"]
    await settle(bench, *(done(claim) for claim in first))
    second = await bench.claim(slots=1, per_slot=1)
    assert ids(second) == ["b0"]
    await settle(bench, *(done(claim) for claim in second))
    assert ids(await bench.claim(slots=1, per_slot=3, quantum=2)) == ["a1", "a2"]


async def test_what_is_wanted_bounds_what_is_given(bench: Bench) -> None:
    await bench.submit(*(message(f"{user}{n}", user) for user in "abcd" for n in range(3)))
    assert ids(await bench.claim(slots=2, per_slot=1, quantum=1)) == ["a0", "b0"]
    assert len(await bench.claim(slots=1, per_slot=4)) == 4


async def test_only_wanted_labels_are_given(bench: Bench) -> None:
    await bench.submit(message("1", label="work"), message("2", label="other"))
    assert ids(await bench.claim("other")) == ["2"]


async def test_lower_levels_come_first(bench: Bench) -> None:
    await bench.submit(message("slow", label="slow", level=3), message("fast", label="fast", level=1))
    wants = {"slow": Want(slots=1), "fast": Want(slots=1)}
    assert ids(await bench.queue.claim(ClaimRequest(worker="w", wants=wants))) == ["fast", "slow"]


async def test_an_unordered_label_gives_more_of_a_lane_at_once(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(3)))
    assert ids(await bench.claim(slots=2, per_slot=1, ordered=False, quantum=2)) == ["0", "1"]
    assert ids(await bench.claim(ordered=False)) == ["2"]
    await bench.submit(message("3"))
    assert ids(await bench.claim(ordered=False)) == ["3"]


async def test_a_claim_is_seen_as_in_progress(bench: Bench) -> None:
    one = message("1")
    await bench.submit(one)
    bench.clock.advance(2)
    await bench.claim()
    status = await bench.status(one)
    assert status.status is Status.IN_PROGRESS
    assert status.started_at == bench.clock.now()


# -- settle ------------------------------------------------------------------------------------------


async def test_done_is_completed(bench: Bench) -> None:
    one = message("1")
    await bench.submit(one)
    (claim,) = await bench.claim()
    bench.clock.advance(1)
    assert await settle(bench, done(claim)) == ["applied"]
    status = await bench.status(one)
    assert (status.status, status.attempts, status.ended_at) == (Status.COMPLETED, 1, bench.clock.now())
    assert await bench.submit(one) == ["duplicate"]


async def test_a_claim_is_settled_once(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    assert await settle(bench, done(claim), done(claim)) == ["applied", "stale"]
    late = Settlement(claim=claim, move=Move.BURY, error="late")
    assert await settle(bench, late) == ["stale"]
    assert (await bench.status(message("1"))).status is Status.COMPLETED


async def test_follow_ups_join_when_their_parent_is_done(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    next_one = message("2", label="next")
    assert await settle(bench, done(claim, follow_ups=(next_one,))) == ["applied"]
    assert ids(await bench.claim("next")) == ["2"]


async def test_a_stale_settlement_brings_no_follow_ups(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim(lease_ms=1000)
    await bench.advance(2)
    assert await settle(bench, done(claim, follow_ups=(message("2", label="next"),))) == ["stale"]
    assert await bench.claim("next") == []


async def test_a_retried_message_keeps_its_place_and_its_lane_rests(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    first, second = await bench.claim()
    again = Settlement(claim=first, move=Move.RETRY, delay_ms=5000, error="boom")
    back = Settlement(claim=second, move=Move.RELEASE, attempt=False)
    assert await settle(bench, again, back) == ["applied", "applied"]
    assert await bench.claim() == []
    status = await bench.status(message("1"))
    assert (status.status, status.attempts, status.error) == (Status.WAITING, 1, "boom")
    await bench.advance(4.9)
    assert await bench.claim() == []
    await bench.advance(0.1)
    claims = await bench.claim()
    assert ids(claims) == ["1", "2"]
    assert [claim.message.attempts for claim in claims] == [1, 0]


async def test_what_is_handed_back_may_say_why(bench: Bench) -> None:
    one = message("1")
    await bench.submit(one)
    (claim,) = await bench.claim()
    why = Settlement(claim=claim, move=Move.RELEASE, attempt=False, delay_ms=1000, error="quota: used up")
    assert await settle(bench, why) == ["applied"]
    item = await bench.status(one)
    assert (item.status, item.attempts, item.error) == (Status.WAITING, 0, "quota: used up")
    await bench.advance(1)
    assert ids(await bench.claim()) == ["1"]


async def test_a_retried_message_of_an_unordered_label_lets_others_pass(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    first, second = await bench.claim(ordered=False)
    again = Settlement(claim=first, move=Move.RETRY, delay_ms=5000)
    back = Settlement(claim=second, move=Move.RELEASE, attempt=False)
    await settle(bench, again, back)
    assert ids(await bench.claim(ordered=False)) == ["2"]
    await bench.advance(5)
    assert ids(await bench.claim(ordered=False)) == ["1"]


async def test_a_message_released_at_once_is_claimed_again(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(4)))
    claims = await bench.claim(quantum=3)
    await settle(bench, *(Settlement(claim=c, move=Move.RELEASE, attempt=False) for c in reversed(claims)))
    again = await bench.claim()
    assert ids(again) == ["0", "1", "2", "3"]
    assert {claim.message.attempts for claim in again} == {0}


async def test_a_cancelled_message_ends(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    first, second = await bench.claim()
    await settle(bench, Settlement(claim=first, move=Move.CANCEL), done(second))
    status = await bench.status(message("1"))
    assert (status.status, status.error) == (Status.CANCELLED, "cancelled")


async def test_a_buried_message_fails_and_its_lane_goes_on(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    (first,) = await bench.claim(quantum=1)
    await settle(bench, Settlement(claim=first, move=Move.BURY, error="no use"))
    status = await bench.status(message("1"))
    assert (status.status, status.error, status.ended_at) == (Status.FAILED, "no use", bench.clock.now())
    assert ids(await bench.claim()) == ["2"]


# -- leases ------------------------------------------------------------------------------------------


async def test_a_lost_claim_is_handed_on_first_in_its_lane(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(3)))
    (stale, *_) = await bench.claim(quantum=2, lease_ms=10_000)
    assert (await bench.advance(9.9)).reaped == 0
    assert (await bench.advance(0.1)).reaped == 2
    assert await settle(bench, done(stale)) == ["stale"]
    for expected in (["0"], ["1"], ["2"]):  # what was lost comes alone, before what came after it
        claims = await bench.claim()
        assert ids(claims) == expected
        assert (claims[0].message.losses, claims[0].message.attempts) == (int(expected != ["2"]), 0)
        assert await settle(bench, done(claims[0])) == ["applied"]


async def test_renewal_keeps_a_claim(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim(lease_ms=10_000)
    bench.clock.advance(9)
    renewal = await bench.queue.renew([claim], 10_000)
    assert (renewal.lost, renewal.cancelled) == ([], [])
    assert renewal.lease_until == bench.clock.now() + 10_000
    assert (await bench.advance(9)).reaped == 0
    assert (await bench.advance(1)).reaped == 1
    (lost,) = (await bench.queue.renew([claim], 10_000)).lost
    assert (lost.key, lost.claim_id) == (claim.key, claim.claim_id)


async def test_after_too_many_losses_a_message_is_buried(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    for _ in range(3):
        assert ids(await bench.claim(quantum=1, lease_ms=1000)) == ["1"]
        await bench.advance(1)
    status = await bench.status(message("1"))
    assert (status.status, status.error, status.losses) == (Status.FAILED, "killed_worker", 3)
    assert ids(await bench.claim()) == ["2"]


# -- time --------------------------------------------------------------------------------------------


async def test_a_message_due_later_takes_its_place_then(bench: Bench) -> None:
    soon = from_epoch_ms(bench.clock.now()) + timedelta(seconds=5)
    await bench.submit(message("later", due=soon), message("now"))
    (claim,) = await bench.claim()
    assert claim.message.item_id == "now"
    await settle(bench, done(claim))
    step = await bench.advance(1)
    assert step.next_due == bench.clock.now() + 4000
    await bench.submit(message("between"))
    await bench.advance(4)
    assert ids(await bench.claim()) == ["between", "later"]


async def test_the_status_of_ended_work_expires_but_a_dead_letter_stays(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", "bob"), message("3", "cem"))
    one, two, _ = await bench.claim(lease_ms=10_000_000)
    await settle(bench, done(one), Settlement(claim=two, move=Move.BURY, error="x"))
    assert (await bench.advance(59)).expired == 0
    assert (await bench.advance(1)).expired == 1
    assert await bench.status(message("1")) is None
    assert (await bench.status(message("2", "bob"))).status is Status.FAILED
    assert (await bench.status(message("3", "cem"))).status is Status.IN_PROGRESS
    assert await bench.submit(message("1")) == ["accepted"]


@pytest.mark.limits(dead_retention_ms=90_000)
async def test_a_dead_letter_is_pruned_by_the_retention_that_is_set_for_it(bench: Bench) -> None:
    past = from_epoch_ms(bench.clock.now()) + timedelta(seconds=1)
    await bench.submit(message("1"), message("2", "bob", deadline=past), message("3", "cem"))
    claims = {claim.message.item_id: claim for claim in await bench.claim(lease_ms=10_000_000)}
    await bench.queue.save_memo(claims["1"], "step", "7")
    await settle(bench, Settlement(claim=claims["1"], move=Move.BURY, error="x"))
    await settle(bench, Settlement(claim=claims["2"], move=Move.RETRY))
    await bench.advance(2)  # the deadline of "2" passes
    assert (await bench.status(message("2", "bob"))).status is Status.FAILED
    step = await bench.advance(87)
    assert (step.expired, step.next_due) == (0, bench.clock.now() + 1000)
    assert (await bench.advance(1)).expired == 1
    assert await bench.status(message("1")) is None
    assert (await bench.status(message("2", "bob"))).status is Status.FAILED
    assert (await bench.advance(2)).expired == 1
    assert await bench.status(message("2", "bob")) is None
    states = {state.label: state for state in await bench.views.labels()}
    assert (states["work"].failed, states["work"].in_progress) == (0, 1)
    assert await bench.submit(message("1")) == ["accepted"]
    (again,) = await bench.claim()
    assert await bench.queue.load_memos(again) == {}


async def test_advance_does_at_most_its_limit_and_says_that_there_is_more(bench: Bench) -> None:
    soon = from_epoch_ms(bench.clock.now()) + timedelta(seconds=1)
    await bench.submit(*(message(str(n), due=soon) for n in range(5)))
    bench.clock.advance(1)
    first = await bench.queue.advance(3)
    assert (first.staged, first.more) == (3, True)
    second = await bench.queue.advance(3)
    assert (second.staged, second.more, second.next_due) == (2, False, None)
    assert ids(await bench.claim()) == ["0", "1", "2", "3", "4"]


# -- waiting -----------------------------------------------------------------------------------------


async def test_wait_is_woken_by_new_work(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.queue.wait(["work"], None))
    await bench.submit(message("1"))
    await asyncio.wait_for(waiting, 10)


async def test_work_that_came_before_the_wait_is_heard(bench: Bench) -> None:
    await bench.submit(message("1"))
    await asyncio.wait_for(bench.queue.wait(["work"], None), 10)


@pytest.mark.parametrize("steps", range(12))
async def test_a_wait_can_be_cancelled_at_any_moment(bench: Bench, steps: int) -> None:
    for _ in range(2):  # the second one finds whatever connection the first has left
        waiting = asyncio.create_task(bench.queue.wait(["work"], None))
        await passes(steps)
        waiting.cancel()
        done, _ = await asyncio.wait({waiting}, timeout=10)
        assert done


async def test_wait_ends_at_its_time(bench: Bench) -> None:
    waiting = await started(bench.queue.wait(["work"], bench.clock.now() + 5000))
    bench.clock.advance(5)
    await asyncio.wait_for(waiting, 10)


async def test_who_waits_for_time_hears_of_an_earlier_due_time(bench: Bench) -> None:
    waiting = await started(bench.queue.wait([], None))
    await bench.submit(message("1", due=from_epoch_ms(bench.clock.now()) + timedelta(seconds=1)))
    bench.clock.advance(1)
    await asyncio.wait_for(waiting, 10)
    assert (await bench.queue.advance(100)).staged == 1


async def test_what_comes_between_an_advance_and_the_wait_is_heard(bench: Bench) -> None:
    now = from_epoch_ms(bench.clock.now())
    await bench.submit(message("1", due=now + timedelta(seconds=1)))
    bench.clock.advance(1)
    found = await bench.queue.advance(100)
    await bench.submit(message("2", due=now + timedelta(seconds=2)))
    waiting = await started(bench.queue.wait([], found.next_due))
    bench.clock.advance(1)
    await asyncio.wait_for(waiting, 10)
    assert (await bench.queue.advance(100)).staged == 1


# -- views -------------------------------------------------------------------------------------------


async def test_a_view_shows_one_item_a_task_or_all_of_a_user(bench: Bench) -> None:
    await bench.submit(
        message("1", task_id="t"), message("2", task_id="t"), message("3"), message("4", "bob")
    )

    async def read(**query) -> list[str]:
        return [row.item_id for row in (await bench.views.read(StatusQuery(user_id="ann", **query))).rows]

    assert await read(item_id="2") == ["2"]
    assert sorted(await read(task_id="t")) == ["1", "2"]
    assert sorted(await read()) == ["1", "2", "3"]
    assert await read(item_id="4") == []
    page = await bench.views.read(StatusQuery(user_id="ann", limit=2))
    assert (len(page.rows), page.next is None) == (2, False)


async def test_a_view_can_bring_the_message_itself(bench: Bench) -> None:
    await bench.submit(message("1", info={"a": 1}))
    page = await bench.views.read(StatusQuery(user_id="ann", item_id="1", with_message=True))
    assert (page.rows[0].message.content, page.rows[0].message.info) == ("1", {"a": 1})


async def test_after_a_claim_that_leaves_ready_lanes_a_wait_returns_at_once(bench: Bench) -> None:
    """An unordered lane gives a quantum and is ready again: nobody is told of it but by the claim itself."""
    await bench.submit(*[message(str(n)) for n in range(5)])
    await bench.queue.wait(("work",), None)  # the news of the submit
    claims = await bench.claim(quantum=2, ordered=False)
    assert ids(claims) == ["0", "1"]
    async with asyncio.timeout(30):
        await bench.queue.wait(("work",), None)
    assert ids(await bench.claim(quantum=10, ordered=False)) == ["2", "3", "4"]
