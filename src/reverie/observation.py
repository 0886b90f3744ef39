"""Looking in: `scheduler.observe`, in an async and a blocking form."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from reverie.bridge import Bridge, blocking
from reverie.message import Key
from reverie.observe.bus import MOST_WAITING, Wanted
from reverie.observe.status import StatusCounts, TaskStatusTracker, count_statuses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from reverie.backends.views import Attempt, LaneState
    from reverie.observe.bus import Subscription
    from reverie.observe.events import Event
    from reverie.observe.health import Health
    from reverie.observe.rules import Alert
    from reverie.observe.sampler import DepthSample
    from reverie.runtime import Runtime

__all__ = ["AllStatus", "AsyncObservation", "Idleness", "Observation"]

LONGEST_WAIT_S = 86_400.0
"""Nobody waits longer than a day for a user to be idle."""


class AllStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages stand how."""

    scheduler_summary: StatusCounts
    """Of labels that a live worker handles."""
    all_tasks_summary: StatusCounts
    """Of all that is retained."""


class Idleness(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is until a user has no work that waits or runs."""

    active_tasks: int
    elapsed_seconds: float
    timed_out: bool = False

    @property
    def status(self) -> str:
        """`running`, `idle` or `timeout`."""
        return "timeout" if self.timed_out else "running" if self.active_tasks else "idle"


class AsyncObservation:
    """What happened, what waits, what is wrong, and what to do."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.tasks = TaskStatusTracker(runtime.backend.views, runtime.open)
        """How single items and business tasks stand."""

    async def counts(self) -> AllStatus:
        """How many messages stand how, in all."""
        await self._runtime.open()
        labels = await self._runtime.backend.views.labels()
        return AllStatus(
            scheduler_summary=count_statuses(state for state in labels if state.handled),
            all_tasks_summary=count_statuses(labels),
        )

    async def lanes(self, user_id: str) -> list[LaneState]:
        """The lanes of a user that have work, by cube and label."""
        await self._runtime.open()
        return await self._runtime.backend.views.lanes(user_id)

    async def history(self, item_id: str, *, user_id: str) -> list[Attempt]:
        """The runs of a message so far, oldest first."""
        await self._runtime.open()
        return await self._runtime.backend.views.history(Key(user_id, item_id))

    async def health(self) -> Health:
        """How the queue is now."""
        return (await self._look())[0]

    async def alerts(self) -> list[Alert]:
        """What is wrong now, worst first, and what to do about it."""
        return (await self._look())[1]

    async def samples(self) -> list[DepthSample]:
        """How much waited and ran over the last while, as far as this process has looked."""
        return list(self._runtime.sampler.samples)

    async def wait_idle(self, user_id: str, *, timeout: float = 120, poll: float = 0.5) -> Idleness:  # noqa: ASYNC109
        """Wait until nothing of a user waits or runs, or the time is over."""
        return [state async for state in self.idling(user_id, timeout=timeout, poll=poll)][-1]

    async def idling(
        self,
        user_id: str,
        *,
        timeout: float = 120,  # noqa: ASYNC109  it is how long to look, not how long one call may take
        poll: float = 0.5,
    ) -> AsyncIterator[Idleness]:
        """How far it is until a user is idle, each `poll` seconds and at the end.

        Work that this process does is heard of at once.
        """
        began = time.monotonic()
        timeout = min(timeout, LONGEST_WAIT_S)
        with self._runtime.finishes.watch_user(user_id) as settled:
            while True:
                settled.clear()
                active = sum(lane.waiting + lane.in_progress for lane in await self.lanes(user_id))
                elapsed = time.monotonic() - began
                over = bool(active) and elapsed >= timeout
                yield Idleness(active_tasks=active, elapsed_seconds=round(elapsed, 3), timed_out=over)
                if over or not active:
                    return
                await _either(settled, min(poll, timeout - elapsed))

    def subscribe(
        self,
        listener: Callable[[list[Event]], object],
        *,
        events: Iterable[str] | None = None,
        labels: Iterable[str] | None = None,
        user_id: str | None = None,
        item_id: str | None = None,
        most_waiting: int = MOST_WAITING,
    ) -> Subscription:
        """Have `listener` called with batches of what happens in this process, on a thread of its own.

        All that fits everything that is given. A listener that does not keep up loses the oldest events:
        `subscription.dropped` says how many. `subscription.close()` ends it.
        """
        wanted = Wanted(
            events=None if events is None else frozenset(events),
            labels=None if labels is None else frozenset(labels),
            user_id=user_id,
            item_id=item_id,
        )
        return self._runtime.bus.subscribe(listener, wanted, most_waiting=most_waiting)

    async def _look(self) -> tuple[Health, list[Alert]]:
        await self._runtime.open()
        return await self._runtime.watcher.look()


class Observation:
    """Like `AsyncObservation`, for code that blocks."""

    def __init__(self, inner: AsyncObservation, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge
        self.subscribe = inner.subscribe

    counts = blocking(AsyncObservation.counts)
    lanes = blocking(AsyncObservation.lanes)
    history = blocking(AsyncObservation.history)
    health = blocking(AsyncObservation.health)
    alerts = blocking(AsyncObservation.alerts)
    samples = blocking(AsyncObservation.samples)
    wait_idle = blocking(AsyncObservation.wait_idle)


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
