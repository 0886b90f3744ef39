"""Timed tasks: `scheduler.triggers`, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from reverie.base.bridge import Bridge, blocking

if TYPE_CHECKING:
    from reverie.backends.triggers import KnownType, TriggerState, TypeStatistics
    from reverie.runtime import Runtime
    from reverie.triggers.overview import TriggerPage, TypeOverview
    from reverie.triggers.service import Who

__all__ = ["AsyncTimedTasks", "TimedTasks"]


class AsyncTimedTasks:
    """Which types there are and how their tasks stand; run, cancel, enable, disable."""

    def __init__(self, runtime: Runtime) -> None:
        self._triggers = runtime.triggers

    async def only_look(self, *, unless_empty: bool = False) -> None:
        """Let this process follow the types that are in force, and bring none of its own into force.

        For those who look in from a folder or with settings that are not those of the workers. With
        `unless_empty`, its own types come into force if none are.
        """
        await self._triggers.only_look(unless_empty=unless_empty)

    async def types(self) -> list[KnownType]:
        """The task types, by name, as they are in force for all who share the queue."""
        return await self._triggers.known_types()

    async def statistics(self) -> list[TypeStatistics]:
        """What has become of the runs of each type, by name."""
        return await self._triggers.statistics()

    async def overview(self, task_type: str | None = None) -> list[TypeOverview]:
        """How each type is set, who handles it and what has become of its runs; or only of one type."""
        return await self._triggers.overview(task_type)

    async def page(self, task_type: str, *, after: str = "", limit: int = 100) -> TriggerPage:
        """The tasks of a type, some of them, and (`next`) where the others begin."""
        return await self._triggers.page(task_type, after=after, limit=limit)

    async def tasks(self, task_type: str, *, after: str = "", limit: int = 100) -> list[TriggerState]:
        """The tasks of a type, by user key: those that come after `after`."""
        return await self._triggers.tasks(task_type, after=after, limit=limit)

    async def task(self, task_type: str, **who: Unpack[Who]) -> TriggerState | None:
        """How one task stands: that of a user, or without one that of a periodic or cron type."""
        return await self._triggers.task(task_type, who)

    async def run(self, task_type: str, **who: Unpack[Who]) -> bool:
        """Let a task run now, or once more after the run that is under way; False if its type is disabled."""
        return await self._triggers.run_now(task_type, who)

    async def cancel(self, task_type: str, **who: Unpack[Who]) -> bool:
        """Forget a scheduled run, and ask one that is under way to stop; False if there is neither."""
        return await self._triggers.cancel(task_type, who)

    async def cancel_key(self, task_type: str, user_key: str) -> bool:
        """The same for the user key of a `TriggerState`, whatever ids it is made of."""
        return await self._triggers.cancel_key(task_type, user_key)

    async def enable(self, task_type: str) -> None:
        """Let a type run, everywhere, whatever its configuration says."""
        await self._triggers.switch(task_type, enabled=True)

    async def disable(self, task_type: str) -> None:
        """Let a type run nowhere until it is enabled, or a configuration of a higher version comes."""
        await self._triggers.switch(task_type, enabled=False)


class TimedTasks:
    """The same for code that blocks."""

    def __init__(self, inner: AsyncTimedTasks, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    only_look = blocking(AsyncTimedTasks.only_look)
    types = blocking(AsyncTimedTasks.types)
    statistics = blocking(AsyncTimedTasks.statistics)
    tasks = blocking(AsyncTimedTasks.tasks)
    task = blocking(AsyncTimedTasks.task)
    run = blocking(AsyncTimedTasks.run)
    overview = blocking(AsyncTimedTasks.overview)
    page = blocking(AsyncTimedTasks.page)
    cancel = blocking(AsyncTimedTasks.cancel)
    cancel_key = blocking(AsyncTimedTasks.cancel_key)
    enable = blocking(AsyncTimedTasks.enable)
    disable = blocking(AsyncTimedTasks.disable)
