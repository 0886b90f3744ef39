"""Work for every tenant, from one message of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.handlers.fan_out import fan_out
from reverie.message import SYSTEM_USER
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain

TENANTS = [("ann", "ann"), ("ann", "work"), ("bob", "bob"), ("cem", "cem"), ("dan", "dan")]


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'q.db'}"
    tasks = {"sweep": {"enabled": True, "trigger_mode": "periodic", "interval": 60}}
    settings = load_settings(queue={"url": url, "durability": "normal"}, scheduler={"tasks": tasks})
    scheduler = Scheduler(settings=settings, clock=clock)
    scheduler.handler("keep")(lambda m: Done(effects=[Remember(memory_id=f"{m.mem_cube_id}-1", text="tea")]))
    for user, cube in TENANTS:
        scheduler.submit("keep", user_id=user, mem_cube_id=cube)
    drain(scheduler)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("page", [2, 5, 100])
def test_each_tenant_gets_one_message_and_writes_its_own_memory(
    scheduler: Scheduler, clock: ManualClock, page: int
) -> None:
    swept: list[tuple[str, str]] = []

    @scheduler.handler("sweep")
    async def sweep(message: Message, ctx) -> Done:
        return await fan_out(
            message, ctx, lambda t: Message(user_id=t[0], mem_cube_id=t[1], label="sweep_one"), page=page
        )

    @scheduler.handler("sweep_one")
    def sweep_one(message: Message) -> Done:
        swept.append((message.user_id, message.mem_cube_id))
        return Done(effects=[Remember(memory_id=f"swept-{message.mem_cube_id}", text="swept")])

    drain(scheduler)
    clock.advance(60)
    drain(scheduler)
    assert sorted(swept) == TENANTS
    for user, cube in TENANTS:
        assert scheduler.memory.get(f"swept-{cube}", user_id=user).mem_cube_id == cube
    pages = scheduler.status(SYSTEM_USER)
    assert {item.status for item in pages} == {Status.COMPLETED}
    assert len(pages) == -(-len(TENANTS) // page) + (len(TENANTS) % page == 0)


def test_only_work_of_the_system_goes_on_as_work_of_the_system(scheduler: Scheduler) -> None:
    @scheduler.handler("work", max_attempts=1)
    def work(message: Message) -> Done:
        return Done(follow_ups=[Message(user_id=SYSTEM_USER, label="work")])

    receipt = scheduler.submit("work", user_id="ann")
    drain(scheduler)
    item = scheduler.status("ann", receipt.item_id)[0]
    assert item.status is Status.FAILED
    assert "ids that begin with _ are reserved" in item.error
