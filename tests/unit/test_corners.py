"""Corners where a message was once lost, stuck, paid for twice, or ended by mistake."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta

import pytest

from reverie import Bury, Done, Message, Scheduler, Snooze
from reverie.backends.moves import Status
from reverie.backends.sqlite import SqliteBackend
from reverie.errors import InvalidMessageError, InvalidSelectionError
from reverie.settings import load_settings
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock, drain
from support.living import passes


@pytest.fixture(params=["memory", "sqlite", "two files"])
def scheduler(request: pytest.FixtureRequest, tmp_path):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'q.db'}"
    memory = f"sqlite:///{tmp_path / 'm.db'}" if request.param == "two files" else url
    scheduler = Scheduler(settings=load_settings(queue={"url": url}, memory={"url": memory}))
    yield scheduler
    scheduler.close()


def work(item_id: str, user_id: str = "ann", **fields) -> Message:
    return Message(user_id=user_id, label="work", item_id=item_id, **fields)


def test_a_follow_up_that_cannot_be_kept_buries_its_parent_once(scheduler: Scheduler) -> None:
    @scheduler.handler("work")
    def handle(message):
        return Done(follow_ups=[work("child", depends_on=("nobody",))])

    with scheduler:
        scheduler.submit_messages([work("1"), work("2")])
        assert [scheduler.wait(i, user_id="ann").status for i in "12"] == [Status.FAILED] * 2
        assert "depends_on='nobody'" in scheduler.control.dead_letter("1", user_id="ann").error


def test_follow_ups_may_depend_on_each_other(scheduler: Scheduler) -> None:
    ran = []

    @scheduler.handler("work")
    def handle(message):
        ran.append(message.content)
        if message.content == "":
            first = work("first", content="a")
            return Done(follow_ups=[work("second", content="b", depends_on=("first",)), first])
        return None

    scheduler.submit_messages([work("1")])
    drain(scheduler)
    assert ran == ["", "a", "b"]


def test_a_middleware_that_is_cancelled_is_a_failed_run(scheduler: Scheduler) -> None:
    @scheduler.middleware
    async def clumsy(batch, proceed):
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    @scheduler.handler("work", max_attempts=1)
    def handle(message):
        return None

    with scheduler:
        scheduler.submit_messages([work("1")])
        assert scheduler.wait("1", user_id="ann").status is Status.FAILED


def test_memo_pays_once_also_after_a_run_that_was_no_attempt(scheduler: Scheduler) -> None:
    paid = []

    def pay() -> int:
        paid.append(1)
        return 7

    @scheduler.handler("work")
    def handle(message, ctx):
        assert ctx.memo("pay", pay) == ctx.memo("pay", pay) == 7
        if len(paid) == 1 and not seen:
            seen.append(1)
            raise Snooze(after=0)

    seen: list[int] = []
    with scheduler:
        scheduler.submit_messages([work("1")])
        assert scheduler.wait("1", user_id="ann").status is Status.COMPLETED
    assert (len(paid), len(seen)) == (1, 1)


def test_the_neighbour_of_a_cancelled_message_is_not_cancelled(scheduler: Scheduler) -> None:
    began = threading.Event()

    @scheduler.handler("work", max_attempts=1)
    async def handle(message):
        if message.item_id == "1":
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return
        raise asyncio.CancelledError  # of its own

    with scheduler:
        scheduler.submit_messages([work("1")])
        assert began.wait(10)
        scheduler.submit_messages([work("2")])
        scheduler.control.cancel("1", user_id="ann")
        assert scheduler.wait("1", user_id="ann").status is Status.COMPLETED  # it did not heed it
        assert scheduler.wait("2", user_id="ann").status is Status.FAILED


def test_a_batch_is_interrupted_when_its_messages_are_cancelled_one_by_one(scheduler: Scheduler) -> None:
    began = threading.Event()

    @scheduler.handler("work", batch=True)
    async def handle(messages):
        began.set()
        await asyncio.Event().wait()

    scheduler.submit_messages([work("1"), work("2")])
    with scheduler:
        assert began.wait(10)
        scheduler.control.cancel("1", user_id="ann")
        scheduler.control.cancel("2", user_id="ann")
        assert [scheduler.wait(i, user_id="ann").status for i in "12"] == [Status.CANCELLED] * 2


def test_deadlines_with_and_without_a_zone_may_meet(scheduler: Scheduler) -> None:
    @scheduler.handler("work", batch=True)
    def handle(messages):
        return None

    later = datetime.now(UTC) + timedelta(hours=1)
    messages = [work("1", deadline=later), work("2", deadline=later.replace(tzinfo=None))]
    scheduler.submit_messages(messages)
    drain(scheduler)
    assert {item.status for item in scheduler.status("ann")} == {Status.COMPLETED}


def test_what_a_handler_calls_cancelled_is_a_dead_letter_all_the_same(scheduler: Scheduler) -> None:
    @scheduler.handler("work")
    def handle(message):
        raise Bury("cancelled")

    scheduler.submit_messages([work("1")])
    drain(scheduler)
    assert scheduler.status("ann")[0].status is Status.FAILED
    assert len(scheduler.control.dead_letters().rows) == 1


def test_labels_of_one_level_take_turns(scheduler: Scheduler) -> None:
    scheduler.runtime.settings.worker.slots = 1
    ran: list[str] = []
    both = threading.Event()

    def handle(message):
        ran.append(message.label)
        if len(set(ran)) == 2:
            both.set()
        if not both.is_set() and len(ran) < 1000:
            return Done(follow_ups=[Message(user_id=message.user_id, label=message.label)])
        return None

    for label in ("a", "b"):
        scheduler.handler(label)(handle)
    scheduler.submit_messages(
        [Message(user_id=f"u{n}", label=label) for label in ("a", "b") for n in range(10)]
    )
    with scheduler:
        assert both.wait(10)
    assert len(ran) < 100


def test_concurrency_is_not_exceeded(scheduler: Scheduler) -> None:
    running, most = 0, 0

    @scheduler.handler("work", batch=10, concurrency=2)
    async def handle(messages):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await passes()
        running -= 1

    scheduler.submit_messages([work(f"{user}{n}", user) for user in "abc" for n in range(6)])
    drain(scheduler)
    assert most <= 2
    assert {s.status for user in "abc" for s in scheduler.status(user)} == {Status.COMPLETED}


def test_a_selection_may_not_be_endless(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidSelectionError, match="must be 1 to"):
        scheduler.control.cancel(label="x", limit=2**63)


async def test_gathered_submits_cannot_make_a_circle(tmp_path, clock: ManualClock) -> None:
    backend = SqliteBackend(Database(str(tmp_path / "q.db"), "normal"), clock)
    await backend.open()
    entered, release = threading.Event(), threading.Event()
    backend._database.submit(lambda _: (entered.set(), release.wait(30)))
    assert entered.wait(10)
    submits = [
        asyncio.create_task(backend.queue.submit([work("a", depends_on=("b",))])),
        asyncio.create_task(backend.queue.submit([work("b", depends_on=("a",))])),
    ]
    await asyncio.sleep(0)  # both are under way
    release.set()
    answers = await asyncio.gather(*submits, return_exceptions=True)
    assert [type(answer) for answer in answers] == [InvalidMessageError] * 2
    await backend.close()


def test_an_id_that_comes_again_has_only_its_own_parents(scheduler: Scheduler) -> None:
    parents = [work("p0"), work("p1"), work("p2")]
    scheduler.submit_messages([*parents, work("c", depends_on=("p0", "p1"))])
    scheduler.control.cancel("p0", user_id="ann")
    assert [key.item_id for key in scheduler.control.delete("c", user_id="ann").changed] == ["c"]
    scheduler.submit_messages([work("c", depends_on=("p2",))])
    scheduler.control.cancel("p1", user_id="ann")
    assert scheduler.status("ann", "c")[0].status is Status.WAITING


def test_a_forked_process_is_told_to_make_its_own(tmp_path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'q.db'}")
    with scheduler.used():
        scheduler.submit("work", user_id="ann")
        child = os.fork()
        if child == 0:
            try:
                scheduler.submit("work", user_id="ann")
            except BaseException as error:  # noqa: BLE001  the exit code says which
                os._exit(3 if "forked" in str(error) else 4)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


LONG = "x" * 521
NAMED = {
    "user_id='': must not be empty": "",
    "must be at most 512 bytes": LONG,
    "must be text": 7,
    "NUL": "a\x00b",
}


@pytest.mark.parametrize(("words", "user_id"), NAMED.items())
def test_an_id_that_nothing_can_have_is_refused_by_every_question(
    scheduler: Scheduler, words, user_id
) -> None:
    for ask in (
        lambda: scheduler.memory.search("tea", user_id=user_id),
        lambda: scheduler.memory.get("1", user_id=user_id),
        lambda: scheduler.status(user_id),
        lambda: scheduler.wait("1", user_id=user_id),
        lambda: scheduler.observe.lanes(user_id),
        lambda: scheduler.observe.history("1", user_id=user_id),
        lambda: scheduler.observe.wait_idle(user_id),
        lambda: scheduler.get_task_status_by_business_id("1", user_id),
        lambda: scheduler.control.cancel(user_id=user_id),
        lambda: scheduler.control.dead_letters(user_id=user_id),
        lambda: scheduler.control.dead_letter("1", user_id=user_id),
    ):
        with pytest.raises(InvalidMessageError, match=words):
            ask()


def test_other_ids_of_a_question_are_refused_too(scheduler: Scheduler) -> None:
    for field, ask in {
        "mem_cube_id": lambda: scheduler.memory.search("tea", user_id="ann", mem_cube_ids=["a", LONG]),
        "memory_id": lambda: scheduler.memory.get(LONG, user_id="ann"),
        "task_id": lambda: scheduler.status("ann", LONG),
        "item_id": lambda: scheduler.control.requeue(["1", LONG], user_id="ann"),
        "label": lambda: scheduler.control.pause(""),
    }.items():
        with pytest.raises(InvalidMessageError, match=f"{field}="):
            ask()
