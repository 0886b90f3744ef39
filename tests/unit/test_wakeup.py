"""Waiting for work and for time inside one process: no signal is lost, and no wait outlives its reason."""

from __future__ import annotations

import asyncio

from reverie.backends.wakeup import Wakeup
from reverie.testing import ManualClock
from support.living import started


async def ends(wait) -> None:
    async with asyncio.timeout(10):
        await wait


async def test_news_that_came_before_a_wait_ends_it(clock: ManualClock) -> None:
    wakeup = Wakeup(clock)
    wakeup.notify(["work"])
    await ends(wakeup.wait(["work"], None))
    again = await started(wakeup.wait(["work"], None))
    assert not again.done()
    again.cancel()


async def test_a_wait_for_time_ends_when_the_first_thing_falls_due(clock: ManualClock) -> None:
    wakeup, now = Wakeup(clock), clock.now()
    wakeup.expect(now + 5000)
    waiting = await started(wakeup.wait((), now + 9000))
    wakeup.expect(now + 7000)
    wakeup.expect(now + 2000)  # heard by the wait that is under way
    clock.advance(1.9)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(0.1)
    await ends(waiting)


async def test_what_is_set_up_between_two_waits_is_heard_by_the_next(clock: ManualClock) -> None:
    wakeup, now = Wakeup(clock), clock.now()
    await ends(wakeup.wait((), now))
    wakeup.expect(now + 1000)
    waiting = await started(wakeup.wait((), None))
    clock.advance(1)
    await ends(waiting)


async def test_a_clock_that_is_set_back_ends_a_wait_for_time() -> None:
    """Else it would last as long as the clock was set back, while others look every two seconds."""

    class Naps(ManualClock):
        async def wait(self, event: asyncio.Event, until: int | None) -> None:
            await asyncio.sleep(0)  # as the longest nap does when it is over

    clock = Naps()
    wakeup = Wakeup(clock)
    waiting = await started(wakeup.wait((), clock.now() + 2000))
    clock.advance(-3600)
    await ends(waiting)
