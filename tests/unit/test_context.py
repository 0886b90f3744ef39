"""A handler may ask the same of its worker wherever it runs: on the loop, on a thread, in processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support import context_handlers
from support.gate import gate

PLACES = {
    "thread": (context_handlers.use_all, {}),
    "loop": (context_handlers.use_all_async, {}),
    "process": (context_handlers.use_all, {"cpu": True}),
    "process, async": (context_handlers.use_all_async, {"cpu": True}),
}


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": url, "durability": "normal"},
        memory={"embedding": "support.context_handlers:length_embedder"},
    )
    scheduler = Scheduler(settings=settings, clock=clock)

    @scheduler.handler("keep")
    def keep(message: Message) -> Done:
        return Done(effects=[Remember(memory_id=message.content.split()[0], text=message.content)])

    for user, text in (("ann", "note green tea"), ("ann", "other black tea"), ("bob", "note herbal tea")):
        scheduler.submit("keep", user_id=user, content=text)
    drain(scheduler)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_handler_has_all_of_its_context(scheduler: Scheduler, place: str) -> None:
    function, options = PLACES[place]
    scheduler.handler("work", **options)(function)
    scheduler.submit("work", user_id="ann", item_id="1")
    drain(scheduler)
    assert scheduler.status("ann", "1")[0].error is None
    seen = scheduler.memory.get("seen-1", user_id="ann").text
    assert seen == "['note green tea', 'other black tea'] note green tea v1 [[14.0], [1.0]] True"


@pytest.mark.parametrize("cpu", [False, True])
def test_what_is_not_its_own_is_refused(scheduler: Scheduler, cpu: bool) -> None:
    scheduler.handler("work", cpu=cpu)(context_handlers.ask_too_much)
    scheduler.submit("work", user_id="ann", item_id="1")
    drain(scheduler)
    foreign, tenants, model = scheduler.memory.get("refused", user_id="ann").text.splitlines()
    assert "the tenant bob/bob is not one of this run's own" in foreign
    assert "only messages of _system may list tenants" in tenants
    assert "no language model is set up: set llm.preset" in model


def test_a_message_that_was_lost_twice_keeps_its_context(
    scheduler: Scheduler, clock: ManualClock, tmp_path: Path
) -> None:
    """It runs in isolation, where it reads memory as before."""
    flag = tmp_path / "deaths"
    flag.write_text("")
    scheduler.handler("work", cpu=True)(context_handlers.append)
    scheduler.submit("work", user_id="ann", item_id="1", content=f"milk {flag}")
    for _ in range(3):
        drain(scheduler)
    item = scheduler.status("ann", "1")[0]
    assert (item.status, item.losses) == (Status.COMPLETED, 2)
    assert scheduler.memory.get("note", user_id="ann").text == "note green tea milk"


def test_a_built_in_that_was_lost_twice_runs_in_isolation_with_its_context(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    """A handler of this process whose message was lost twice runs in another one, with the same context."""
    scheduler.handler("work")(context_handlers.use_all)
    scheduler.submit("work", user_id="ann", item_id="1")
    lose(scheduler, clock, times=2)
    drain(scheduler)
    item = scheduler.status("ann", "1")[0]
    assert (item.status, item.losses) == (Status.COMPLETED, 2)
    assert scheduler.memory.get("seen-1", user_id="ann").text.endswith("True")


def lose(scheduler: Scheduler, clock: ManualClock, times: int) -> None:
    """Claim what waits and let the lease run out, as a worker does that is killed."""

    async def claim_and_forget() -> None:
        runtime = scheduler.runtime
        assert await runtime.backend.queue.claim(runtime.worker.request())
        clock.advance(31)
        await runtime.backend.queue.advance(10)

    for _ in range(times):
        scheduler.run(claim_and_forget())


def test_a_handler_in_a_process_sees_that_it_is_cancelled() -> None:
    settings = load_settings(queue={"url": "memory://"}, worker={"renew_s": 0.05})
    scheduler = Scheduler(settings=settings)
    scheduler.handler("work", cpu=True, batch=2, concurrency=1)("support.context_handlers:watch_batch")
    with gate() as door, scheduler:
        scheduler.control.pause("work")
        scheduler.submit("work", user_id="ann", item_id="1", content=door.path)
        scheduler.submit("work", user_id="ann", item_id="2")
        scheduler.control.resume("work")
        door.arrival()
        scheduler.control.cancel("1", user_id="ann")
        door.open()
        assert scheduler.wait("1", user_id="ann").status is Status.CANCELLED
        assert scheduler.wait("2", user_id="ann").status is Status.COMPLETED
