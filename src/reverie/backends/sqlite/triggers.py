"""Triggers in an SQLite file. Each move is a step of the queue, so messages and triggers always agree."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from reverie.backends.moves import Claim
from reverie.backends.sqlite.rows import decode_json, load_statements, message_from_row, status_of, to_json
from reverie.backends.sqlite.submit import insert
from reverie.backends.sqlite.trigger_rows import TriggerRows
from reverie.backends.trigger_state import (
    LEAST_KEPT_MS,
    Run,
    Trigger,
    TypeState,
    cancel,
    fire,
    known_run,
    known_type,
    left_out,
    put_type,
    run_now,
    schedule_first,
    state_of,
    touch,
)
from reverie.backends.triggers import (
    GLOBAL_KEY,
    TRIGGERS,
    CancelTrigger,
    Due,
    DueTrigger,
    KnownType,
    RunTrigger,
    TypeStatistics,
)
from reverie.errors import BackendUnavailableError
from reverie.message import Key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Protocol

    import apsw

    from reverie.backends.sqlite.step import Step
    from reverie.backends.triggers import Activity, Definition, Firing, TriggerCommand, TriggerState
    from reverie.base.clock import Clock
    from reverie.message import Message
    from reverie.storage.sqlite import Database

    T = TypeVar("T")

    class Written(Protocol):
        """Runs a job as one step of the queue."""

        def __call__(self, job: Callable[[Step], T]) -> Awaitable[T]:
            """Run `job` in the next write transaction; return its answer after the commit."""
            ...


__all__ = ["SqliteTriggers"]

SQL = load_statements("triggers.sql")
FORGET_AT_ONCE = 100
"""How many triggers that ended long ago one `fire` forgets at most."""
LOOKED_AT = 1000
"""How many blocked triggers of a type one `due` looks at, and puts aside, at least."""
NONE = "[]"


class _Look(NamedTuple):
    """What the statement `due_triggers` answers; lists are JSON."""

    due: str
    blocked: str
    more: int
    """Whether there may be more due triggers behind those that were looked at."""
    later: int | None
    changed: str
    """Types that depend on others than when their triggers were put aside."""


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
        return [known_type(_type(*row)) for row in await self._rows("read_types")]

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """See `TriggerStore.touch`."""
        return await self._written(lambda step: _touch(step, activities))

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """See `TriggerStore.due`."""
        now = self._clock.now()
        wanted = {
            "types": to_json([(name, sorted(depends_on)) for name, depends_on in types.items()]),
            "now": now,
            "limit": limit + 1,
            "page": limit + 1 + (LOOKED_AT if any(types.values()) else 0),
        }
        look = _Look(*(await self._rows("due_triggers", **wanted))[0])
        if look.blocked != NONE or look.changed != NONE:
            with suppress(BackendUnavailableError):  # as on a full disk; the next look reads them again
                look = await self._written(lambda step: _put_aside(step, wanted))
        names = DueTrigger.__struct_fields__
        found = [DueTrigger(**dict(zip(names, values, strict=True))) for values in decode_json(look.due)]
        next_due = now if look.more else look.later
        if len(found) > limit:
            next_due = found[limit].scheduled_at
        return Due(now=now, triggers=found[:limit], next_due=next_due)

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """See `TriggerStore.fire`."""
        return await self._written(lambda step: _fire(step, firings))

    async def held(self, task_type: str, user_key: str) -> Claim | None:
        """See `TriggerStore.held`."""
        for row in await self._rows("held_run", task_type=task_type, user_key=user_key):
            number, lane, claim_id, lease_until, submitted_at, *columns = row
            return Claim(message_from_row(columns), claim_id, lease_until, (number, lane), submitted_at)
        return None

    async def states(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TriggerState]:
        """See `TriggerStore.states`."""
        own = {"task_type": task_type, "now": self._clock.now(), "least_kept": LEAST_KEPT_MS}
        if user_key is None:
            rows = await self._rows("page_of_triggers", after=after, limit=limit, **own)
        else:
            rows = await self._rows("trigger", user_key=user_key, **own)
        return [state_of(Trigger(*row)) for row in rows]

    async def statistics(self) -> list[TypeStatistics]:
        """See `TriggerStore.statistics`."""
        rows = await self._rows("statistics")
        names = TypeStatistics.__struct_fields__
        return [TypeStatistics(**dict(zip(names, row, strict=True))) for row in rows]

    async def control(self, command: TriggerCommand) -> bool:
        """See `TriggerStore.control`."""
        return await self._written(lambda step: _control(step, command))

    async def _rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        """Run one reading statement, which sees the file as it is at one moment."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL[statement], bindings).fetchall()

        return await self._database.read(job)


def _type(name: str, fields: str, enabled: int, version: int, switched: int | None) -> TypeState:
    """A trigger type, from the columns of its row."""
    person = None if switched is None else bool(switched)
    return TypeState(name, decode_json(fields), bool(enabled), version, person)


def _put(step: Step, definitions: Sequence[Definition], *, whole: bool) -> list[KnownType]:
    types = {row[0]: _type(*row) for row in step.rows(SQL["read_types"])}
    given = (*definitions, *(left_out(types.values(), definitions) if whole else ()))
    first = [(definition.name, GLOBAL_KEY) for definition in given if definition.first_due is not None]
    triggers = TriggerRows(step, first)
    answers = []
    for definition in given:
        before = types.get(definition.name)
        after = types[definition.name] = put_type(before, definition)
        answers.append(known_type(after, definition))
        if after is before:
            continue
        own = {"enabled": after.configured, "version": after.version}
        step.rows(SQL["write_type"], {"name": after.name, "fields": to_json(after.fields), **own})
        step.woken.add(TRIGGERS)
        key, anew = (after.name, GLOBAL_KEY), before is None or before.fields != after.fields
        if definition.first_due is not None:
            triggers.keep(key, schedule_first(triggers.get(key), definition, step.now, anew=anew))
    triggers.write()
    return answers


def _touch(step: Step, activities: Sequence[Activity]) -> list[bool]:
    keys = [(activity.task_type, activity.user_key) for activity in activities]
    triggers = TriggerRows(step, keys)
    answers = [
        activity.task_type in triggers.enabled
        and triggers.keep(key, touch(triggers.get(key), activity, step.now))
        for key, activity in zip(keys, activities, strict=True)
    ]
    triggers.write()
    return answers


def _put_aside(step: Step, wanted: dict[str, Any]) -> _Look:
    """Look for due triggers, and put those aside that are blocked."""
    look = _Look(*step.rows(SQL["due_triggers"], wanted)[0])
    if look.changed != NONE:
        for name, depends_on in decode_json(look.changed):
            step.rows(SQL["write_dependence"], (name, to_json(depends_on)))
            step.rows(SQL["put_back"], (name,))
        look = _Look(*step.rows(SQL["due_triggers"], wanted)[0])
    step.rows(SQL["put_aside"], {"triggers": look.blocked})
    return look


def _fire(step: Step, firings: Sequence[Firing]) -> list[bool]:
    keys = [(firing.trigger.task_type, firing.trigger.user_key) for firing in firings]
    triggers = TriggerRows(step, keys)
    triggers.forget_old(FORGET_AT_ONCE)
    answers = [
        key[0] in triggers.enabled and triggers.keep(key, fire(triggers.get(key), firing, step.now))
        for key, firing in zip(keys, firings, strict=True)
    ]
    triggers.write()
    fired = zip(firings, answers, strict=True)
    _submit(step, [firing.message for firing, done in fired if done and firing.message is not None])
    step.finish()
    return answers


def _submit(step: Step, messages: Sequence[Message]) -> None:
    """Submit the messages of runs, without checking limits.

    If the queue has had a message before, its run may have ended already (`known_run`).
    """
    answers = insert(step, messages)
    known = {m.key: m for m, answer in zip(messages, answers, strict=True) if answer.status != "accepted"}
    if not known:
        return
    rows = step.rows(SQL["known_runs"], {"keys": to_json(list(known))})
    for user_id, item_id, label, user_key, stored, error, attempts in rows:
        found = Run(label, user_key, item_id, status_of(stored, error), attempts, error)
        ended = known_run(known[Key(user_id, item_id)], found)
        if ended is not None:
            step.runs.append(ended)


def _control(step: Step, command: TriggerCommand) -> bool:
    if isinstance(command, CancelTrigger):
        key = command.task_type, command.user_key
        triggers = TriggerRows(step, [key])
        done = triggers.keep(key, cancel(triggers.get(key), step.now))
    elif isinstance(command, RunTrigger):
        key = command.activity.task_type, command.activity.user_key
        triggers = TriggerRows(step, [key])
        done = key[0] in triggers.enabled and triggers.keep(
            key, run_now(triggers.get(key), command.activity, step.now)
        )
    else:
        bindings = {"name": command.task_type, "enabled": command.enabled}
        done = bool(step.rows(SQL["switch_type"], bindings))
        if done:
            step.woken.add(TRIGGERS)
        return done
    triggers.write()
    return done
