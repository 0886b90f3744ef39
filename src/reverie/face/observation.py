"""Looking in: `scheduler.observe`, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.base.bridge import Bridge, blocking
from reverie.message import Key
from reverie.observe.bus import MOST_WAITING, Wanted
from reverie.observe.idle import Idleness, IdleWatch
from reverie.observe.status import StatusCounts, TaskStatusTracker, count_statuses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from reverie.backends.views import Attempt, LaneState
    from reverie.observe.bus import Subscription
    from reverie.observe.events import Event
    from reverie.observe.health import Health
    from reverie.observe.rules import Alert
    from reverie.observe.sampler import DepthSample
    from reverie.runtime import Runtime

__all__ = ["AllStatus", "AsyncObservation", "Idleness", "Observation"]


class AllStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages stand how."""

    scheduler_summary: StatusCounts
    """Of labels that a live worker handles."""
    all_tasks_summary: StatusCounts
    """Of all that is retained."""


class AsyncObservation:
    """What happened, what waits, what is wrong, and what to do."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.tasks = TaskStatusTracker(runtime.backend.views, runtime.open)
        """How single items and business tasks stand."""
        self._idle = IdleWatch(self._active, runtime.finishes)

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
        async for state in self.idling(user_id, timeout=timeout, poll=poll):
            last = state
        return last

    def idling(self, user_id: str, *, timeout: float = 120, poll: float = 0.5) -> AsyncGenerator[Idleness]:
        """How far it is until a user is idle, each `poll` seconds and at the end.

        That nothing is left to do is told at once if this process has done it.
        """
        return self._idle.states(user_id, timeout, poll)

    def subscribe(
        self,
        listener: Callable[[Sequence[Event]], object],
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

    async def metrics(self) -> bytes:
        """How the queue is, and how long handlers of this process took, as Prometheus reads it."""
        health, alerts = await self._look()
        labels = await self._runtime.backend.views.labels()
        return self._runtime.measure().render(labels, health, alerts)

    async def _active(self, user_id: str) -> int:
        return sum(lane.waiting + lane.in_progress for lane in await self.lanes(user_id))

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
    metrics = blocking(AsyncObservation.metrics)
    wait_idle = blocking(AsyncObservation.wait_idle)
