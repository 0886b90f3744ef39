"""`ctx.buffers`: a handler takes rows of its tenant's buffers, wherever it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie import Message, Scheduler
from reverie.dispatch.requests import BufferStates, Desk
from reverie.memory.buffers import BufferKey, NoBuffersError
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support import buffer_handlers

KEY = BufferKey("ann", "ann")
PLACES = {
    "thread": (buffer_handlers.read, {}),
    "loop": (buffer_handlers.read_async, {}),
    "process": (buffer_handlers.read, {"cpu": True}),
    "process, async": (buffer_handlers.read_async, {"cpu": True}),
}


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    file = f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": "memory://" if request.param == "memory" else file, "durability": "normal"},
        memory={"url": file, "embedding": "none"},
        buffer={"max_failures": 2, "lease_s": 60},
        data_dir=tmp_path / "data",
    )
    scheduler = Scheduler(settings=settings, clock=clock)
    scheduler.handler("keep")(buffer_handlers.keep)
    for number, user in enumerate(("ann", "ann", "bob")):
        scheduler.submit("keep", user_id=user, item_id=str(number), content=f"text{number}")
    drain(scheduler)
    yield scheduler
    scheduler.close()


def rows(scheduler: Scheduler) -> list[tuple[str, int]]:
    found = scheduler.run(scheduler.runtime.store.buffer_rows(KEY))
    return [(row.status, row.failures) for row in found]


@pytest.mark.parametrize("place", PLACES)
def test_a_handler_takes_the_rows_of_its_tenant(scheduler: Scheduler, place: str) -> None:
    function, options = PLACES[place]
    scheduler.handler("read", **options)(function)
    scheduler.submit("read", user_id="ann", item_id="1st")
    drain(scheduler)
    assert scheduler.status("ann", "1st")[0].error is None
    assert scheduler.memory.get("read-1st", user_id="ann").text == "2: text0 text1"
    assert rows(scheduler) == [("done", 1), ("done", 0)]
    scheduler.submit("read", user_id="ann", item_id="2nd")
    drain(scheduler)
    assert scheduler.memory.get("read-2nd", user_id="ann").text == "0: "


@pytest.mark.parametrize("cpu", [False, True])
def test_the_buffers_of_others_are_refused(scheduler: Scheduler, cpu: bool) -> None:
    scheduler.handler("read", cpu=cpu)(buffer_handlers.read_foreign)
    scheduler.submit("read", user_id="ann")
    drain(scheduler)
    states, claim, release = scheduler.memory.get("refused", user_id="ann").text.splitlines()
    assert "the tenant bob/bob is not one of this run's own" in states
    assert "ctx.buffers.claim: say for which message of this batch" in claim
    assert "the tenant bob/bob is not one of this run's own" in release


def test_rows_are_given_up_after_as_many_failures_as_the_setting_says(scheduler: Scheduler) -> None:
    scheduler.handler("read")(buffer_handlers.fail)
    for expected in ([("idle", 1)] * 2, [("failed", 2)] * 2):
        scheduler.submit("read", user_id="ann")
        drain(scheduler)
        assert rows(scheduler) == expected


def test_the_lease_has_the_length_of_the_setting(scheduler: Scheduler, clock: ManualClock) -> None:
    @scheduler.handler("read")
    async def read(message: Message, ctx) -> None:
        assert len((await ctx.buffers.claim(max_tokens=100)).rows) == 2

    scheduler.submit("read", user_id="ann", item_id="read")
    drain(scheduler)
    assert scheduler.status("ann", "read")[0].error is None
    store = scheduler.runtime.store
    for seconds, expected in ((0, 0), (59, 0), (1, 2)):
        clock.advance(seconds)
        claim = scheduler.run(store.claim_buffer(KEY, "other", lease_ms=1000, max_tokens=100))
        assert len(claim.rows) == expected


async def test_a_store_without_buffers_is_named(scheduler: Scheduler) -> None:
    runtime = scheduler.runtime
    desk = Desk(
        queue=runtime.backend.queue,
        store=object(),
        models=runtime.models,
        gateway=runtime.gateway,
        clock=runtime.clock,
        options=runtime.handler_options,
        extraction_of=runtime.settings.extraction.of_cube,
    )
    with pytest.raises(NoBuffersError, match="the memory store object keeps no buffers"):
        await desk.ask(BufferStates(()), [])
