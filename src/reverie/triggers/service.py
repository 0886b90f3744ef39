"""The triggers of a process: their types and handlers, their clock, and all operations on them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypedDict

from reverie.backends.control import CancelItems, Selection
from reverie.backends.triggers import GLOBAL_KEY, Activity, CancelTrigger, RunTrigger, SwitchType
from reverie.base.logs import get_logger
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    InvalidSelectionError,
    InvalidSettingError,
    ReverieError,
    UnknownTaskTypeError,
)
from reverie.message import SYSTEM_USER, Message, check_message, check_name
from reverie.triggers.clock import TriggerClock
from reverie.triggers.handlers import message_handler
from reverie.triggers.health import TriggerWatch
from reverie.triggers.overview import overview, page
from reverie.triggers.plan import jitter_ms
from reverie.triggers.types import TriggerTypes
from reverie.triggers.user_keys import UserKeyBuilder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.triggers import KnownType, TriggerState, TypeStatistics
    from reverie.message import MessageLimits
    from reverie.observe.recorder import Recorder
    from reverie.observe.trigger_rules import TriggerHealth
    from reverie.triggers.overview import TriggerPage, TypeOverview
    from reverie.triggers.settings import TaskSettings, TriggerSettings

    Register = Callable[[str, Callable[[Message], Any], TaskSettings], None]

__all__ = ["Triggers", "Who"]

log = get_logger(__name__)

SERVED_S = 5.0
"""How long to trust the list of served activity types; after that, live workers are asked again."""


class Who(TypedDict, total=False):
    """The user for whom a trigger runs; a trigger of a periodic or cron type has no ids."""

    user_id: str | None
    device_id: str | None
    agent_id: str | None


class Triggers:
    """Turns activity and time into messages, for the trigger types that are in force."""

    def __init__(
        self,
        settings: TriggerSettings,
        backend: Backend,
        *,
        register: Register,
        handles: Callable[[str], bool],
        has_own_handler: Callable[[str], bool],
        level_of: Callable[[str], int],
        limits: MessageLimits,
        opened: Callable[[], Awaitable[None]],
        recorder: Recorder,
    ) -> None:
        """`register` makes a function the handler of a type; `handles` says whether a type has a handler.

        `has_own_handler` says whether it has one that is not built in. `opened` opens the backend, and is
        awaited before each use. `recorder` announces fired messages.
        """
        self._backend = backend
        self._register = register
        self._handles = handles
        self._has_own_handler = has_own_handler
        self._limits = limits
        self._opened = opened
        self._handlers: dict[str, Callable[[Message], Any]] = {}
        self._registered: dict[str, TaskSettings] = {}
        self.served: Mapping[str, TaskSettings] = {}
        """The enabled activity types that a handler serves."""
        self.served_until = 0.0
        """Until when `served` is trusted, by the monotonic clock."""
        self.keys = UserKeyBuilder(settings.user_key_config)
        self.types = TriggerTypes(settings, backend, self.keys.get_key_dimensions())
        self._watch = TriggerWatch(backend, self.types)
        self.clock = TriggerClock(
            backend, self._fired_here, level_of, lambda: self.types.settings.check_interval, recorder
        )

    @property
    def enabled(self) -> bool:
        """Whether triggers are in use at all: `scheduler.enabled`."""
        return self.types.settings.enabled

    # -- types and handlers -------------------------------------------------------------------------

    def define(self, task_type: str, settings: TaskSettings) -> None:
        """Add a type. If the settings have a type of this name, they win."""
        self.types.define(task_type, settings)

    def handle(self, task_type: str, function: Callable[..., Any]) -> None:
        """Let `function(user_id, device_id, agent_id)` do the work of a type, from now on.

        A function that only submits the work of this type and waits for it leaves the type to the built-in
        handler: no run holds a place in a worker to wait for another run.
        """
        if getattr(function, "submits", None) == task_type and self._handles(task_type):
            return
        self._handlers[task_type] = message_handler(task_type, function)
        self._registered.pop(task_type, None)
        self._register_one(task_type)

    def reload(self, settings: TriggerSettings) -> None:
        """Use other settings from now on."""
        if settings.user_key_config != self.types.settings.user_key_config:
            reason = "the ids that tell users apart cannot change while it runs: stop all instances first"
            raise InvalidSettingError("scheduler.user_key_config", settings.user_key_config, reason)
        self.types.replace(settings)
        for task_type in self._handlers:
            self._register_one(task_type)
        self.look_again()

    def look_again(self) -> None:
        """Learn again which types to fire and to touch, because they have changed. Safe from any thread."""
        self.served_until = 0.0
        self.clock.look()

    def _register_one(self, task_type: str) -> None:
        settings = self.types.get(task_type)
        if settings is not None and settings != self._registered.get(task_type):
            self._registered[task_type] = settings
            self._register(task_type, self._handlers[task_type], settings)

    async def _fired_here(self) -> Mapping[str, TaskSettings] | None:
        """The types that this process fires: the types in force that it handles; None if it handles none."""
        if not self.enabled or not any(self._handles(name) for name in self.types.names):
            return None
        await self.ready()
        for task_type in self._handlers:
            self._register_one(task_type)  # another instance may have changed the timeout
        return {name: own for name, own in self.types.in_force.items() if self._handles(name)}

    async def start(self) -> None:
        """Fire due triggers from now on, as long as triggers are enabled."""
        try:
            await self._learn_served()
        except ReverieError as error:  # tried again at the first activity
            log.warning("trigger.types_not_known", error=str(error))
        try:
            await self._fired_here()  # raises now if a type is misconfigured
        except BackendUnavailableError as error:  # the clock tries again
            log.warning("trigger.types_not_in_force", error=str(error))
        await self.clock.start()

    async def stop(self, grace_s: float) -> None:
        """Stop firing."""
        await self.clock.stop(grace_s)

    async def only_look(self, *, unless_empty: bool = False) -> None:
        """Only follow the types in force. With `unless_empty`, bring this process's own if there are none."""
        await self._opened()
        if not unless_empty or await self._backend.triggers.types():
            self.types.only_look()

    async def ready(self) -> None:
        """Put the types of this process to the backend, and learn which are in force. Idempotent."""
        await self._opened()
        await self.types.bring_into_force()

    # -- operations on triggers ---------------------------------------------------------------------

    async def schedule(self, task_type: str, whose: Sequence[Who]) -> list[bool]:
        """Note activity of users; answer for each user whether a new run was scheduled."""
        settings = await self._settings_of(task_type) if self.enabled else None
        if settings is None or settings.trigger_mode != "user_activity":
            log.warning("trigger.not_scheduled", task_type=task_type, reason=self._why_not(task_type))
            return [False] * len(whose)
        return await self._backend.triggers.touch([self._activity(task_type, settings, who) for who in whose])

    async def _learn_served(self) -> None:
        """Learn which enabled activity types a handler of this process or of a live worker serves."""
        if not self.enabled:
            self.served = {}
        if not self.enabled or time.monotonic() < self.served_until:
            return
        await self.ready()
        by_activity = {n: t for n, t in self.types.in_force.items() if t.trigger_mode == "user_activity"}
        if not all(self._handles(name) for name in by_activity):
            workers = await self._backend.views.workers()
            labels = {label for worker in workers for label in worker.labels}
            by_activity = {n: t for n, t in by_activity.items() if n in labels or self._handles(n)}
        self.served, self.served_until = by_activity, time.monotonic() + SERVED_S

    async def touch(self, whose: Sequence[Who]) -> list[bool]:
        """Note activity of users for every enabled activity type that a handler serves.

        Answers for each user whether a run was scheduled.
        """
        await self._learn_served()
        activities: list[Activity] = []
        owners: list[int] = []
        for index, who in enumerate(whose):
            try:
                activities += [self._activity(name, task, who) for name, task in self.served.items()]
            except InvalidMessageError as error:
                log.warning("trigger.not_scheduled", user_id=who.get("user_id"), reason=str(error))
            owners += [index] * (len(activities) - len(owners))
        scheduled = await self._backend.triggers.touch(activities) if activities else []
        fresh = {owner for owner, word in zip(owners, scheduled, strict=True) if word}
        return [index in fresh for index in range(len(whose))]

    async def pulled_type(self, task_type: str) -> TaskSettings | None:
        """The settings of a type whose runs may be pulled; None if it is not in force, or has a handler.

        A built-in handler counts only if a live worker runs it.
        """
        settings = await self._settings_of(task_type) if self.enabled else None
        if settings is None:
            return None
        workers = await self._backend.views.workers()
        if self._has_own_handler(task_type) or any(task_type in worker.labels for worker in workers):
            log.warning("trigger.not_pulled", task_type=task_type, reason="it has a handler")
            return None
        return settings

    async def known_types(self) -> list[KnownType]:
        """The types in force, by name."""
        await self.ready()
        return await self._backend.triggers.types()

    async def overview(self, task_type: str | None = None) -> list[TypeOverview]:
        """The settings and statistics of each type in force, or only of one.

        If no type is in force yet, these are the types that this process is configured with.
        """
        await self.ready()
        known = await self._backend.triggers.types() or self.types.configured()
        if task_type is not None:
            known = [one for one in known if one.name == task_type]
            if not known:
                raise UnknownTaskTypeError(task_type, sorted(self.types.names))
        return await overview(self._backend, known)

    async def page(self, task_type: str, *, after: str = "", limit: int = 100) -> TriggerPage:
        """One page of the triggers of a type, and where the next page begins."""
        await self._known(task_type)
        return await page(self._backend, task_type, after, limit)

    async def health(self, late_s: float) -> TriggerHealth | None:
        """The health of the types in force; a trigger is late after `late_s` seconds. None if not enabled."""
        return await self._watch.look(late_s) if self.enabled else None

    async def statistics(self) -> list[TypeStatistics]:
        """The statistics of each type, by name."""
        await self.ready()
        return await self._backend.triggers.statistics()

    async def states(self, task_type: str, *, after: str = "", limit: int = 100) -> list[TriggerState]:
        """The triggers of a type, by user key, starting after the key `after`."""
        await self._known(task_type)
        return await self._backend.triggers.states(task_type, after=after, limit=limit)

    async def state(self, task_type: str, who: Who) -> TriggerState | None:
        """The trigger of a type for a user; None if there is none."""
        await self._known(task_type)
        found = await self._backend.triggers.states(task_type, self.key_of(who))
        return found[0] if found else None

    async def run_now(self, task_type: str, who: Who) -> bool:
        """Make a trigger due now; False if its type is disabled."""
        settings = await self._known(task_type)
        if settings.trigger_mode == "user_activity":
            activity = self._activity(task_type, settings, who)
        elif any(who.values()):
            raise InvalidSelectionError(f"{task_type} runs for nobody in particular: leave out whose it is")
        else:
            activity = Activity(task_type=task_type, user_key=GLOBAL_KEY, user_id=SYSTEM_USER, interval_ms=0)
        return await self._backend.triggers.control(RunTrigger(activity))

    async def cancel(self, task_type: str, who: Who) -> bool:
        """Forget the scheduled run of a trigger, and cancel its present run; False if there is neither."""
        settings = await self._known(task_type)
        if settings.trigger_mode == "user_activity":
            who = {**who, "user_id": who.get("user_id") or ""}  # an empty id is refused
        return await self.cancel_key(task_type, self.key_of(who))

    async def cancel_key(self, task_type: str, user_key: str) -> bool:
        """Like `cancel`, by the user key of the trigger."""
        await self._known(task_type)
        forgotten = await self._backend.triggers.control(CancelTrigger(task_type, user_key))
        found = await self._backend.triggers.states(task_type, user_key)
        if not found or found[0].status != "running" or found[0].item_id is None:
            return forgotten
        which = Selection(user_id=found[0].user_id or SYSTEM_USER, item_ids=(found[0].item_id,))
        result = await self._backend.queue.control(CancelItems(which))
        return forgotten or bool(result.changed or result.requested)

    async def switch(self, task_type: str, *, enabled: bool) -> None:
        """Enable or disable a type in all processes, until a configuration of a higher version comes."""
        await self._known(task_type)
        await self._backend.triggers.control(SwitchType(task_type, enabled=enabled))
        await self.types.refresh()
        self.look_again()

    async def _settings_of(self, task_type: str) -> TaskSettings | None:
        await self.ready()
        return self.types.in_force.get(task_type)

    async def _known(self, task_type: str) -> TaskSettings:
        await self.ready()
        if self.types.get(task_type) is None:
            await self.types.refresh()  # another instance may have brought it into force
        settings = self.types.get(task_type)
        if settings is None:
            raise UnknownTaskTypeError(task_type, sorted(self.types.names))
        return settings

    def _why_not(self, task_type: str) -> str:
        known = self.types.get(task_type)
        if not self.enabled:
            return "scheduler.enabled is false"
        if known is None:
            return "there is no such type"
        if known.trigger_mode != "user_activity":
            return f"its trigger_mode is {known.trigger_mode}"
        return "it is disabled"

    def key_of(self, who: Who) -> str:
        """The user key of these ids; without a user id, the key of the trigger that belongs to no user."""
        user_id = who.get("user_id")
        return (
            GLOBAL_KEY
            if user_id is None
            else self.keys.build_key(user_id, who.get("device_id"), who.get("agent_id"))
        )

    def _activity(self, task_type: str, settings: TaskSettings, who: Who) -> Activity:
        user_id = who.get("user_id") or ""
        user_key = self.keys.build_key(user_id, who.get("device_id"), who.get("agent_id"))
        check_message(Message(user_id=user_id, label=task_type), self._limits)
        for name in ("device_id", "agent_id"):
            if given := who.get(name):
                check_name(name, given, self._limits)
        ids = self.keys.parse_key(user_key)
        defaults = self.types.settings.user_key_config
        interval_ms = round(settings.interval_s * 1000)
        return Activity(
            task_type=task_type,
            user_key=user_key,
            user_id=user_id,
            device_id=ids.get("device_id") or who.get("device_id") or defaults.default_device_id,
            agent_id=ids.get("agent_id") or who.get("agent_id") or defaults.default_agent_id,
            interval_ms=interval_ms + jitter_ms(settings, user_key, interval_ms),
            debounce=settings.mode == "debounce",
            max_wait_ms=None if settings.max_wait is None else round(settings.max_wait * 1000),
            ttl_ms=round(settings.task_ttl * 1000),
        )
