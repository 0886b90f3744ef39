"""Triggers in this process's memory, written to be read: the other stores do the same with statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Status
from reverie.backends.triggers import (
    GLOBAL_KEY,
    TRIGGERS,
    CancelTask,
    Due,
    DueTask,
    KnownType,
    RunTask,
    TaskState,
    TypeStatistics,
    kept_ms,
    standing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reverie.backends.memory.state import Item, State
    from reverie.backends.triggers import Activity, Definition, Firing, TaskCommand, TaskStatus
    from reverie.message import Message

__all__ = ["MemoryTriggers"]


@dataclass
class Task:
    """One trigger for one user key."""

    activity: Activity | None
    """What it was scheduled by; None if it belongs to no user."""
    created_at: int
    scheduled_at: int | None = None
    anchor: int | None = None
    last_activity: int | None = None
    touched: bool = False
    """Whether there was activity, or someone asked for a run, since its present run was fired."""
    item_id: str | None = None
    fired_at: int | None = None
    """Set while its run is under way."""
    ended: TaskStatus | None = None
    """How its last run ended."""
    expires_at: int | None = None
    retry_count: int = 0
    last_exec: int | None = None
    previous_run: int | None = None
    """When the run before the next one was fired."""

    @property
    def status(self) -> TaskStatus:
        """See `standing`."""
        return standing(self.fired_at, self.scheduled_at, self.ended)


@dataclass
class Type:
    """A task type."""

    definition: Definition
    switched: bool | None = None
    """What a person has set instead of what the configuration says."""
    statistics: TypeStatistics = field(default_factory=lambda: TypeStatistics(task_type=""))

    @property
    def enabled(self) -> bool:
        """Whether its tasks run."""
        return self.definition.enabled if self.switched is None else self.switched

    def count(self, **more: int) -> None:
        """Add to the statistics."""
        changed = {name: getattr(self.statistics, name) + number for name, number in more.items()}
        self.statistics = msgspec.structs.replace(self.statistics, **changed)


class MemoryTriggers:
    """See `reverie.backends.interface.TriggerStore`."""

    def __init__(self, state: State, submit: Callable[[Sequence[Message]], object]) -> None:
        """`submit` keeps messages in the same step, whatever the limits say."""
        self._state = state
        self._submit = submit
        self._types: dict[str, Type] = {}
        self._tasks: dict[tuple[str, str], Task] = {}
        state.on_end = self._run_ended
        state.on_retry = self._run_retried

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """See `TriggerStore.put`."""
        with self._state.lock:
            return [self._put(definition) for definition in self._with_missing(definitions, whole=whole)]

    async def types(self) -> list[KnownType]:
        """See `TriggerStore.types`."""
        with self._state.lock:
            return [_known(kind) for _, kind in sorted(self._types.items())]

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """See `TriggerStore.touch`."""
        with self._state.lock:
            return [self._touch(activity) for activity in activities]

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """See `TriggerStore.due`."""
        with self._state.lock:
            now = self._state.clock.now()
            scheduled = sorted(
                (task.scheduled_at, name, user_key, task)
                for (name, user_key), task in self._tasks.items()
                if name in types
                and self._types[name].enabled
                and task.scheduled_at is not None
                and task.fired_at is None
                and not self._is_blocked(task, user_key, types[name])
            )
            due = [_due_task(name, key, task) for at, name, key, task in scheduled if at <= now]
            later = (
                [at for at, *_ in scheduled if at > now] if len(due) <= limit else [due[limit].scheduled_at]
            )
            return Due(now=now, tasks=due[:limit], next_due=min(later, default=None))

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """See `TriggerStore.fire`."""
        with self._state.lock:
            self._forget_old()
            return [self._fire(firing) for firing in firings]

    async def tasks(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TaskState]:
        """See `TriggerStore.tasks`."""
        with self._state.lock:
            keys = [user_key] if user_key is not None else sorted(k for t, k in self._tasks if t == task_type)
            if user_key is None and after:
                keys = [key for key in keys if key > after]
            found = [(key, self._tasks[task_type, key]) for key in keys if (task_type, key) in self._tasks]
            return [_state_of(task_type, key, task) for key, task in found][:limit]

    async def statistics(self) -> list[TypeStatistics]:
        """See `TriggerStore.statistics`."""
        with self._state.lock:
            return [self._statistics(name) for name in sorted(self._types)]

    async def control(self, command: TaskCommand) -> bool:
        """See `TriggerStore.control`."""
        with self._state.lock:
            if isinstance(command, CancelTask):
                return self._cancel(command)
            if isinstance(command, RunTask):
                return self._run_now(command.activity)
            kind = self._types.get(command.task_type)
            if kind is not None:
                kind.switched = command.enabled
                self._state.wakeup.notify((TRIGGERS,))
            return kind is not None

    def _with_missing(self, definitions: Sequence[Definition], *, whole: bool) -> list[Definition]:
        """With those that a whole configuration leaves out: they are disabled by it."""
        if not whole or not definitions:
            return list(definitions)
        names, version = {d.name for d in definitions}, definitions[0].version
        missing = [kind.definition for name, kind in self._types.items() if name not in names]
        left_out = [
            msgspec.structs.replace(d, enabled=False, version=version) for d in missing if d.version < version
        ]
        return [*definitions, *left_out]

    def _put(self, definition: Definition) -> KnownType:
        kind = self._types.get(definition.name)
        if kind is None or definition.version > kind.definition.version:
            changed = kind is None or kind.definition.fields != definition.fields
            statistics = TypeStatistics(task_type=definition.name) if kind is None else kind.statistics
            kind = self._types[definition.name] = Type(definition, None, statistics)
            self._schedule_first(definition, anew=changed)
        elif definition.version == kind.definition.version and (
            definition.fields != kind.definition.fields or definition.enabled != kind.definition.enabled
        ):
            return msgspec.structs.replace(_known(kind), differs=True)
        return _known(kind)

    def _schedule_first(self, definition: Definition, *, anew: bool) -> None:
        """Let a type that belongs to no user be due, if it has no due time yet or another schedule."""
        if definition.first_due is None:
            return
        task = self._tasks.setdefault((definition.name, GLOBAL_KEY), Task(None, self._state.clock.now()))
        if task.scheduled_at is None or anew:
            task.scheduled_at = task.anchor = definition.first_due
            self._state.wakeup.notify((TRIGGERS,))

    def _touch(self, activity: Activity) -> bool:
        kind, now = self._types.get(activity.task_type), self._state.clock.now()
        if kind is None or not kind.enabled:
            return False
        task = self._tasks.setdefault((activity.task_type, activity.user_key), Task(activity, now))
        task.activity, task.last_activity = activity, now
        if task.fired_at is not None:
            first, task.touched = not task.touched, True
            return first
        if task.scheduled_at is None:
            self._schedule(task, now + activity.interval_ms)
            return True
        if activity.debounce:
            latest = task.created_at + activity.max_wait_ms if activity.max_wait_ms is not None else None
            moved = now + activity.interval_ms
            task.scheduled_at = task.anchor = moved if latest is None else min(moved, latest)
        return False

    def _schedule(self, task: Task, moment: int) -> None:
        now = self._state.clock.now()
        task.created_at, task.scheduled_at, task.anchor = now, moment, moment
        task.retry_count, task.expires_at = 0, None
        self._state.wakeup.notify((TRIGGERS,))

    def _is_blocked(self, task: Task, user_key: str, depends_on: Sequence[str]) -> bool:
        """Whether a type that it depends on is scheduled or runs, and has not ended well since it ran."""
        others = [other for name in depends_on if (other := self._tasks.get((name, user_key))) is not None]
        since = task.previous_run or 0
        return any(
            other.status in {"pending", "running"} and (other.last_exec or 0) <= since for other in others
        )

    def _fire(self, firing: Firing) -> bool:
        name, now = firing.task.task_type, self._state.clock.now()
        task, kind = self._tasks.get((name, firing.task.user_key)), self._types.get(name)
        if task is None or kind is None or task.scheduled_at != firing.task.scheduled_at:
            return False
        if task.fired_at is not None or not kind.enabled:
            return False
        task.scheduled_at, task.anchor = firing.next_at, firing.next_anchor
        if firing.message is None:
            kind.count(skipped=1)
            return True
        task.item_id, task.fired_at, task.previous_run = firing.message.item_id, now, now
        task.touched, task.retry_count = False, 0
        late = max(0, now - firing.task.scheduled_at)
        kind.count(fired=1, lateness_ms=late)
        most = max(late, kind.statistics.max_lateness_ms)
        kind.statistics = msgspec.structs.replace(kind.statistics, max_lateness_ms=most)
        self._submit([firing.message])
        item = self._state.items[firing.message.key]
        if item.status.ended:  # its message was there before: nobody else would end this run
            self._run_ended(item)
        return True

    def _task_of(self, item: Item) -> Task | None:
        """The task whose run this is, while that is under way."""
        message = item.message
        if message.user_key is None:
            return None
        task = self._tasks.get((message.label, message.user_key))
        under_way = task is not None and task.fired_at is not None and task.item_id == message.item_id
        return task if under_way else None

    def _run_retried(self, item: Item) -> None:
        if task := self._task_of(item):
            task.retry_count = item.message.attempts

    def _run_ended(self, item: Item) -> None:
        task = self._task_of(item)
        if task is None or task.fired_at is None:
            return
        now, good, kind = (
            self._state.clock.now(),
            item.status is Status.COMPLETED,
            self._types[item.message.label],
        )
        kind.count(runs=1, failures=0 if good else 1, duration_ms=now - task.fired_at)
        error = kind.statistics.last_error if good else item.error
        kind.statistics = msgspec.structs.replace(kind.statistics, last_run_at=now, last_error=error)
        task.fired_at, task.ended = None, "completed" if good else "failed"
        task.last_exec = now if good else task.last_exec
        if task.activity is not None:
            activity = task.activity
            task.expires_at = now + kept_ms(activity.ttl_ms, activity.interval_ms)
            if task.touched:
                self._schedule(task, now + activity.interval_ms)
        elif task.touched:
            task.scheduled_at = now
        task.touched = False
        self._state.wakeup.notify((TRIGGERS,))

    def _cancel(self, command: CancelTask) -> bool:
        task = self._tasks.get((command.task_type, command.user_key))
        if task is None or task.activity is None or not (task.scheduled_at is not None or task.touched):
            return False
        task.scheduled_at, task.anchor, task.touched = None, None, False
        if task.fired_at is None and task.ended is None:
            del self._tasks[command.task_type, command.user_key]
        elif task.fired_at is None:
            task.expires_at = self._state.clock.now() + kept_ms(
                task.activity.ttl_ms, task.activity.interval_ms
            )
        self._state.wakeup.notify((TRIGGERS,))  # another type may have waited for this run
        return True

    def _run_now(self, activity: Activity) -> bool:
        kind, now = self._types.get(activity.task_type), self._state.clock.now()
        if kind is None or not kind.enabled:
            return False
        own = None if activity.user_key == GLOBAL_KEY else activity
        task = self._tasks.setdefault((activity.task_type, activity.user_key), Task(own, now))
        if task.fired_at is not None:
            task.touched = True
        elif own is None:
            task.scheduled_at = now  # the schedule goes on from its anchor
            self._state.wakeup.notify((TRIGGERS,))
        else:
            self._schedule(task, now)
        return True

    def _statistics(self, name: str) -> TypeStatistics:
        tasks = [task for (kind, _), task in self._tasks.items() if kind == name]
        pending, running = (sum(task.status == word for task in tasks) for word in ("pending", "running"))
        return msgspec.structs.replace(self._types[name].statistics, pending=pending, running=running)

    def _forget_old(self) -> None:
        now = self._state.clock.now()
        old = [
            key
            for key, task in self._tasks.items()
            if task.expires_at is not None
            and task.expires_at <= now
            and task.scheduled_at is None
            and task.fired_at is None
        ]
        for key in old:
            del self._tasks[key]


def _known(kind: Type) -> KnownType:
    definition = kind.definition
    return KnownType(
        name=definition.name, fields=definition.fields, enabled=kind.enabled, version=definition.version
    )


def _whose(task: Task) -> dict[str, str | None]:
    names = ("user_id", "device_id", "agent_id")
    return {name: None if task.activity is None else getattr(task.activity, name) for name in names}


def _due_task(name: str, user_key: str, task: Task) -> DueTask:
    assert task.scheduled_at is not None
    return DueTask(
        task_type=name,
        user_key=user_key,
        **_whose(task),
        scheduled_at=task.scheduled_at,
        anchor=task.scheduled_at if task.anchor is None else task.anchor,
        last_item_id=task.item_id,
    )


def _state_of(name: str, user_key: str, task: Task) -> TaskState:
    return TaskState(
        task_type=name,
        user_key=user_key,
        status=task.status,
        **_whose(task),
        created_at=task.created_at,
        scheduled_at=task.scheduled_at,
        last_activity=task.last_activity,
        item_id=task.item_id,
        retry_count=task.retry_count,
        last_exec=task.last_exec,
    )
