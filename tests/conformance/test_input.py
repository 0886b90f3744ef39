"""What a message may ask for when it is submitted: a deadline, others to wait for, to be the only one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie.backends.control import CancelItems, RequeueItems, Selection
from reverie.backends.moves import Move, Presence, Settlement, Status
from reverie.base.clock import from_epoch_ms
from reverie.errors import InvalidMessageError
from support.living import started


def within(bench: Bench, seconds: float):
    return from_epoch_ms(bench.clock.now()) + timedelta(seconds=seconds)


async def statuses(bench: Bench, *names: str) -> list[str]:
    return [str((await bench.status(message(name))).status) for name in names]


# -- deadline ----------------------------------------------------------------------------------------


async def test_what_was_not_started_by_its_deadline_fails(bench: Bench) -> None:
    await bench.submit(message("1", deadline=within(bench, 5)), message("2"))
    assert (await bench.queue.advance(100)).next_due == bench.clock.now() + 5000
    step = await bench.advance(5)
    assert [one.message.item_id for one in step.ended] == ["1"]
    status = await bench.status(message("1"))
    assert (status.status, status.error, status.started_at) == (Status.FAILED, "deadline", None)
    assert await bench.run_all() == ["2"]


async def test_a_claim_never_gives_what_is_past_its_deadline(bench: Bench) -> None:
    await bench.submit(message("1", deadline=within(bench, 5)), message("2"))
    bench.clock.advance(5)
    assert ids(await bench.claim()) == ["2"]
    assert (await bench.status(message("1"))).error == "deadline"
    if bench.kind != "redis":
        assert [one.message.item_id for one in (await bench.advance()).ended] == [
            "1"
        ]  # so that its end is known


async def test_a_running_message_is_left_to_its_worker(bench: Bench) -> None:
    deadline = within(bench, 5)
    await bench.submit(message("1", deadline=deadline))
    (claim,) = await bench.claim()
    assert claim.message.deadline == deadline
    await bench.advance(6)
    assert await settle(bench, done(claim)) == ["applied"]


# -- depends_on --------------------------------------------------------------------------------------


async def test_a_message_waits_for_those_it_depends_on(bench: Bench) -> None:
    await bench.submit(message("3", depends_on=("1", "2")), message("1"), message("2"))
    first, second = await bench.claim()
    assert ids([first, second]) == ["1", "2"]
    await settle(bench, done(second))
    assert await bench.claim() == []
    await settle(bench, done(first))
    (claim,) = await bench.claim()
    assert (claim.message.item_id, claim.message.depends_on) == ("3", ("1", "2"))


async def test_it_takes_its_place_when_they_have_ended(bench: Bench) -> None:
    await bench.submit(message("1"), message("child", depends_on=("1",)), message("2"))
    assert await bench.run_all() == ["1", "2", "child"]


async def test_what_has_ended_before_is_not_waited_for(bench: Bench) -> None:
    await bench.submit(message("1"))
    await bench.run_all()
    await bench.submit(message("2", depends_on=("1",)))
    assert await bench.run_all() == ["2"]


async def test_a_due_time_is_kept_after_the_wait(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", depends_on=("1",), due=within(bench, 5)))
    assert await bench.run_all() == ["1"]
    assert (await bench.advance(5)).staged == 1
    assert await bench.run_all() == ["2"]


@pytest.mark.parametrize("move", [Move.BURY, Move.CANCEL])
async def test_a_failure_takes_its_dependants_along(bench: Bench, move: Move) -> None:
    await bench.submit(
        message("1"),
        message("2", depends_on=("1",)),
        message("3", depends_on=("2",)),
        message("4", depends_on=("1",), if_dependency_fails="run"),
        message("5", depends_on=("3", "4"), if_dependency_fails="run"),
    )
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=move, error="no"))
    assert await statuses(bench, "2", "3", "4") == ["failed", "failed", "waiting"]
    word = "failed" if move is Move.BURY else "cancelled"
    assert (await bench.status(message("2"))).error == f"dependency: 1 {word}"
    assert (await bench.status(message("3"))).error == "dependency: 2 failed"
    assert await bench.run_all() == ["4", "5"]


async def test_a_dependant_of_something_failed_fails_at_once(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    assert await bench.submit(message("2", depends_on=("1",))) == ["accepted"]
    assert (await bench.status(message("2"))).error == "dependency: 1 failed"
    assert (await bench.queue.advance(100)).next_due is None


async def test_an_unknown_parent_is_refused_and_nothing_is_kept(bench: Bench) -> None:
    await bench.submit(message("bobs", "bob"))
    for parent in ("nobody", "bobs"):
        with pytest.raises(InvalidMessageError, match=f"depends_on='{parent}'"):
            await bench.submit(message("1"), message("2", depends_on=(parent,)))
    assert await bench.status(message("1")) is None


async def test_a_lost_parent_buried_by_time_takes_its_dependants_along(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", depends_on=("1",)))
    for _ in range(3):
        await bench.claim(lease_ms=1000)
        await bench.advance(1)
    assert await statuses(bench, "1", "2") == ["failed", "failed"]


async def test_a_follow_up_may_depend_on_its_parent_and_siblings(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    children = (message("b", depends_on=("a", "1")), message("a"))
    await settle(bench, done(claim, follow_ups=children))
    assert await bench.run_all() == ["a", "b"]


async def test_a_follow_up_with_an_unknown_parent_is_rejected(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    assert await settle(bench, done(claim, follow_ups=(message("a", depends_on=("x",)),))) == ["rejected"]
    assert await statuses(bench, "1") == ["in_progress"]


async def test_a_message_that_is_buried_has_follow_ups(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    buried = Settlement(claim=claim, move=Move.BURY, error="no", follow_ups=(message("a"),))
    assert await settle(bench, buried) == ["applied"]
    assert await statuses(bench, "1", "a") == ["failed", "waiting"]
    assert await settle(bench, buried) == ["stale"]
    assert await bench.run_all() == ["a"]


async def test_a_message_that_is_cancelled_while_it_is_buried_has_none(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await bench.queue.control(CancelItems(Selection(user_id="ann", item_ids=("1",))))
    buried = Settlement(claim=claim, move=Move.BURY, error="no", follow_ups=(message("a"),))
    assert await settle(bench, buried) == ["applied"]
    assert await statuses(bench, "1") == ["cancelled"]
    assert await bench.status(message("a")) is None


# -- unique_key --------------------------------------------------------------------------------------


def unique(item_id: str, policy: str = "skip", **fields):
    return message(item_id, unique_key="k", unique_policy=policy, **fields)


async def test_skip_answers_with_the_one_that_has_the_key(bench: Bench) -> None:
    first, second = await bench.queue.submit([unique("1"), unique("2")])
    assert (first.item_id, first.status) == ("1", "accepted")
    assert (second.item_id, second.status) == ("1", "duplicate")
    assert await bench.status(message("2")) is None
    (claim,) = await bench.claim()
    assert await bench.submit(unique("3")) == ["duplicate"]
    await settle(bench, done(claim))
    assert await bench.submit(unique("4")) == ["accepted"]


async def test_a_key_belongs_to_one_lane(bench: Bench) -> None:
    await bench.submit(unique("1"))
    others = [
        unique("1", user_id="bob"),
        unique("2", label="other"),
        unique("3", mem_cube_id="c"),
        message("4", unique_key="l"),
    ]
    assert await bench.submit(*others) == ["accepted"] * 4


async def test_the_window_outlasts_the_message(bench: Bench) -> None:
    await bench.submit(unique("1", unique_window_s=10))
    await bench.run_all()
    bench.clock.advance(9)
    assert await bench.submit(unique("2")) == ["duplicate"]
    assert await bench.submit(unique("3", "replace")) == ["accepted"]
    await bench.run_all()
    bench.clock.advance(1)
    assert await bench.submit(unique("4")) == ["accepted"]


async def test_replace_cancels_what_waits(bench: Bench) -> None:
    await bench.submit(unique("1"), message("between"))
    assert await bench.submit(unique("2", "replace")) == ["accepted"]
    assert await statuses(bench, "1") == ["cancelled"]
    assert await bench.run_all() == ["between", "2"]


async def test_replace_leaves_what_runs(bench: Bench) -> None:
    await bench.submit(unique("1"))
    (claim,) = await bench.claim()
    assert await bench.submit(unique("2", "replace")) == ["accepted"]
    assert await settle(bench, done(claim)) == ["applied"]
    assert await bench.run_all() == ["2"]


async def test_extend_moves_the_due_time(bench: Bench) -> None:
    await bench.submit(unique("1", due=within(bench, 5)))
    bench.clock.advance(4)
    (answer,) = await bench.queue.submit([unique("2", "extend", due=within(bench, 5))])
    assert (answer.item_id, answer.status) == ("1", "duplicate")
    assert (await bench.advance(4)).staged == 0
    assert (await bench.advance(1)).staged == 1
    assert await bench.run_all() == ["1"]


async def test_extend_puts_off_what_could_have_run(bench: Bench) -> None:
    await bench.submit(unique("1"))
    await bench.submit(unique("2", "extend", due=within(bench, 5)))
    assert await bench.claim() == []
    await bench.advance(5)
    assert await bench.run_all() == ["1"]


async def test_extend_to_now_brings_forward(bench: Bench) -> None:
    await bench.submit(unique("1", due=within(bench, 5)))
    await bench.submit(unique("2", "extend"))
    await bench.advance()
    assert await bench.run_all() == ["1"]


async def test_extend_is_one_more_while_it_runs(bench: Bench) -> None:
    await bench.submit(unique("1"))
    (claim,) = await bench.claim()
    assert await bench.submit(unique("2", "extend", due=within(bench, 5))) == ["accepted"]
    await settle(bench, done(claim))
    await bench.advance(5)
    assert await bench.run_all() == ["2"]


@pytest.mark.parametrize(
    ("first", "second", "due"), [(5, 2, 2), (5, None, 0), (2, 5, 2), (5, -1, 0), (None, None, 0)]
)
async def test_sooner_takes_the_earlier_due_time(
    bench: Bench, first: float | None, second: float | None, due: float
) -> None:
    dues = [None if seconds is None else within(bench, seconds) for seconds in (first, second)]
    await bench.submit(unique("1", due=dues[0]))
    (answer,) = await bench.queue.submit([unique("2", "sooner", due=dues[1])])
    assert (answer.item_id, answer.status) == ("1", "duplicate")
    assert await bench.status(message("2")) is None
    if due:
        assert (await bench.advance(due - 0.001)).staged == 0
        bench.clock.advance(0.001)
    await bench.advance()
    assert await bench.run_all() == ["1"]


async def test_sooner_leaves_what_has_its_place(bench: Bench) -> None:
    await bench.submit(unique("1"), message("2"))
    for due in (None, within(bench, 5)):
        assert await bench.submit(unique("3", "sooner", due=due)) == ["duplicate"]
    assert await bench.run_all() == ["1", "2"]


async def test_who_waits_for_time_hears_of_what_comes_sooner(bench: Bench) -> None:
    await bench.submit(unique("1", due=within(bench, 3600)))
    due = (await bench.queue.advance(100)).next_due
    waiting = await started(bench.queue.wait([], due))
    await bench.submit(unique("2", "sooner", due=within(bench, 1)))
    bench.clock.advance(1)
    await asyncio.wait_for(waiting, 10)
    assert (await bench.queue.advance(100)).staged == 1


@pytest.mark.parametrize("move", [Move.RETRY, Move.RELEASE])
@pytest.mark.parametrize("ordered", [True, False])
async def test_sooner_is_never_before_the_time_of_a_retry(bench: Bench, move: Move, ordered: bool) -> None:
    await bench.submit(unique("1"))
    (claim,) = await bench.claim(ordered=ordered)
    await settle(bench, Settlement(claim=claim, move=move, delay_ms=5000, error="later"))
    (answer,) = await bench.queue.submit([unique("2", "sooner")])
    assert (answer.item_id, answer.status) == ("1", "duplicate")
    await bench.advance(4.9)
    assert await bench.claim(ordered=ordered) == []
    await bench.advance(0.1)
    assert ids(await bench.claim(ordered=ordered)) == ["1"]


async def test_sooner_moves_what_was_sent_back_and_put_off(bench: Bench) -> None:
    await bench.submit(unique("1"))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    await bench.control(RequeueItems, user_id="ann")
    await bench.submit(unique("2", "extend", due=within(bench, 50)))
    assert await bench.submit(unique("3", "sooner", due=within(bench, 5))) == ["duplicate"]
    await bench.advance(5)
    assert await bench.run_all() == ["1"]


async def test_sooner_keeps_one_more_behind_what_runs(bench: Bench) -> None:
    await bench.submit(unique("1"))
    (claim,) = await bench.claim()
    assert await bench.submit(unique("2", "sooner", due=within(bench, 50))) == ["accepted"]
    (answer,) = await bench.queue.submit([unique("3", "sooner", due=within(bench, 5))])
    assert (answer.item_id, answer.status) == ("2", "duplicate")
    await bench.advance(5)
    assert await bench.claim() == []
    await settle(bench, done(claim))
    assert await bench.run_all() == ["2"]


async def test_sooner_waits_for_what_it_depends_on(bench: Bench) -> None:
    await bench.submit(message("parent"), unique("1", due=within(bench, 50), depends_on=("parent",)))
    assert await bench.submit(unique("2", "sooner", due=within(bench, 5))) == ["duplicate"]
    await bench.advance(5)
    assert await bench.run_all() == ["parent", "1"]


async def test_sooner_is_a_duplicate_of_what_ended_within_its_window(bench: Bench) -> None:
    await bench.submit(unique("1", unique_window_s=10))
    await bench.run_all()
    assert await bench.submit(unique("2", "sooner")) == ["duplicate"]
    bench.clock.advance(10)
    assert await bench.submit(unique("3", "sooner")) == ["accepted"]


async def test_a_known_id_wins_over_the_key(bench: Bench) -> None:
    await bench.submit(unique("1"))
    assert await bench.submit(unique("1", "replace")) == ["duplicate"]
    assert await statuses(bench, "1") == ["waiting"]


# -- labels ------------------------------------------------------------------------------------------


async def test_a_label_nobody_handles_is_kept_and_shown(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", label="other"))
    presence = Presence(worker="w", labels=("work", "idle"), lives_ms=30_000)
    await bench.queue.renew([], 30_000, presence)
    await bench.claim()

    async def shown() -> dict:
        return {s.label: (s.waiting, s.in_progress, s.handled) for s in await bench.views.labels()}

    expected = {"work": (0, 1, True), "other": (1, 0, False), "idle": (0, 0, True)}
    assert await shown() == expected
    assert await bench.views.workers() == [presence]
    bench.clock.advance(30)
    assert await shown() == {"work": (0, 1, False), "other": (1, 0, False)}
    assert await bench.views.workers() == []


async def test_a_worker_takes_its_leave(bench: Bench) -> None:
    await bench.queue.renew([], 30_000, Presence(worker="w", labels=("work",)))
    await bench.queue.renew([], 30_000, Presence(worker="w", labels=()))
    assert await bench.views.workers() == []


@pytest.mark.limits(refuse_unhandled=True)
async def test_a_label_nobody_handles_can_be_refused(bench: Bench) -> None:
    await bench.queue.renew([], 30_000, Presence(worker="w", labels=("work",), lives_ms=30_000))
    assert await bench.submit(message("1")) == ["accepted"]
    with pytest.raises(InvalidMessageError, match="label='other': no live worker"):
        await bench.submit(message("2"), message("3", label="other"))
    assert await bench.status(message("2")) is None
    bench.clock.advance(30)
    with pytest.raises(InvalidMessageError, match="label='work'"):
        await bench.submit(message("4"))
