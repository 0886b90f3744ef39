"""What a person can ask of a queue, and what a run may keep for the next one."""

from __future__ import annotations

import asyncio

import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie.backends.control import CancelItems, DeleteItems, PauseLabel, RequeueItems, ResumeLabel
from reverie.backends.moves import Move, Settlement, Status
from reverie.backends.views import StatusQuery
from reverie.backends.wakeup import CANCELLED


async def bury(bench: Bench, *names: str, error: str = "no") -> None:
    await bench.submit(*(message(name) for name in names))
    claims = await bench.claim()
    assert ids(claims) == list(names)
    await settle(bench, *(Settlement(claim=claim, move=Move.BURY, error=error) for claim in claims))


async def dead(bench: Bench, **query) -> list[str]:
    return [row.item_id for row in (await bench.views.read(StatusQuery(dead=True, **query))).rows]


# -- cancel ------------------------------------------------------------------------------------------


async def test_what_waits_is_cancelled_at_once(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(3)))
    result = await bench.control(CancelItems, user_id="ann", item_ids=("0", "1", "nobody"))
    assert [key.item_id for key in result.changed] == ["0", "1"]
    assert (result.requested, result.more) == ([], False)
    status = await bench.status(message("0"))
    assert (status.status, status.error) == (Status.CANCELLED, "cancelled")
    assert await bench.run_all() == ["2"]
    assert (await bench.advance(60)).expired == 3


async def test_a_cancelled_lane_is_not_served(bench: Bench) -> None:
    await bench.submit(message("1"))
    await bench.control(CancelItems, user_id="ann")
    assert await bench.claim() == []
    await bench.submit(message("2"))
    assert await bench.run_all() == ["2"]


async def test_what_runs_is_asked_to_stop(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    listening = asyncio.create_task(bench.queue.wait([CANCELLED], None))
    result = await bench.control(CancelItems, user_id="ann", item_ids=("1",))
    assert (result.changed, result.requested) == ([], [claim.key])
    await asyncio.wait_for(listening, 10)
    assert (await bench.queue.renew([claim], 30_000)).cancelled == [claim.key]
    assert (await bench.status(message("1"))).status is Status.IN_PROGRESS


@pytest.mark.parametrize("move", [Move.RETRY, Move.RELEASE, Move.BURY, Move.CANCEL, Move.LOSE])
async def test_what_was_to_be_cancelled_does_not_come_again(bench: Bench, move: Move) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await bench.control(CancelItems, user_id="ann")
    delay = 5000 if move in {Move.RETRY, Move.RELEASE} else 0
    assert await settle(bench, Settlement(claim=claim, move=move, delay_ms=delay, error="x")) == ["applied"]
    status = await bench.status(message("1"))
    assert (status.status, status.error) == (Status.CANCELLED, "cancelled")
    await bench.advance(5)
    assert await bench.claim() == []


async def test_whoever_cancels_a_few_at_a_time_comes_to_an_end(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(5)))
    assert len(await bench.claim()) == 5
    asked = []
    while (result := await bench.control(CancelItems, label="work", limit=2)).requested:
        asked += [key.item_id for key in result.requested]
        assert result.more is (len(asked) < 5)
    assert asked == ["0", "1", "2", "3", "4"]
    again = await bench.control(CancelItems, user_id="ann", item_ids=("3",))
    assert [key.item_id for key in again.requested] == ["3"]


async def test_what_is_completed_is_completed(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await bench.control(CancelItems, user_id="ann")
    assert await settle(bench, done(claim)) == ["applied"]
    assert (await bench.status(message("1"))).status is Status.COMPLETED


async def test_a_lost_run_that_was_to_be_cancelled_is_cancelled(bench: Bench) -> None:
    await bench.submit(message("1"))
    await bench.claim(lease_ms=1000)
    await bench.control(CancelItems, user_id="ann")
    await bench.advance(1)
    assert (await bench.status(message("1"))).status is Status.CANCELLED


async def test_what_is_chosen_can_be_narrowed(bench: Bench) -> None:
    await bench.submit(
        message("1", task_id="t"),
        message("2", task_id="t", label="other"),
        message("3"),
        message("4", "bob"),
        message("5", mem_cube_id="c"),
    )

    async def cancel(**which) -> list[str]:
        return [key.item_id for key in (await bench.control(CancelItems, **which)).changed]

    assert await cancel(user_id="ann", task_id="t", label="other") == ["2"]
    assert await cancel(user_id="ann", task_id="t") == ["1"]
    assert await cancel(user_id="ann", mem_cube_id="c") == ["5"]
    first = await bench.control(CancelItems, user_id="ann", limit=1)
    assert (len(first.changed), first.more) == (1, False)
    assert (await bench.status(message("4", "bob"))).status is Status.WAITING


# -- loss reported by the worker ---------------------------------------------------------------------


async def test_a_loss_that_the_worker_reports(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    for losses in (1, 2, 3):
        (claim,) = await bench.claim(slots=1, per_slot=1)
        assert (claim.message.item_id, claim.message.losses) == ("1", losses - 1)
        assert await settle(bench, Settlement(claim=claim, move=Move.LOSE)) == ["applied"]
    status = await bench.status(message("1"))
    assert (status.status, status.error, status.losses) == (Status.FAILED, "killed_worker", 3)
    assert await settle(bench, Settlement(claim=claim, move=Move.LOSE)) == ["stale"]
    assert await bench.run_all() == ["2"]


# -- pause -------------------------------------------------------------------------------------------


async def test_a_paused_label_gives_nothing(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", label="other"))
    await bench.queue.control(PauseLabel("work", "the model is away"))
    assert await bench.claim() == []
    assert await bench.run_all("other") == ["2"]
    paused = {s.label: s.paused for s in await bench.views.labels()}
    assert paused == {"other": None, "work": "the model is away"}
    await bench.submit(message("3"))
    resumed = asyncio.create_task(bench.queue.wait(["work"], None))
    await bench.queue.control(ResumeLabel("work"))
    await asyncio.wait_for(resumed, 10)
    assert await bench.run_all() == ["1", "3"]


async def test_what_runs_goes_on_while_its_label_is_paused(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await bench.queue.control(PauseLabel("work"))
    assert await settle(bench, done(claim)) == ["applied"]


# -- dead letters ------------------------------------------------------------------------------------


async def test_dead_letters_are_listed_and_read(bench: Bench) -> None:
    await bury(bench, "1", "2", error="because")
    await bench.submit(message("3"), message("4", "bob"))
    await bench.control(CancelItems, user_id="ann", item_ids=("3",))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="bob's"))
    assert await dead(bench) == ["1", "2", "4"]
    assert await dead(bench, user_id="ann") == ["1", "2"]
    assert await dead(bench, label="other") == []
    query = StatusQuery(user_id="ann", item_id="1", with_message=True)
    (row,) = (await bench.views.read(query)).rows
    assert (row.message.content, row.error, row.attempts) == ("1", "because", 1)


async def test_dead_letters_come_in_pages(bench: Bench) -> None:
    await bury(bench, *"12345")
    found, after = [], None
    while True:
        page = await bench.views.read(StatusQuery(dead=True, limit=2, after=after))
        found.append([row.item_id for row in page.rows])
        if page.next is None:
            break
        after = page.next
    assert found == [["1", "2"], ["3", "4"], ["5"]]


async def test_a_dead_letter_is_requeued_as_new(bench: Bench) -> None:
    await bury(bench, "1")
    await bench.submit(message("2"))
    result = await bench.control(RequeueItems, user_id="ann", item_ids=("1", "2"))
    assert [key.item_id for key in result.changed] == ["1"]
    status = await bench.status(message("1"))
    assert (status.status, status.error, status.attempts, status.losses) == (Status.WAITING, None, 0, 0)
    assert (status.started_at, status.ended_at) == (None, None)
    (claim, again) = await bench.claim()
    assert ids([claim, again]) == ["2", "1"]
    assert again.message.requeues == 1
    await settle(bench, done(claim), done(again))
    assert await dead(bench) == []
    assert (await bench.advance(60)).expired == 2


async def test_many_dead_letters_are_requeued_at_once(bench: Bench) -> None:
    await bury(bench, *"12345")
    first = await bench.control(RequeueItems, label="work", limit=3)
    assert (len(first.changed), first.more) == (3, True)
    second = await bench.control(RequeueItems, label="work", limit=3)
    assert (len(second.changed), second.more) == (2, False)
    assert await bench.run_all() == list("12345")


async def test_a_cancelled_message_can_be_requeued(bench: Bench) -> None:
    await bench.submit(message("1"))
    await bench.control(CancelItems, user_id="ann")
    await bench.control(RequeueItems, user_id="ann")
    assert await bench.run_all() == ["1"]


async def test_dead_letters_are_deleted(bench: Bench) -> None:
    await bury(bench, "1", "2")
    await bench.submit(message("3"))
    result = await bench.control(DeleteItems, user_id="ann", item_ids=("1", "3"))
    assert [key.item_id for key in result.changed] == ["1"]
    assert await dead(bench) == ["2"]
    assert await bench.submit(message("1")) == ["accepted"]
    assert await bench.run_all() == ["3", "1"]


@pytest.mark.parametrize("which", [{"user_id": "ann"}, {"label": "work"}, {"user_id": "ann", "task_id": "t"}])
async def test_what_was_cancelled_is_no_dead_letter_to_be_deleted(
    bench: Bench, which: dict[str, str]
) -> None:
    await bench.submit(message("1", task_id="t"), message("2", task_id="t"), message("3", task_id="t"))
    await bench.control(CancelItems, user_id="ann", item_ids=("1",))
    (claim, *_) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    assert [key.item_id for key in (await bench.control(DeleteItems, **which)).changed] == ["2"]
    assert (await bench.control(DeleteItems, user_id="ann", item_ids=("1", "3"))).changed == []
    assert (await bench.status(message("1"))).status is Status.CANCELLED
    await bench.control(RequeueItems, user_id="ann")
    assert (await bench.status(message("1"))).status is Status.WAITING


async def test_requeueing_a_parent_does_not_revive_its_dependants(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", depends_on=("1",)))
    (claim,) = await bench.claim()
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="no"))
    await bench.control(RequeueItems, user_id="ann", item_ids=("1",))
    assert await bench.run_all() == ["1"]
    assert (await bench.status(message("2"))).status is Status.FAILED
    await bench.control(RequeueItems, user_id="ann", item_ids=("2",))
    assert await bench.run_all() == ["2"]


# -- memo --------------------------------------------------------------------------------------------


async def test_a_finished_step_is_kept_for_the_next_run(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    assert await bench.queue.load_memos(claim) == {}
    assert await bench.queue.save_memo(claim, "ask", '{"a": 1}')
    assert await bench.queue.save_memo(claim, "ask", '{"a": 2}')
    await settle(bench, Settlement(claim=claim, move=Move.RETRY))
    (again,) = await bench.claim()
    assert await bench.queue.load_memos(again) == {"ask": '{"a": 2}'}
    assert not await bench.queue.save_memo(claim, "ask", "late")
    await settle(bench, done(again))
    assert await bench.queue.load_memos(again) == {}


async def test_a_dead_letter_keeps_what_its_runs_have_paid_for(bench: Bench) -> None:
    await bench.submit(message("1"))
    (claim,) = await bench.claim()
    await bench.queue.save_memo(claim, "ask", "1")
    await settle(bench, Settlement(claim=claim, move=Move.BURY, error="x"))
    await bench.control(RequeueItems, user_id="ann")
    (again,) = await bench.claim()
    assert await bench.queue.load_memos(again) == {"ask": "1"}
