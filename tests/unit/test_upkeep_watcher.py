"""When upkeep runs: tenants that grow are served, others cost nothing; and what two runs at once do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from support.upkeep_home import DAY_S, home

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.upkeep_home import Home


@pytest.fixture
async def bare() -> AsyncIterator[Home]:
    """Without a language model."""
    async with home() as here:
        yield here


# -- two at once -----------------------------------------------------------------------------------------


async def test_a_change_meanwhile_is_a_conflict_and_the_message_runs_again(
    bare: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.keep(a="Ann likes tea", b="Ann likes TEA")
    similar = bare.store.similar
    runs: list[str] = []

    async def change_once(*given: Any, **named: Any) -> Any:
        found = await similar(*given, **named)
        runs.append("run")
        if len(runs) == 1:
            await bare.scheduler.memory.update("a", user_id="ann", text="Ann likes tea!")
        return found

    monkeypatch.setattr(bare.store, "similar", change_once)
    await bare.run("mem_organize", item_id="the-one")
    (one,) = await bare.scheduler.status("ann", "the-one")
    assert (one.status, one.attempts, len(runs)) == ("completed", 1, 2)
    assert len(await bare.living()) == 1
    assert {(await bare.get(name)).version for name in "ab"} == {2, 3}


async def test_two_kinds_of_upkeep_at_once_merge_once(bare: Home) -> None:
    await bare.keep(**{f"m{number}": "Ann likes tea" for number in range(6)})
    for label in ("mem_organize", "memory_compression", "mem_organize"):
        await bare.scheduler.submit(label, user_id="ann")
    await bare.scheduler.runtime.drain()
    assert len(await bare.living()) == 1
    assert set(await bare.states()) == {"completed"}


# -- when ------------------------------------------------------------------------------------------------


async def messages_of(here: Home) -> list[str]:
    return sorted(item.task_type for item in await here.scheduler.status("ann"))


async def test_a_tenant_that_grows_is_served_and_a_quiet_one_costs_nothing() -> None:
    async with home(upkeep={"organize_after": 4, "compress_after": 8}) as here:
        watcher = here.scheduler.runtime.upkeep_watcher
        assert await watcher.look() == 0
        await here.keep(a="Ann likes tea", b="Ann likes TEA", c="rain")
        assert await watcher.look() == 0
        await here.keep(d="snow")
        assert (await watcher.look(), await watcher.look()) == (1, 1)
        assert await messages_of(here) == ["mem_organize"]
        await here.scheduler.runtime.drain()
        assert len(await here.living()) == 3
        assert await messages_of(here) == ["mem_archive", "mem_organize"]
        await here.keep(**{f"m{number}": f"number {number}" for number in range(4)})
        assert await watcher.look() == 2  # organising rests, compressing is due
        assert await messages_of(here) == ["mem_archive", "mem_organize", "memory_compression"]
        here.clock.advance(3600)
        await watcher.look()
        assert (await messages_of(here)).count("mem_organize") == 2
        await here.scheduler.runtime.drain()
        here.clock.advance(30 * DAY_S)
        assert await watcher.look() == 0


async def test_what_upkeep_has_written_begins_no_upkeep() -> None:
    async with home(upkeep={"organize_after": 4, "compress_after": 8}) as here:
        watcher = here.scheduler.runtime.upkeep_watcher
        await here.keep(**{f"m{n}": f"number {n // 2} is{' ' * (1 + n % 2)}here" for n in range(16)})
        assert await watcher.look() == 2
        await here.scheduler.runtime.drain()
        assert len(await here.living()) == 8  # all of them are new
        messages = await messages_of(here)
        for _ in range(48):
            here.clock.advance(3600)
            assert await watcher.look() == 0
        await here.scheduler.runtime.drain()
        assert await messages_of(here) == messages


async def test_near_its_limit_a_tenant_is_served_sooner() -> None:
    async with home(memory={"long_term_limit": 20}, upkeep={"organize_after": 100}) as here:
        watcher = here.scheduler.runtime.upkeep_watcher
        await here.keep(**{f"m{number}": f"number {number}" for number in range(17)})
        assert await watcher.look() == 0
        await here.keep(last="number 18")
        assert await watcher.look() == 1


async def test_upkeep_that_fails_is_not_begun_again_at_once() -> None:
    async with home(upkeep={"organize_after": 1}) as here:
        watcher = here.scheduler.runtime.upkeep_watcher
        here.store.changed = None  # every run fails
        await here.keep(a="Ann likes tea")
        for _ in range(20):
            await watcher.look()
            await here.scheduler.runtime.drain()
            here.clock.advance(60)
        assert (await messages_of(here)).count("mem_organize") == 1


@pytest.mark.parametrize("enabled", [True, False])
async def test_the_watcher_looks_by_itself_unless_upkeep_is_disabled(enabled: bool) -> None:
    async with home(upkeep={"organize_after": 1, "enabled": enabled}) as here:
        await here.keep(a="Ann likes tea")
        watcher = here.scheduler.runtime.upkeep_watcher
        await watcher.start()
        async with asyncio.timeout(30):
            while enabled and not await messages_of(here):
                here.clock.advance(60)
                await asyncio.sleep(0)
        assert (watcher._task is not None) == enabled
        await watcher.stop(1)
