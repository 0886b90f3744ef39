"""Note the activity of users: a new memory from outside touches the triggers that wait for activity."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic as _now
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Submitted
    from reverie.message import Message
    from reverie.triggers.service import Triggers, Who

__all__ = ["ActivityNotes"]

_Ids = tuple[str, str | None, str | None]
"""The ids of a user, a device and an agent."""

log = get_logger(__name__)

LABEL = "add"
"""The label of the messages that count as activity of a user."""
REST_S = 1.0
"""Activity of one user is noted in the background at most once in this many seconds."""
MOST_KNOWN = 100_000
"""The most users whose last noted activity is remembered; beyond that, all are forgotten."""


class ActivityNotes:
    """Notes activity in the background, after a message was answered, for all triggers. Safe from any thread.

    Only messages from outside that were accepted as new count. Follow-ups and messages that a trigger has
    fired are never noted.
    """

    def __init__(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._lock = threading.Lock()
        self._waiting: dict[_Ids, Who] = {}
        """User, device and agent whose activity is not noted yet."""
        self._noted: dict[_Ids, float] = {}
        """user, device and agent → when activity was last noted, by the monotonic clock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Note activity on the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def note(self, messages: Sequence[Message], answers: Sequence[Submitted]) -> None:
        """Soon note the activity of the users whose new memories were accepted."""
        now, triggers = _now(), self._triggers
        nothing_served = not triggers.served and now < triggers.served_until
        if nothing_served or not any(message.label == LABEL for message in messages):
            return
        with self._lock:
            for message, answer in zip(messages, answers, strict=True):
                if message.label == LABEL and answer.status == "accepted":
                    ids = _ids_of(message)
                    if now - self._noted.get(ids, -REST_S) >= REST_S:
                        self._waiting[ids] = who_of(message)
                        self._remember(ids, now)
            wake = bool(self._waiting) and self._task is None
        if wake and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    async def note_now(self, message: Message) -> tuple[bool, str | None]:
        """Note the activity of a message's user; answer whether this scheduled a run, and the error if any.

        Does not raise, because the message is already kept: after an error, its sender would send it again.
        """
        who = who_of(message)
        with self._lock:
            self._remember(_ids_of(message), _now())
        try:
            return (await self._triggers.touch([who]))[0], None
        except ReverieError as error:
            log.warning("activity.not_noted", error=str(error))
            return False, str(error)

    async def flush(self) -> None:
        """Wait until all activity so far is noted."""
        task = self._task
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task})
        await self._note_waiting()

    async def close(self) -> None:
        """Note the waiting activity, and nothing more until the next `open`."""
        self._loop = None
        await self.flush()

    async def _note_waiting(self) -> None:
        while self._waiting:
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            try:
                await self._triggers.touch(list(waiting.values()))
            except ReverieError as error:
                log.warning("activity.not_noted", users=len(waiting), error=str(error))

    def _begin(self) -> None:
        if self._task is None and self._waiting:
            self._task = asyncio.create_task(self._note_waiting(), name="reverie-activity")
            self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            log.warning("activity.not_noted", error=repr(task.exception()))
        if self._loop is not None:
            self._begin()  # a note that came since the task looked last did not begin another

    def _remember(self, ids: _Ids, now: float) -> None:
        if len(self._noted) >= MOST_KNOWN:
            self._noted.clear()
        self._noted[ids] = now


def who_of(message: Message) -> Who:
    """The user, device and agent that a message is from."""
    user_id, device_id, agent_id = _ids_of(message)
    return {"user_id": user_id, "device_id": device_id, "agent_id": agent_id}


def _ids_of(message: Message) -> _Ids:
    info = message.info
    if info is None:
        return message.user_id, None, None
    device, agent = info.get("device_id"), info.get("agent_id")
    return (
        message.user_id,
        device if device and isinstance(device, str) else None,
        agent if agent and isinstance(agent, str) else None,
    )
