"""`scheduler.triggers`: look at timed tasks, run, cancel and switch them; async and blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from reverie.base.bridge import Bridge, blocking
from reverie.errors import shown
from reverie.principal import current_principal

if TYPE_CHECKING:
    from reverie.backends.triggers import KnownType, TriggerState, TypeStatistics
    from reverie.runtime import Runtime
    from reverie.triggers.overview import TriggerPage, TypeOverview
    from reverie.triggers.service import Who

__all__ = ["AsyncTimedTasks", "TimedTasks"]


class AsyncTimedTasks:
    """The task types and their timed tasks: look, run, cancel, enable, disable."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._triggers = runtime.triggers

    async def only_look(self, *, unless_empty: bool = False) -> None:
        """Let this process follow the types that are in force, and bring none of its own into force.

        For programs that only look in, with other settings than the workers. With `unless_empty`, the types
        of this process come into force if none are.
        """
        await self._triggers.only_look(unless_empty=unless_empty)

    async def types(self) -> list[KnownType]:
        """The task types, by name, as they are in force for all who share the queue."""
        return await self._triggers.known_types()

    async def statistics(self) -> list[TypeStatistics]:
        """The statistics of each type, by name: runs, failures, lateness."""
        return await self._triggers.statistics()

    async def overview(self, task_type: str | None = None) -> list[TypeOverview]:
        """The settings, workers and statistics of each type, or only of one."""
        return await self._triggers.overview(task_type)

    async def page(self, task_type: str, *, after: str = "", limit: int = 100) -> TriggerPage:
        """One page of the tasks of a type, and in `next` the `after` of the next page."""
        return await self._triggers.page(task_type, after=after, limit=limit)

    async def tasks(self, task_type: str, *, after: str = "", limit: int = 100) -> list[TriggerState]:
        """The tasks of a type by user key, those after `after`."""
        return await self._triggers.states(task_type, after=after, limit=limit)

    async def task(self, task_type: str, **who: Unpack[Who]) -> TriggerState | None:
        """The task of a user, or without ids the one of a periodic or cron type; None if there is none."""
        return await self._triggers.state(task_type, who)

    async def run(self, task_type: str, **who: Unpack[Who]) -> bool:
        """Let a task run now, or once more after the run that is under way; False if its type is disabled."""
        runtime = self._runtime
        await runtime.open()
        current_principal.get().check_role(runtime.role_of(task_type), f"the task type {shown(task_type)}")
        has_run = await self._triggers.run_now(task_type, who)
        if has_run:
            await runtime.audit.note("trigger.run", [task_type], who.get("user_id"))
        return has_run

    async def cancel(self, task_type: str, **who: Unpack[Who]) -> bool:
        """Forget a scheduled run, and ask one that is under way to stop; False if there is neither."""
        current_principal.get().check_role(
            self._runtime.role_of(task_type), f"the task type {shown(task_type)}"
        )
        cancelled = await self._triggers.cancel(task_type, who)
        if cancelled:
            await self._runtime.audit.note("trigger.cancel", [task_type], who.get("user_id"))
        return cancelled

    async def cancel_key(self, task_type: str, user_key: str) -> bool:
        """Do the same for the user key of a `TriggerState`, whatever ids it is made of."""
        cancelled = await self._triggers.cancel_key(task_type, user_key)
        if cancelled:
            await self._runtime.audit.note("trigger.cancel", [f"{task_type} of {user_key}"])
        return cancelled

    async def enable(self, task_type: str) -> None:
        """Let a type run everywhere, whatever its configuration says."""
        await self._triggers.switch(task_type, enabled=True)
        await self._runtime.audit.note("trigger.enable", [task_type])

    async def disable(self, task_type: str) -> None:
        """Let a type run nowhere, until it is enabled or a configuration of a higher version comes."""
        await self._triggers.switch(task_type, enabled=False)
        await self._runtime.audit.note("trigger.disable", [task_type])


class TimedTasks:
    """`AsyncTimedTasks` for code that blocks."""

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
