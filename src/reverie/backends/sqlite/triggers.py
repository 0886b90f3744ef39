"""Triggers in an SQLite file: each move is a step of the queue's writer, so that message and task agree.

`tasks.py` reads and writes tasks, `runs.py` has what the end of a run means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from reverie.backends.sqlite.rows import decode_json, status_of, to_json
from reverie.backends.sqlite.runs import Run
from reverie.backends.sqlite.submit import insert
from reverie.backends.sqlite.tasks import Tasks
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
)
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Protocol

    import apsw

    from reverie.backends.sqlite.step import Step
    from reverie.backends.sqlite.tasks import Task
    from reverie.backends.triggers import Activity, Definition, Firing, SwitchType, TaskCommand
    from reverie.base.clock import Clock
    from reverie.message import Message
    from reverie.storage.sqlite import Database

    T = TypeVar("T")

    class Written(Protocol):
        """Runs a job as one step of the queue."""

        def __call__(self, job: Callable[[Step], T]) -> Awaitable[T]:
            """Answer when it is committed."""
            ...


__all__ = ["SqliteTriggers"]

SQL = load_queries(__package__ or "", "triggers.sql")
FORGET_AT_ONCE = 100
"""How many tasks that ended long ago one `fire` forgets at most."""


class SqliteTriggers:
    """See `reverie.backends.interface.TriggerStore`."""

    def __init__(self, database: Database, clock: Clock, written: Written) -> None:
        """`written` runs a job as one step of the queue."""
        self._database = database
        self._clock = clock
        self._written = written

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """See `TriggerStore.put`."""
        return await self._written(lambda step: _put(step, definitions, whole=whole))

    async def types(self) -> list[KnownType]:
        """See `TriggerStore.types`."""
        rows = await self._rows("read_types")
        return [_Type(*row).known for row in rows]

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """See `TriggerStore.touch`."""
        return await self._written(lambda step: _touch(step, activities))

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """See `TriggerStore.due`."""
        now = self._clock.now()
        wanted = to_json([(name, list(depends_on)) for name, depends_on in types.items()])
        ((text, later),) = await self._rows("due_tasks", types=wanted, now=now, limit=limit + 1)
        found = [
            DueTask(**dict(zip(DueTask.__struct_fields__, values, strict=True)))
            for values in decode_json(text)
        ]
        next_due = found[limit].scheduled_at if len(found) > limit else later
        return Due(now=now, tasks=found[:limit], next_due=next_due)

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """See `TriggerStore.fire`."""
        return await self._written(lambda step: _fire(step, firings))

    async def tasks(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TaskState]:
        """See `TriggerStore.tasks`."""
        if user_key is None:
            rows = await self._rows("tasks", task_type=task_type, after=after, limit=limit)
        else:
            rows = await self._rows("task", task_type=task_type, user_key=user_key, limit=limit)
        return [TaskState(**dict(zip(TaskState.__struct_fields__, row, strict=True))) for row in rows]

    async def statistics(self) -> list[TypeStatistics]:
        """See `TriggerStore.statistics`."""
        rows = await self._rows("statistics")
        names = TypeStatistics.__struct_fields__
        return [TypeStatistics(**dict(zip(names, row, strict=True))) for row in rows]

    async def control(self, command: TaskCommand) -> bool:
        """See `TriggerStore.control`."""
        return await self._written(lambda step: _control(step, command))

    async def _rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        """Read by one statement, so that all of it is of one moment."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL[statement], bindings).fetchall()

        return await self._database.read(job)


class _Type(msgspec.Struct):
    """A task type, as its row has it."""

    name: str
    text: str
    enabled: int
    version: int
    switched: int | None

    @property
    def fields(self) -> dict[str, str]:
        found: dict[str, str] = decode_json(self.text)
        return found

    @property
    def known(self) -> KnownType:
        enabled = self.enabled if self.switched is None else self.switched
        return KnownType(name=self.name, fields=self.fields, enabled=bool(enabled), version=self.version)


def _put(step: Step, definitions: Sequence[Definition], *, whole: bool) -> list[KnownType]:
    types = {row[0]: _Type(*row) for row in step.rows(SQL["read_types"])}
    answers = [_put_one(step, types, definition) for definition in definitions]
    if whole and definitions:
        version = definitions[0].version
        named = {definition.name for definition in definitions}
        for name, left_out in types.items():
            if name not in named and left_out.version < version:
                answers.append(_write_type(step, name, left_out.text, version, enabled=False))
    return answers


def _put_one(step: Step, types: dict[str, _Type], definition: Definition) -> KnownType:
    found = types.get(definition.name)
    if found is None or definition.version > found.version:
        changed = found is None or found.fields != definition.fields
        text = to_json(definition.fields)
        known = _write_type(step, definition.name, text, definition.version, enabled=definition.enabled)
        types[definition.name] = _Type(
            definition.name, text, int(definition.enabled), definition.version, None
        )
        _schedule_first(step, definition, anew=changed)
        return known
    same = definition.fields == found.fields and definition.enabled == bool(found.enabled)
    differs = definition.version == found.version and not same
    return msgspec.structs.replace(found.known, differs=differs)


def _write_type(step: Step, name: str, text: str, version: int, *, enabled: bool) -> KnownType:
    step.rows(SQL["write_type"], {"name": name, "fields": text, "enabled": enabled, "version": version})
    step.woken.add(TRIGGERS)
    return _Type(name, text, int(enabled), version, None).known


def _schedule_first(step: Step, definition: Definition, *, anew: bool) -> None:
    """Let a type that belongs to no user be due, if it has no due time yet or another schedule."""
    if definition.first_due is None:
        return
    tasks = Tasks(step, [(definition.name, GLOBAL_KEY)])
    task = tasks.of(definition.name, GLOBAL_KEY, None)
    if task.scheduled_at is None or anew:
        task.scheduled_at = task.anchor = definition.first_due
        task.expires_at = None
    tasks.write()


def _touch(step: Step, activities: Sequence[Activity]) -> list[bool]:
    tasks = Tasks(step, [(activity.task_type, activity.user_key) for activity in activities])
    answers = [
        activity.task_type in tasks.enabled and _touch_one(step, tasks, activity) for activity in activities
    ]
    tasks.write()
    return answers


def _touch_one(step: Step, tasks: Tasks, activity: Activity) -> bool:
    """Note an activity; whether that schedules a run."""
    now = step.now
    task = tasks.of(activity.task_type, activity.user_key, activity)
    task.belong_to(activity)
    task.last_activity = now
    if task.fired_at is not None:
        first, task.touched = not task.touched, 1
        return first
    moment = now + activity.interval_ms
    if task.scheduled_at is None:
        tasks.schedule(task, moment)
        return True
    if activity.debounce:
        if activity.max_wait_ms is not None:
            moment = min(moment, task.created_at + activity.max_wait_ms)
        task.scheduled_at = task.anchor = moment
    return False


def _fire(step: Step, firings: Sequence[Firing]) -> list[bool]:
    tasks = Tasks(step, [(firing.task.task_type, firing.task.user_key) for firing in firings])
    tasks.forget_old(FORGET_AT_ONCE)
    answers = [_fire_one(step, tasks, firing) for firing in firings]
    tasks.write()
    fired = zip(firings, answers, strict=True)
    _submit(step, [firing.message for firing, done in fired if done and firing.message is not None])
    step.finish()
    return answers


def _fire_one(step: Step, tasks: Tasks, firing: Firing) -> bool:
    """Let a due task run, or skip this time; False if it is no longer so."""
    name, now = firing.task.task_type, step.now
    task = tasks.get(name, firing.task.user_key)
    if task is None or name not in tasks.enabled:
        return False
    if task.scheduled_at != firing.task.scheduled_at or task.fired_at is not None:
        return False
    task.scheduled_at, task.anchor = firing.next_at, firing.next_anchor
    change = tasks.change(name)
    if firing.message is None:
        change.skipped += 1
        task.rest(now)
        return True
    task.item_user_id, task.item_id = firing.message.key
    task.fired_at = task.previous_run = now
    task.touched, task.retry_count = 0, 0
    late = max(0, now - firing.task.scheduled_at)
    change.fired += 1
    change.lateness_ms += late
    change.max_lateness_ms = max(late, change.max_lateness_ms)
    return True


def _submit(step: Step, messages: Sequence[Message]) -> None:
    """Submit the messages of runs, whatever the limits say."""
    answers = insert(step, messages)
    known = [m for m, answer in zip(messages, answers, strict=True) if answer.status != "accepted"]
    if not known:
        return
    # Its message was there before. If that has ended, nobody would ever end this run.
    keys = {message.item_id: message.user_key for message in known}
    rows = step.rows(SQL["known_runs"], {"keys": to_json([message.key for message in known])})
    for label, item_id, stored, error, attempts in rows:
        user_key = keys[item_id]
        if user_key is not None:
            step.runs.append(Run(label, user_key, item_id, status_of(stored, error), attempts, error))


def _control(step: Step, command: TaskCommand) -> bool:
    if isinstance(command, CancelTask):
        return _cancel(step, command)
    if isinstance(command, RunTask):
        return _run_now(step, command.activity)
    return _switch(step, command)


def _cancel(step: Step, command: CancelTask) -> bool:
    tasks = Tasks(step, [(command.task_type, command.user_key)])
    task = tasks.get(command.task_type, command.user_key)
    if task is None or task.user_id is None or not (task.scheduled_at is not None or task.touched):
        return False
    task.scheduled_at, task.anchor, task.touched = None, None, 0
    task.rest(step.now)
    if task.fired_at is None and task.ended is None:
        tasks.remove(task)
    tasks.write()
    step.woken.add(TRIGGERS)  # another type may have waited for this run
    return True


def _run_now(step: Step, activity: Activity) -> bool:
    tasks = Tasks(step, [(activity.task_type, activity.user_key)])
    if activity.task_type not in tasks.enabled:
        return False
    own = None if activity.user_key == GLOBAL_KEY else activity
    task = tasks.of(activity.task_type, activity.user_key, own)
    if task.fired_at is not None:
        task.touched = 1
    elif own is None:
        _due_now(step, task)
    else:
        tasks.schedule(task, step.now)
    tasks.write()
    return True


def _due_now(step: Step, task: Task) -> None:
    task.scheduled_at, task.expires_at = step.now, None  # the schedule goes on from its anchor
    step.woken.add(TRIGGERS)


def _switch(step: Step, command: SwitchType) -> bool:
    known = step.rows(SQL["switch_type"], {"name": command.task_type, "enabled": command.enabled})
    if known:
        step.woken.add(TRIGGERS)
    return bool(known)
