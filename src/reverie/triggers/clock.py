"""The trigger clock turns due triggers into messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reverie.backends.triggers import TRIGGERS
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.triggers.plan import plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from reverie.backends.interface import Backend
    from reverie.backends.triggers import Due, Firing
    from reverie.observe.recorder import Recorder
    from reverie.triggers.settings import TaskSettings

__all__ = ["TriggerClock"]

log = get_logger(__name__)

LIMIT = 500
"""The most triggers that are fired in one step."""
BREATH_S = 0.005
"""The pause between two looks: activity comes in crowds, and one look is enough for all of it."""


class TriggerClock(LoopService):
    """Fires the due triggers whose types this process handles, then sleeps until the next due time.

    Any number of instances may do the same: one of them fires each due time.
    """

    name = "trigger_clock"

    def __init__(
        self,
        backend: Backend,
        types: Callable[[], Awaitable[Mapping[str, TaskSettings] | None]],
        level_of: Callable[[str], int],
        check_interval_s: Callable[[], float],
        recorder: Recorder,
    ) -> None:
        """`types` answers the types that are in force and handled here; None: this process handles none.

        `recorder` announces the messages that are fired.
        """
        super().__init__()
        self._backend = backend
        self._types = types
        self._level_of = level_of
        self._check_interval_s = check_interval_s
        self._recorder = recorder
        self._news = asyncio.Event()
        self._home: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """See `Service.start`."""
        self._home = asyncio.get_running_loop()
        await super().start()

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`."""
        self._home = None
        await super().stop(grace_s)

    def look(self) -> None:
        """Look again, because other types are in force or handled now. Safe from any thread."""
        if self._home is not None:
            self._home.call_soon_threadsafe(self._news.set)

    async def fire_due(self, types: Mapping[str, TaskSettings] | None = None) -> Due | None:
        """Fire at most `LIMIT` due triggers of these types; default: of those that this process handles.

        The answer is what was due; None if this process handles no type.
        """
        types = await self._types() if types is None else types
        if types is None:
            return None
        wanted = {name: settings.depends_on for name, settings in types.items()}
        due = await self._backend.triggers.due(wanted, LIMIT)
        firings = [
            plan(trigger, types[trigger.task_type], self._level_of(trigger.task_type), due.now)
            for trigger in due.triggers
        ]
        if firings:
            began = self._recorder.now()
            answers = await self._backend.triggers.fire(firings)
            fired = [firing for firing, done in zip(firings, answers, strict=True) if done]
            self._recorder.enqueued([one.message for one in fired if one.message is not None], began)
            _log_skipped(fired)
        return due

    async def _turn(self) -> None:
        self._news.clear()
        due = await self.fire_due()
        if due is not None and due.triggers:
            return  # a trigger that was fired may be due again
        waits: list[Coroutine[Any, Any, Any]] = [self._news.wait()]
        if due is not None:
            latest = due.now + round(self._check_interval_s() * 1000)
            until = latest if due.next_due is None else min(latest, due.next_due)
            waits.append(self._backend.queue.wait((TRIGGERS,), until))
        await self._until_stopped(*waits)
        await asyncio.sleep(BREATH_S)


def _log_skipped(firings: list[Firing]) -> None:
    for firing in firings:
        if firing.message is None:
            own = firing.trigger
            log.warning(
                "trigger.missed", task_type=own.task_type, due=own.anchor, next_due=firing.next_anchor
            )
