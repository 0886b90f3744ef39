"""`scheduler.observe`: status, events, health and alerts, in an async and a blocking form."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from reverie.access.paging import seen_page
from reverie.base.bridge import Bridge, blocking
from reverie.base.clock import from_epoch_ms
from reverie.errors import BoundKeyError, InvalidSelectionError
from reverie.face.statistics import read_statistics
from reverie.memory.buffers import READING, BlobType, unique_key_of
from reverie.message import Key, check_ids
from reverie.models.budgets import spent_budgets
from reverie.models.usage import Usage, UsageQuery
from reverie.observe.bus import MOST_WAITING, Wanted
from reverie.observe.hearing import hear
from reverie.observe.idle import Idleness, IdleWatch
from reverie.observe.status import StatusCounts, TaskStatusTracker, count_statuses
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from reverie.backends.views import Attempt, LaneState
    from reverie.face.statistics import Statistics
    from reverie.models.budgets import SpentBudget
    from reverie.observe.bus import Subscription
    from reverie.observe.events import Event
    from reverie.observe.health import Health
    from reverie.observe.rules import Alert
    from reverie.observe.sampler import DepthSample
    from reverie.runtime import Runtime

__all__ = ["AllStatus", "AsyncObservation", "Idleness", "Observation", "TaskStatuses", "UsagePage"]


MOST_DAYS = 3650
"""How many days back costs can be asked for."""
SOON_S = 60.0
"""A reading of a buffer that is due within this time is waited for: a rate limit may have put it off."""
MOST_TENANTS = 100_000
"""How many sums of a day are looked at for spent budgets."""


class AllStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages stand how."""

    scheduler_summary: StatusCounts
    """The counts of labels that a live worker handles."""
    all_tasks_summary: StatusCounts
    """The counts of all labels."""


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what the language model has cost."""

    rows: list[Usage]
    next: str | None = None
    """The `after` of the next page; None on the last one."""


class AsyncObservation:
    """Shows status, history, health, alerts, samples, metrics and events."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.tasks = TaskStatusTracker(runtime.backend.views, runtime.open, runtime.limits)
        """The status of single items and of business tasks."""
        self._idle = IdleWatch(self._active, runtime.finishes)

    async def counts(self) -> AllStatus:
        """How many messages have which status, in all."""
        await self._runtime.open()
        labels = await self._runtime.backend.views.labels()
        return AllStatus(
            scheduler_summary=count_statuses(state for state in labels if state.handled),
            all_tasks_summary=count_statuses(labels),
        )

    async def lanes(self, user_id: str) -> list[LaneState]:
        """The lanes of a user that have work, by cube and label."""
        check_ids(self._runtime.limits, user_id=user_id)
        await self._runtime.open()
        lanes = await self._runtime.backend.views.lanes(user_id)
        principal = current_principal.get()
        return [state for state in lanes if principal.may_touch(user_id, state.lane.mem_cube_id)]

    async def history(self, item_id: str, *, user_id: str) -> list[Attempt]:
        """The runs of a message so far, oldest first."""
        check_ids(self._runtime.limits, user_id=user_id, item_id=item_id)
        await self._runtime.open()
        return await self._runtime.backend.views.history(Key(user_id, item_id))

    async def health(self) -> Health:
        """The health of the queue now."""
        return (await self._look())[0]

    async def alerts(self) -> list[Alert]:
        """The alerts that hold now, worst first, each with a remedy."""
        return (await self._look())[1]

    async def samples(self) -> list[DepthSample]:
        """The recent samples of how many messages waited and ran, as far as this process has taken them."""
        return list(self._runtime.sampler.samples)

    async def wait_idle(self, user_id: str, *, timeout: float = 120, poll: float = 0.5) -> Idleness:  # noqa: ASYNC109
        """Wait until no message of a user waits or runs, at most `timeout` seconds.

        Turns that wait in a buffer, to be read for facts when there are more or an hour has passed, are not
        waited for.
        """
        async for state in self.idling(user_id, timeout=timeout, poll=poll):
            last = state
        return last

    def idling(self, user_id: str, *, timeout: float = 120, poll: float = 0.5) -> AsyncGenerator[Idleness]:
        """Yield how many tasks of a user still wait or run, every `poll` seconds and at the end.

        If this process does the work, the answer that the user is idle comes at once.
        """
        return self._idle.states(user_id, timeout, poll, current_principal.get().cubes)

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
        """Call `listener` with batches of events of this process, on a thread of its own.

        It gets the events that match every argument that is given. A listener that does not keep up loses the
        oldest events: `subscription.dropped` says how many. `subscription.close()` ends the subscription.
        """
        wanted = _wanted(events, labels, user_id, item_id)
        return self._runtime.bus.subscribe(listener, wanted, most_waiting=most_waiting)

    def listen(
        self,
        *,
        events: Iterable[str] | None = None,
        labels: Iterable[str] | None = None,
        user_id: str | None = None,
        item_id: str | None = None,
    ) -> AsyncGenerator[Sequence[Event]]:
        """Yield batches of the events of all processes that use this queue, as far as the caller may hear.

        The first batch is empty: what happens after it is heard. Close the generator to stop listening.
        """
        principal = current_principal.get()

        def may_hear(event: Event) -> bool:
            if not principal.is_bound:
                return True
            return bool(event.user_id) and principal.may_touch(event.user_id, event.mem_cube_id)

        wanted = _wanted(events, labels, user_id, item_id)
        return hear(self._runtime.bus, self._runtime.backend.broadcast, wanted, may_hear)

    async def metrics(self) -> bytes:
        """The state of the queue and the durations of this process's handlers, as Prometheus reads them."""
        health, alerts = await self._look()
        labels = await self._runtime.backend.views.labels()
        return self._runtime.measure().render(
            labels,
            health,
            alerts,
            abandoned=self._runtime.worker.abandoned,
            damaged_removed=self._runtime.damaged.removed,
        )

    async def usage(
        self,
        *,
        user_id: str | None = None,
        mem_cube_id: str | None = None,
        days: int = 7,
        limit: int = 1000,
    ) -> list[Usage]:
        """What the language model has cost by tenant, label and day (UTC), the newest day first."""
        page = await self.usage_page(user_id=user_id, mem_cube_id=mem_cube_id, days=days, limit=limit)
        return page.rows

    async def usage_page(
        self,
        *,
        user_id: str | None = None,
        mem_cube_id: str | None = None,
        days: int = 7,
        after: str | None = None,
        limit: int = 1000,
    ) -> UsagePage:
        """A page of what the language model has cost; `after` is the `next` of the page before."""
        if mem_cube_id is not None and user_id is None:
            raise InvalidSelectionError("mem_cube_id needs a user_id: ids of cubes are per user")
        for name, number, most in (("days", days, MOST_DAYS), ("limit", limit, MOST_TENANTS)):
            if not 1 <= number <= most:
                raise InvalidSelectionError(f"{name}={number}: must be 1 to {most}")
        check_ids(self._runtime.limits, user_id=user_id, mem_cube_id=mem_cube_id)
        await self._runtime.open()
        today = from_epoch_ms(self._runtime.clock.now()).date()
        ledger, principal = self._runtime.gateway.ledger, current_principal.get()
        query = UsageQuery(
            since=(today - timedelta(days=days - 1)).isoformat(), user_id=user_id, mem_cube_id=mem_cube_id
        )

        async def read(place: str | None, most: int) -> tuple[list[Usage], str | None]:
            rows = await ledger.usage(msgspec.structs.replace(query, after=place, limit=most + 1))
            return rows[:most], rows[most - 1].place if len(rows) > most else None

        rows, follows = await seen_page(
            read, after, limit, lambda row: principal.may_touch(row.user_id, row.mem_cube_id)
        )
        return UsagePage(rows=rows, next=follows)

    async def statistics(
        self, *, user_id: str | None = None, mem_cube_id: str | None = None, limit: int = 100
    ) -> Statistics:
        """How many memories there are by kind and tier, their growth and tokens, as they were last counted.

        `statistics_update` counts them, every hour by default. The largest tenants come first. Because the
        numbers are about all users, a caller who may touch only some gets none; under governance only admins
        get them.
        """
        if current_principal.get().is_bound:
            raise BoundKeyError
        self._runtime.reads.check_ungoverned("reading statistics")
        if mem_cube_id is not None and user_id is None:
            raise InvalidSelectionError("mem_cube_id needs a user_id: ids of cubes are per user")
        if not 1 <= limit <= MOST_TENANTS:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_TENANTS}")
        check_ids(self._runtime.limits, user_id=user_id, mem_cube_id=mem_cube_id)
        await self._runtime.open()
        return await read_statistics(
            self._runtime.store,
            self._runtime.gateway.ledger,
            from_epoch_ms(self._runtime.clock.now()).date(),
            user_id=user_id,
            mem_cube_id=mem_cube_id,
            limit=limit,
        )

    async def budgets_spent(
        self, *, user_id: str | None = None, mem_cube_id: str | None = None
    ) -> list[SpentBudget]:
        """The tenants that cannot make another call of the language model today."""
        today = await self.usage(user_id=user_id, mem_cube_id=mem_cube_id, days=1, limit=MOST_TENANTS)
        return spent_budgets(today, self._runtime.settings.llm)

    async def _active(self, user_id: str) -> int:
        """How many messages of a user wait or run, but for readings of buffers that wait for more turns."""
        lanes = await self.lanes(user_id)
        soon = self._runtime.clock.now() + round(SOON_S * 1000)
        held_back = 0
        for state in lanes:
            if state.lane.label == READING and state.waiting:
                for kind in BlobType:
                    due = await self._runtime.backend.views.due_later(state.lane, unique_key_of(kind))
                    held_back += due is not None and due > soon
        return sum(state.waiting + state.in_progress for state in lanes) - held_back

    async def _look(self) -> tuple[Health, list[Alert]]:
        await self._runtime.open()
        return await self._runtime.watcher.look()


def _wanted(
    events: Iterable[str] | None, labels: Iterable[str] | None, user_id: str | None, item_id: str | None
) -> Wanted:
    return Wanted(
        events=None if events is None else frozenset(events),
        labels=None if labels is None else frozenset(labels),
        user_id=user_id,
        item_id=item_id,
    )


class TaskStatuses:
    """Like `TaskStatusTracker`, for code that blocks."""

    def __init__(self, inner: TaskStatusTracker, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    get_task_status = blocking(TaskStatusTracker.get_task_status)
    get_all_tasks_for_user = blocking(TaskStatusTracker.get_all_tasks_for_user)
    get_task_status_by_business_id = blocking(TaskStatusTracker.get_task_status_by_business_id)


class Observation:
    """Like `AsyncObservation`, for code that blocks."""

    def __init__(self, inner: AsyncObservation, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge
        self.subscribe = inner.subscribe
        self.tasks = TaskStatuses(inner.tasks, bridge)
        """The status of single items and of business tasks."""

    counts = blocking(AsyncObservation.counts)
    lanes = blocking(AsyncObservation.lanes)
    history = blocking(AsyncObservation.history)
    health = blocking(AsyncObservation.health)
    alerts = blocking(AsyncObservation.alerts)
    samples = blocking(AsyncObservation.samples)
    metrics = blocking(AsyncObservation.metrics)
    wait_idle = blocking(AsyncObservation.wait_idle)
    usage = blocking(AsyncObservation.usage)
    statistics = blocking(AsyncObservation.statistics)
    usage_page = blocking(AsyncObservation.usage_page)
    budgets_spent = blocking(AsyncObservation.budgets_spent)
