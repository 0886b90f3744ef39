"""Triggers in this process's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Claim
from reverie.backends.trigger_state import (
    Moved,
    Run,
    Trigger,
    TypeState,
    added,
    cancel,
    due_of,
    fire,
    is_blocked,
    is_forgotten,
    is_news,
    known_run,
    known_type,
    left_out,
    move_run,
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
    KnownType,
    RunTrigger,
    TypeStatistics,
)
from reverie.message import Key as MessageKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reverie.backends.memory.state import Item, State
    from reverie.backends.triggers import Activity, Definition, Firing, TriggerCommand, TriggerState
    from reverie.message import Message

    Key = tuple[str, str]
    """The type and the user key of a trigger."""

__all__ = ["MemoryTriggers"]


class MemoryTriggers:
    """See `reverie.backends.interface.TriggerStore`."""

    def __init__(self, state: State, submit: Callable[[Sequence[Message]], object]) -> None:
        """`submit` keeps messages in the same step, whatever the limits say."""
        self._state = state
        self._submit = submit
        self._types: dict[str, TypeState] = {}
        self._statistics: dict[str, TypeStatistics] = {}
        """By type; `pending` and `running` are counted when someone asks."""
        self._triggers: dict[Key, Trigger] = {}
        state.on_moved = self._run_moved

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """See `TriggerStore.put`."""
        with self._state.lock:
            known = [one for _, one in sorted(self._types.items())]
            others = left_out(known, definitions) if whole else []
            return [self._put(definition) for definition in (*definitions, *others)]

    async def types(self) -> list[KnownType]:
        """See `TriggerStore.types`."""
        with self._state.lock:
            return [known_type(one) for _, one in sorted(self._types.items())]

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """See `TriggerStore.touch`."""
        with self._state.lock:
            return [self._touch(activity) for activity in activities]

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """See `TriggerStore.due`."""
        with self._state.lock:
            now = self._state.clock.now()
            waiting = [
                due_of(trigger)
                for (name, user_key), trigger in self._triggers.items()
                if name in types
                and self._is_enabled(name)
                and trigger.scheduled_at is not None
                and trigger.fired_at is None
                and not is_blocked(trigger, self._others(user_key, types[name]))
            ]
            waiting.sort(key=lambda one: (one.scheduled_at, one.task_type, one.user_key))
            due = [one for one in waiting if one.scheduled_at <= now]
            following = waiting[min(len(due), limit) :]
            return Due(
                now=now,
                triggers=due[:limit],
                next_due=following[0].scheduled_at if following else None,
            )

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """See `TriggerStore.fire`."""
        with self._state.lock:
            now = self._state.clock.now()
            kept = self._triggers.items()
            self._triggers = {key: one for key, one in kept if one.expires_at is None or one.expires_at > now}
            return [self._fire(firing) for firing in firings]

    async def held(self, task_type: str, user_key: str) -> Claim | None:
        """See `TriggerStore.held`."""
        with self._state.lock:
            trigger = self._triggers.get((task_type, user_key))
            if trigger is None or trigger.item_user_id is None or trigger.item_id is None:
                return None
            item = self._state.items.get(MessageKey(trigger.item_user_id, trigger.item_id))
            if item is None or item.claim_id is None:
                return None
            return Claim(item.message, item.claim_id, item.lease_until, submitted_at=item.submitted_at)

    async def states(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TriggerState]:
        """See `TriggerStore.states`."""
        with self._state.lock:
            now = self._state.clock.now()
            found = [
                trigger
                for (name, key), trigger in sorted(self._triggers.items())
                if name == task_type
                and not is_forgotten(trigger, now)
                and (key == user_key if user_key is not None else not after or key > after)
            ]
            return [state_of(trigger) for trigger in found[:limit]]

    async def statistics(self) -> list[TypeStatistics]:
        """See `TriggerStore.statistics`."""
        with self._state.lock:
            found = []
            for name in sorted(self._types):
                statuses = [one.status for (kind, _), one in self._triggers.items() if kind == name]
                counts = {"pending": statuses.count("pending"), "running": statuses.count("running")}
                found.append(msgspec.structs.replace(self._statistics[name], **counts))
            return found

    async def control(self, command: TriggerCommand) -> bool:
        """See `TriggerStore.control`."""
        with self._state.lock:
            if isinstance(command, CancelTrigger):
                key, now = (command.task_type, command.user_key), self._state.clock.now()
                return self._keep(key, cancel(self._triggers.get(key), now))
            if isinstance(command, RunTrigger):
                return self._run_now(command.activity)
            known = self._types.get(command.task_type)
            if known is not None:
                self._types[known.name] = msgspec.structs.replace(known, switched=command.enabled)
                self._state.wakeup.notify((TRIGGERS,))
            return known is not None

    def _put(self, definition: Definition) -> KnownType:
        before = self._types.get(definition.name)
        after = put_type(before, definition)
        if after is not before:
            self._types[after.name] = after
            self._statistics.setdefault(after.name, TypeStatistics(task_type=after.name))
            key, now = (after.name, GLOBAL_KEY), self._state.clock.now()
            anew = before is None or before.fields != after.fields
            self._keep(key, schedule_first(self._triggers.get(key), definition, now, anew=anew))
            self._state.wakeup.notify((TRIGGERS,))
        return known_type(after, definition)

    def _touch(self, activity: Activity) -> bool:
        key, now = (activity.task_type, activity.user_key), self._state.clock.now()
        return self._is_enabled(activity.task_type) and self._keep(
            key, touch(self._triggers.get(key), activity, now)
        )

    def _run_now(self, activity: Activity) -> bool:
        key, now = (activity.task_type, activity.user_key), self._state.clock.now()
        return self._is_enabled(activity.task_type) and self._keep(
            key, run_now(self._triggers.get(key), activity, now)
        )

    def _fire(self, firing: Firing) -> bool:
        key, now = (firing.trigger.task_type, firing.trigger.user_key), self._state.clock.now()
        if not self._is_enabled(firing.trigger.task_type):
            return False
        fired = self._keep(key, fire(self._triggers.get(key), firing, now))
        message = firing.message
        if fired and message is not None:
            self._submit([message])
            ended = known_run(message, _run(self._state.items[message.key]))
            if ended is not None:
                self._keep(key, move_run(self._triggers.get(key), ended, now))
        return fired

    def _run_moved(self, item: Item) -> None:
        """Tell the trigger that has made this message, if any, that it has ended or waits again."""
        message = item.message
        if message.user_key is not None:
            key, now = (message.label, message.user_key), self._state.clock.now()
            self._keep(key, move_run(self._triggers.get(key), _run(item), now))

    def _keep(self, key: Key, moved: Moved) -> bool:
        """Write what comes of a move, and tell the clocks if it concerns them."""
        before, after = self._triggers.pop(key, None), moved.trigger
        if after is not None:
            self._triggers[key] = after
        if moved.counted is not None:
            name = moved.counted.task_type
            self._statistics[name] = added(self._statistics[name], moved.counted)
        if is_news(before, after):
            self._state.wakeup.notify((TRIGGERS,))
        return moved.answer

    def _is_enabled(self, task_type: str) -> bool:
        known = self._types.get(task_type)
        return known is not None and known.enabled

    def _others(self, user_key: str, task_types: Sequence[str]) -> list[Trigger]:
        """The triggers of these types for a user key, as far as there are any."""
        found = [self._triggers.get((name, user_key)) for name in task_types]
        return [one for one in found if one is not None]


def _run(item: Item) -> Run:
    message = item.message
    return Run(message.label, message.user_key, message.item_id, item.status, message.attempts, item.error)
