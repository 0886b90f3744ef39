"""Looking in: counts of labels and lanes, how old the work is, and what became of each run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from conformance.conftest import Bench, done, message, settle
from reverie.backends.control import CancelItems, DeleteItems, RequeueItems
from reverie.backends.moves import Move, Presence, ScopeLimits, Settlement
from reverie.backends.views import MOST_KEPT, Attempt, LabelState, LaneState, QueueHealth, StatusQuery
from reverie.base.clock import from_epoch_ms, to_epoch_ms
from reverie.message import Key, Lane, Message
from support.living import started


async def end(bench: Bench, move: Move, **fields) -> None:
    """Claim one message and report it."""
    (claim,) = await bench.claim()
    assert await settle(bench, Settlement(claim=claim, move=move, **fields)) == ["applied"]


async def history(bench: Bench, item_id: str = "1") -> list[Attempt]:
    return await bench.views.history(Key("ann", item_id))


async def outcomes(bench: Bench, item_id: str = "1") -> list[tuple[str, str | None]]:
    return [(attempt.outcome, attempt.error) for attempt in await history(bench, item_id)]


def later(bench: Bench, item_id: str, seconds: float, **fields: Any) -> Message:
    return message(item_id, due=from_epoch_ms(bench.clock.now()) + timedelta(seconds=seconds), **fields)


# -- labels ------------------------------------------------------------------------------------------


async def test_labels_are_counted_by_status(bench: Bench) -> None:
    await bench.submit(*(message(str(n), label="other") for n in range(2)))
    await bench.submit(*(message(str(n), user_id=f"user-{n}") for n in range(6)), later(bench, "9", 60))
    claims = await bench.claim()
    by_user = {claim.message.user_id: claim for claim in claims}
    await settle(
        bench,
        done(by_user["user-0"]),
        done(by_user["user-1"]),
        Settlement(claim=by_user["user-2"], move=Move.BURY, error="no"),
        Settlement(claim=by_user["user-3"], move=Move.CANCEL),
        Settlement(claim=by_user["user-4"], move=Move.RETRY, error="again"),
    )
    assert await bench.views.labels() == [
        LabelState(label="other", waiting=2),
        LabelState(
            label="work",
            waiting=2,
            in_progress=1,
            completed=2,
            failed=1,
            cancelled=1,
            completed_ever=2,
            failed_ever=1,
        ),
    ]


async def test_what_is_refused_or_known_is_not_counted(bench: Bench) -> None:
    await bench.submit(message("1"), message("1"), message("2"))
    await bench.submit(message("2"), message("2", info={"other": 1}))
    await bench.submit(message("3", unique_key="x"), message("4", unique_key="x"))
    assert await bench.views.labels() == [LabelState(label="work", waiting=3)]
    await bench.submit(message("5", unique_key="x", unique_policy="replace"))
    assert await bench.views.labels() == [LabelState(label="work", waiting=3, cancelled=1)]


async def test_follow_ups_are_counted_with_their_label(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await settle(bench, done(claim, follow_ups=(message("2", label="next"), message("3", label="next"))))
    assert await bench.views.labels() == [
        LabelState(label="next", waiting=2),
        LabelState(label="work", completed=1, completed_ever=1),
    ]


async def test_a_settlement_that_is_rejected_counts_nothing(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    orphan = message("2", label="next", depends_on=("nobody",))
    assert await settle(bench, done(claim, follow_ups=(orphan,))) == ["rejected"]
    assert await bench.views.labels() == [LabelState(label="work", in_progress=1)]


async def test_counts_of_ever_only_grow(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    first, second = await bench.claim()
    await settle(bench, done(first), Settlement(claim=second, move=Move.BURY, error="no"))
    await bench.control(RequeueItems, user_id="ann")
    (state,) = await bench.views.labels()
    assert state == LabelState(label="work", waiting=1, completed=1, completed_ever=1, failed_ever=1)
    await end(bench, Move.BURY, error="still no")
    await bench.control(DeleteItems, user_id="ann")
    assert (await bench.advance(60)).expired == 1
    assert await bench.views.labels() == [LabelState(label="work", completed_ever=1, failed_ever=2)]


async def test_a_label_of_which_nothing_is_known_any_more_is_not_shown(bench: Bench) -> None:
    await bench.submit(message("1"))
    await bench.control(CancelItems, user_id="ann")
    assert await bench.views.labels() == [LabelState(label="work", cancelled=1)]
    assert (await bench.advance(60)).expired == 1
    assert await bench.views.labels() == []


async def test_lost_claims_are_counted(bench: Bench) -> None:
    await bench.submit(message("1"))
    for _ in range(2):
        await bench.claim(lease_ms=1000)
        await bench.advance(1)
        assert await bench.views.labels() == [LabelState(label="work", waiting=1)]
    await bench.claim(lease_ms=1000)
    await bench.advance(1)
    assert await bench.views.labels() == [LabelState(label="work", failed=1, failed_ever=1)]


async def test_dependants_that_fail_are_counted(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", depends_on=("1",)), message("3", depends_on=("2",)))
    await end(bench, Move.BURY, error="no")
    assert await bench.views.labels() == [LabelState(label="work", failed=3, failed_ever=3)]


async def test_a_label_that_is_handled_keeps_its_counts(bench: Bench) -> None:
    await bench.queue.renew([], 30_000, Presence(worker="w", labels=("work",)))
    await bench.submit(message("1"))
    await end(bench, Move.COMPLETE)
    assert await bench.views.labels() == [
        LabelState(label="work", completed=1, completed_ever=1, handled=True)
    ]


# -- lanes -------------------------------------------------------------------------------------------


async def test_the_lanes_of_a_user(bench: Bench) -> None:
    await bench.submit(
        message("1", mem_cube_id="b"),
        message("2", mem_cube_id="b"),
        message("3", mem_cube_id="a"),
        message("4", mem_cube_id="a", label="other"),
        message("5", user_id="ann:a"),
        message("6", user_id="bob"),
        message("7", mem_cube_id="done"),
    )
    await bench.claim()
    await settle(bench, done((await bench.claim("other"))[0]))
    assert await bench.views.lanes("ann") == [
        LaneState(lane=Lane("ann", "a", "work"), waiting=0, in_progress=1),
        LaneState(lane=Lane("ann", "b", "work"), waiting=0, in_progress=2),
        LaneState(lane=Lane("ann", "done", "work"), waiting=0, in_progress=1),
    ]
    assert await bench.views.lanes("nobody") == []


async def test_what_is_delayed_belongs_to_its_lane(bench: Bench) -> None:
    await bench.submit(message("1"), later(bench, "2", 60))
    lane = Lane("ann", "ann", "work")
    assert await bench.views.lanes("ann") == [LaneState(lane=lane, waiting=2, in_progress=0)]
    await end(bench, Move.COMPLETE)
    assert await bench.views.lanes("ann") == [LaneState(lane=lane, waiting=1, in_progress=0)]
    await bench.control(CancelItems, user_id="ann")
    assert await bench.views.lanes("ann") == []


async def test_when_a_message_with_a_unique_key_is_due(bench: Bench) -> None:
    lane = Lane("ann", "ann", "work")
    held = later(bench, "1", 60, unique_key="read: it")
    await bench.submit(held, later(bench, "2", 30, unique_key="other"), message("3", unique_key="now"))
    assert await bench.views.due_later(lane, "read: it") == to_epoch_ms(held.due)
    assert await bench.views.due_later(lane, "now") is None
    assert await bench.views.due_later(lane, "nothing") is None
    assert await bench.views.due_later(Lane("bob", "bob", "work"), "read: it") is None
    bench.clock.advance(60)
    await bench.queue.advance(100)
    assert await bench.views.due_later(lane, "read: it") is None


# -- health ------------------------------------------------------------------------------------------


async def test_an_empty_queue_has_no_age(bench: Bench) -> None:
    assert await bench.views.health() == QueueHealth()


async def test_the_age_of_what_waits_runs_and_was_completed(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"))
    bench.clock.advance(1)
    await bench.submit(message("2", user_id="bob"), later(bench, "3", 60))
    assert await bench.views.health() == QueueHealth(oldest_waiting_at=start, oldest_created_at=start)
    bench.clock.advance(1)
    (first,) = await bench.claim(slots=1, per_slot=1)
    assert first.message.item_id == "1"
    assert await bench.views.health() == QueueHealth(
        oldest_waiting_at=start + 1000, oldest_created_at=start + 1000, oldest_in_progress_at=start + 2000
    )
    bench.clock.advance(1)
    (second,) = await bench.claim(slots=1, per_slot=1)
    assert await bench.views.health() == QueueHealth(oldest_in_progress_at=start + 2000)
    await settle(bench, done(first))
    assert await bench.views.health() == QueueHealth(
        oldest_in_progress_at=start + 3000, last_completed_at=start + 3000
    )
    bench.clock.advance(1)
    await settle(bench, Settlement(claim=second, move=Move.BURY, error="no"))
    assert await bench.views.health() == QueueHealth(last_completed_at=start + 3000)


async def test_what_waits_for_its_time_or_others_is_not_old(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(*(later(bench, str(n), 5) for n in range(120)))
    await bench.submit(message("parent"), message("child", depends_on=("parent",)))
    (claim,) = await bench.claim()
    bench.clock.advance(1)
    assert (await bench.views.health()).oldest_waiting_at is None
    await settle(bench, done(claim))
    health = await bench.views.health()
    assert (health.oldest_waiting_at, health.oldest_created_at) == (start + 1000, start)


async def test_what_waits_behind_a_run_grows_old(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"), message("2"))
    bench.clock.advance(1)
    await bench.submit(message("3", user_id="bob"))
    (claim,) = await bench.claim(slots=1, per_slot=1)
    assert claim.message.item_id == "1"
    assert (await bench.views.health()).oldest_waiting_at == start
    await settle(bench, Settlement(claim=claim, move=Move.RETRY, delay_ms=5000))
    assert (await bench.views.health()).oldest_waiting_at == start + 1000
    await bench.advance(5)
    assert (await bench.views.health()).oldest_waiting_at == start


@pytest.mark.limits(tenant=ScopeLimits(concurrency=1))
async def test_what_waits_for_room_grows_old(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"), message("2", label="other"))
    bench.clock.advance(1)
    assert len(await bench.claim()) == 1
    assert await bench.claim("other") == []
    assert (await bench.views.health()).oldest_waiting_at == start


async def test_what_comes_again_waits_anew_and_is_as_old_as_before(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"))
    bench.clock.advance(1)
    await end(bench, Move.RETRY, error="again")
    health = QueueHealth(oldest_waiting_at=start + 1000, oldest_created_at=start)
    assert await bench.views.health() == health


async def test_a_claim_says_since_when_its_message_waited(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"))
    bench.clock.advance(1)
    (claim,) = await bench.claim()
    assert (claim.submitted_at, claim.waiting_since) == (start, start)
    bench.clock.advance(1)
    await settle(bench, Settlement(claim=claim, move=Move.RETRY, error="again"))
    bench.clock.advance(1)
    (claim,) = await bench.claim(lease_ms=1000)
    assert (claim.submitted_at, claim.waiting_since) == (start, start + 2000)
    await bench.advance(1)
    bench.clock.advance(1)
    (claim,) = await bench.claim()
    assert (claim.submitted_at, claim.waiting_since) == (start, start + 4000)
    await settle(bench, done(claim))
    await bench.submit(later(bench, "2", 2))
    await bench.advance(3)
    (claim,) = await bench.claim()
    assert (claim.submitted_at, claim.waiting_since) == (start + 5000, start + 8000)


# -- history -----------------------------------------------------------------------------------------


async def test_what_is_unknown_or_has_not_run_has_no_history(bench: Bench) -> None:
    assert await history(bench, "nobody") == []
    await bench.submit(message("1"))
    assert await history(bench) == []
    await bench.claim()
    assert await history(bench) == []


async def test_each_run_is_remembered(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"))
    for move in (Move.RETRY, Move.RELEASE, Move.LOSE, Move.COMPLETE):
        bench.clock.advance(1)
        (claim,) = await bench.claim()
        bench.clock.advance(1)
        error = "because" if move in {Move.RETRY, Move.RELEASE} else None
        attempt = move is not Move.RELEASE
        assert await settle(bench, Settlement(claim=claim, move=move, error=error, attempt=attempt)) == [
            "applied"
        ]
    expected = [("retry", "because"), ("handed_back", "because"), ("lost", None), ("completed", None)]
    assert await history(bench) == [
        Attempt(
            outcome=outcome,
            started_at=start + 1000 + 2000 * number,
            ended_at=start + 2000 + 2000 * number,
            worker="w",
            error=error,
        )
        for number, (outcome, error) in enumerate(expected)
    ]


async def test_what_was_handed_back_without_having_run_is_not_remembered(bench: Bench) -> None:
    await bench.submit(message("1"))
    await end(bench, Move.RELEASE, attempt=False)
    assert await history(bench) == []
    await end(bench, Move.BURY, error="no")
    assert await outcomes(bench) == [("failed", "no")]


async def test_a_lease_that_ran_out_is_remembered(bench: Bench) -> None:
    start = bench.clock.now()
    await bench.submit(message("1"))
    for _ in range(3):
        await bench.claim(lease_ms=1000)
        await bench.advance(1)
    lost = [
        Attempt(outcome="lost", started_at=start + 1000 * n, ended_at=start + 1000 * n + 1000, worker="w")
        for n in range(2)
    ]
    *first, last = await history(bench)
    assert first == lost
    assert (last.outcome, last.error, last.worker) == ("lost", "killed_worker", "w")


async def test_cancelled_runs_are_remembered(bench: Bench) -> None:
    """Whatever the worker reports of one that someone wants cancelled, unless it has completed."""
    moves = [Move.CANCEL, Move.RETRY, Move.RELEASE, Move.LOSE, Move.BURY, Move.COMPLETE]
    await bench.submit(*(message(move, mem_cube_id=move) for move in moves))
    claims = {claim.message.item_id: claim for claim in await bench.claim()}
    await bench.control(CancelItems, user_id="ann")
    errors = {Move.RETRY: "tired", Move.BURY: "no"}
    for move in moves:
        attempt = move is not Move.RELEASE
        await settle(
            bench,
            Settlement(claim=claims[move], move=move, error=errors.get(move), attempt=attempt),
        )
    got = {move: await outcomes(bench, move) for move in moves}
    assert got == {
        Move.CANCEL: [("cancelled", None)],
        Move.RETRY: [("cancelled", "tired")],
        Move.RELEASE: [("cancelled", None)],
        Move.LOSE: [("cancelled", None)],
        Move.BURY: [("cancelled", "no")],
        Move.COMPLETE: [("completed", None)],
    }


async def test_what_ended_without_a_run_says_so(bench: Bench) -> None:
    now = bench.clock.now()
    soon = from_epoch_ms(now) + timedelta(seconds=1)
    await bench.submit(
        message("late", deadline=soon, mem_cube_id="other"),
        message("child", depends_on=("parent",)),
        message("parent"),
    )
    await bench.control(CancelItems, user_id="ann", item_ids=("parent",))
    await bench.advance(1)
    assert await history(bench, "parent") == [Attempt(outcome="cancelled", ended_at=now)]
    assert await history(bench, "child") == [
        Attempt(outcome="failed", ended_at=now, error="dependency: parent cancelled")
    ]
    assert await history(bench, "late") == [Attempt(outcome="failed", ended_at=now + 1000, error="deadline")]


async def test_only_the_last_runs_are_remembered(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    for n in range(MOST_KEPT + 3):
        claims = {claim.message.item_id: claim for claim in await bench.claim()}
        await settle(
            bench,
            *(Settlement(claim=claim, move=Move.RETRY, error=str(n)) for claim in claims.values()),
        )
    assert await outcomes(bench) == [("retry", str(n)) for n in range(3, MOST_KEPT + 3)]
    assert await bench.run_all() == ["1", "2"]
    expected = [*(("retry", str(n)) for n in range(4, MOST_KEPT + 3)), ("completed", None)]
    assert await outcomes(bench) == await outcomes(bench, "2") == expected


async def test_a_requeued_message_keeps_its_history(bench: Bench) -> None:
    await bench.submit(message("1"))
    await end(bench, Move.BURY, error="no")
    await bench.control(RequeueItems, user_id="ann")
    assert await outcomes(bench) == [("failed", "no")]
    await end(bench, Move.COMPLETE)
    assert await outcomes(bench) == [("failed", "no"), ("completed", None)]


async def test_the_history_goes_with_the_status(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    first, second = await bench.claim()
    await settle(bench, *(Settlement(claim=claim, move=Move.RETRY, error="x") for claim in (first, second)))
    first, second = await bench.claim()
    await settle(bench, done(first), Settlement(claim=second, move=Move.BURY, error="no"))
    await bench.control(DeleteItems, user_id="ann", item_ids=("2",))
    assert await history(bench, "2") == []
    assert (await bench.advance(60)).expired == 1
    assert await history(bench) == []
    assert await bench.submit(message("1"), message("2")) == ["accepted", "accepted"]
    assert await history(bench) == await history(bench, "2") == []


async def test_a_stale_report_is_not_remembered(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.RETRY, error="x"))
    for move in (Move.BURY, Move.LOSE):
        assert await settle(bench, Settlement(claim=claim, move=move, error="late")) == ["stale"]
    assert await outcomes(bench) == [("retry", "x")]


# -- broadcast ---------------------------------------------------------------------------------------


async def test_nobody_hears_what_is_said_to_nobody(bench: Bench) -> None:
    broadcast = bench.backend.broadcast
    assert not broadcast.is_heard
    broadcast.say(b"news")
    broadcast.say(b"x" * 10_000_000)


async def test_listening_can_be_ended(bench: Bench) -> None:
    heard = bench.backend.broadcast.listen()
    waiting = await started(anext(heard))
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    await heard.aclose()
    assert waiting.cancelled()


# -- pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [30, 1200])
async def test_a_user_comes_in_pages_that_new_and_ended_items_do_not_disturb(
    bench: Bench, items: int
) -> None:
    """1200 items are more than a page of Redis's own."""
    old = [f"{number:04}" for number in range(items)]
    await bench.submit(*(message(item_id) for item_id in old))
    await bench.submit(message("other", user_id="bob"))
    seen: list[str] = []
    after, size = None, items // 3 - 1
    while True:
        page = await bench.views.read(StatusQuery(user_id="ann", limit=size, after=after))
        assert len(page.rows) <= size
        seen += [row.item_id for row in page.rows]
        if page.next is None:
            break
        if after is None:
            await bench.submit(*(message(f"new-{number}") for number in range(3)))
            claim, *_ = await bench.claim()
            assert await settle(bench, done(claim)) == ["applied"]
            await bench.control(CancelItems, item_ids=("0021", old[-1]), user_id="ann")
        after = page.next
    assert seen == [*old, "new-0", "new-1", "new-2"]


async def test_a_clock_that_is_set_back_hides_no_run(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", "bob"))
    bench.clock.advance(-3600)
    for claim in await bench.claim():
        await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    for user, item in (("ann", "1"), ("bob", "2")):
        assert [run.outcome for run in await bench.views.history(Key(user, item))] == ["failed"]
