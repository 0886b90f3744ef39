"""Control of running work through the face: cancel, pause, dead letters, memo, deadline."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from reverie import AsyncScheduler, Bury, Scheduler
from reverie.errors import (
    InvalidMessageError,
    InvalidSelectionError,
    QueueFullError,
    UnhandledLabelError,
)
from reverie.settings import load_settings
from support.living import passes


@pytest.fixture(params=["memory://", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return request.param if request.param != "sqlite" else f"sqlite:///{tmp_path / 'r.db'}"


def scheduler_at(url: str, **settings) -> Scheduler:
    queue = {"url": url, **settings.pop("queue", {})}
    return Scheduler(settings=load_settings(queue=queue, **settings))


def test_a_running_async_handler_is_interrupted(url: str) -> None:
    scheduler = scheduler_at(url)
    began, interrupted = threading.Event(), threading.Event()

    @scheduler.handler("long")
    async def long(message, ctx):
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    with scheduler:
        receipt = scheduler.submit("long", user_id="ann")
        assert began.wait(10)
        result = scheduler.control.cancel(receipt.item_id, user_id="ann")
        assert [key.item_id for key in result.requested] == [receipt.item_id]
        assert interrupted.wait(10)
        assert scheduler.wait(receipt.item_id, user_id="ann").status == "cancelled"


def test_a_running_sync_handler_sees_that_it_is_cancelled(url: str) -> None:
    scheduler = scheduler_at(url)
    began = threading.Event()
    look = threading.Event()

    @scheduler.handler("long")
    def long(message, ctx):
        began.set()
        while not ctx.cancelled:
            look.wait(0.001)
        raise RuntimeError("stopped half-way")

    with scheduler:
        receipt = scheduler.submit("long", user_id="ann")
        assert began.wait(10)
        scheduler.control.cancel(receipt.item_id, user_id="ann")
        assert scheduler.wait(receipt.item_id, user_id="ann").status == "cancelled"


def test_a_cancel_is_heard_by_a_worker_that_is_busy_with_others(url: str) -> None:
    """What was claimed in the same batch and has not begun does not begin."""
    scheduler = scheduler_at(url)
    began, go = threading.Event(), threading.Event()
    ran = []

    @scheduler.handler("work", batch=10)
    async def work(messages, ctx):
        ran.extend(message.item_id for message in messages)
        began.set()
        await asyncio.to_thread(go.wait)

    with scheduler:
        scheduler.submit("work", user_id="ann", item_id="1")
        assert began.wait(10)
        scheduler.submit("work", user_id="ann", item_id="2")
        assert [k.item_id for k in scheduler.control.cancel("2", user_id="ann").changed] == ["2"]
        go.set()
        assert scheduler.wait("1", user_id="ann").status == "completed"
    assert ran == ["1"]


def test_a_paused_label_waits_until_it_is_resumed(url: str) -> None:
    scheduler = scheduler_at(url)

    @scheduler.handler("work")
    def work(message):
        return None

    @scheduler.handler("other")
    def other(message):
        return None

    with scheduler:
        scheduler.control.pause("work", "not now")
        receipt = scheduler.submit("work", user_id="ann")
        done = scheduler.submit("other", user_id="ann")
        scheduler.wait(done.item_id, user_id="ann")
        states = {state.label: state for state in scheduler.control.labels()}
        assert (states["work"].waiting, states["work"].paused, states["work"].handled) == (1, "not now", True)
        scheduler.control.resume("work")
        assert scheduler.wait(receipt.item_id, user_id="ann").status == "completed"


def test_dead_letters_are_read_and_sent_back(url: str) -> None:
    scheduler = scheduler_at(url)
    fixed = threading.Event()

    @scheduler.handler("work")
    def work(message):
        if not fixed.is_set():
            raise Bury("the disk is on fire")

    with scheduler:
        for n in range(3):
            scheduler.submit("work", user_id="ann", item_id=str(n), content=f"c{n}")
            assert scheduler.wait(str(n), user_id="ann").status == "failed"
        page = scheduler.control.dead_letters(limit=2)
        assert [row.item_id for row in page.rows] == ["0", "1"]
        assert [row.item_id for row in scheduler.control.dead_letters(after=page.next).rows] == ["2"]
        letter = scheduler.control.dead_letter("1", user_id="ann")
        assert (letter.message.content, letter.error) == ("c1", "the disk is on fire")
        fixed.set()
        assert [k.item_id for k in scheduler.control.delete("0", user_id="ann").changed] == ["0"]
        assert [k.item_id for k in scheduler.control.requeue(label="work").changed] == ["1", "2"]
        assert scheduler.wait("2", user_id="ann").status == "completed"
        assert scheduler.control.dead_letters().rows == []
        assert scheduler.control.dead_letter("1", user_id="ann") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "say which"),
        ({"item_ids": "1"}, "user_id="),
        ({"user_id": "ann", "limit": 0}, "limit=0"),
    ],
)
def test_a_command_says_what_it_means(url: str, arguments: dict, words: str) -> None:
    with scheduler_at(url).used() as scheduler, pytest.raises(InvalidSelectionError, match=words):
        scheduler.control.cancel(**arguments)


def test_memo_pays_once(url: str) -> None:
    scheduler = scheduler_at(url, worker={"backoff_s": 0.001})
    calls = []

    def ask() -> dict:
        calls.append("ask")
        return {"answer": 42}

    @scheduler.handler("sync")
    def sync_handler(message, ctx):
        assert ctx.memo("ask", ask) == {"answer": 42}
        if message.attempts < 2:
            raise RuntimeError("after paying")

    @scheduler.handler("batch", batch=True)
    def batch_handler(messages, ctx):
        for message in messages:
            assert ctx.memo("ask", ask, message=message) == {"answer": 42}

    @scheduler.handler("async")
    async def async_handler(message, ctx):
        async def ask_slowly() -> dict:
            await passes()
            return ask()

        assert await ctx.memo("ask", ask_slowly) == {"answer": 42}
        assert await ctx.memo("other", lambda: 1) == 1
        if message.attempts < 2:
            raise RuntimeError("after paying")

    with scheduler:
        for label in ("sync", "async", "batch"):
            calls.clear()
            receipt = scheduler.submit(label, user_id="ann")
            status = scheduler.wait(receipt.item_id, user_id="ann")
            assert (status.status, calls) == ("completed", ["ask"]), status.error


def test_a_run_beyond_its_deadline_is_ended(url: str) -> None:
    scheduler = scheduler_at(url)
    freed = threading.Event()

    @scheduler.handler("slow")
    def slow(message):
        freed.wait(30)

    @scheduler.handler("async")
    async def slow_async(message):
        await asyncio.Event().wait()

    with scheduler:
        for label in ("slow", "async"):
            soon = datetime.now(UTC) + timedelta(seconds=0.3)
            receipt = scheduler.submit(label, user_id="ann", deadline=soon)
            status = scheduler.wait(receipt.item_id, user_id="ann")
            assert (status.status, status.error) == ("failed", "deadline")
        freed.set()


def test_what_a_message_asks_for_is_checked(url: str) -> None:
    with scheduler_at(url).used() as scheduler:
        for wrong, words in [
            ({"depends_on": ("x",)}, "depends_on='x'"),
            ({"depends_on": ("me",), "item_id": "me"}, "cannot depend on itself"),
            (
                {"unique_policy": "other"},
                "unique_policy='other': must be one of skip, replace, extend, sooner",
            ),
            ({"if_dependency_fails": "x"}, "must be one of fail, run"),
            ({"unique_window_s": -1}, "unique_window_s=-1"),
            ({"deadline": "soon"}, "deadline='soon'"),
            ({"content": "[" * 33 + "]" * 33}, "nested more than 32 deep"),
            ({"content": "[" * 100_000}, "nested more than 32 deep"),
        ]:
            with pytest.raises(InvalidMessageError, match=words):
                scheduler.submit("work", user_id="ann", **wrong)
        scheduler.submit("work", user_id="ann", content="[ and {" * 100)  # no JSON: any text may be kept


def test_messages_that_wait_for_each_other_are_refused(url: str) -> None:
    from reverie import Message  # noqa: PLC0415

    with scheduler_at(url).used() as scheduler:
        a = Message(user_id="ann", label="work", item_id="a", depends_on=("b",))
        b = Message(user_id="ann", label="work", item_id="b", depends_on=("c",))
        c = Message(user_id="ann", label="work", item_id="c", depends_on=("a",))
        with pytest.raises(InvalidMessageError, match="would wait for itself"):
            scheduler.submit_messages([a, b, c])
        assert scheduler.status("ann") == []


def test_the_limits_of_the_settings_hold(url: str) -> None:
    with scheduler_at(url, queue={"max_depth_per_tenant": 1}).used() as scheduler:
        scheduler.submit("work", user_id="ann")
        with pytest.raises(QueueFullError, match="max_depth_per_tenant = 1"):
            scheduler.submit("work", user_id="ann")
        scheduler.submit("work", user_id="bob")


def test_unknown_labels_are_refused_by_setting(url: str) -> None:
    scheduler = scheduler_at(url, queue={"unknown_labels": "refuse"})

    @scheduler.handler("work")
    def work(message):
        return None

    with scheduler:
        scheduler.submit("work", user_id="ann")
        with pytest.raises(UnhandledLabelError, match="label='other': no live worker"):
            scheduler.submit("other", user_id="ann")


async def test_the_async_face_has_the_same(url: str) -> None:
    scheduler = AsyncScheduler(settings=load_settings(queue={"url": url}))
    async with scheduler:
        await scheduler.submit("nobody", user_id="ann", item_id="1")
        (worker,) = await scheduler.control.workers()
        assert "add" in worker.labels
        assert [s.label for s in await scheduler.control.labels() if not s.handled] == ["nobody"]
        assert len((await scheduler.control.cancel("1", user_id="ann")).changed) == 1
    await scheduler.open()
    assert await scheduler.control.workers() == []
    await scheduler.stop()
