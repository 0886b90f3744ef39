"""The pruner: removes what is left over from work that has ended long ago, in small steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.moves import Status
from reverie.backends.views import StatusQuery
from reverie.base.service import LoopService
from reverie.memory.interface import KeepsInbox

if TYPE_CHECKING:
    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock
    from reverie.memory.interface import EffectStore, InboxEntry

__all__ = ["Pruner"]

LIMIT = 1000
"""The most rows of the queue that one step looks at."""
INBOX_LIMIT = 100
"""The most rows of the inbox that one step looks at; the queue is asked about each."""


class Pruner(LoopService):
    """Goes through the queue and the inbox at its start, and then every `every_s` seconds."""

    name = "pruner"

    def __init__(self, backend: Backend, store: EffectStore, clock: Clock, every_s: float) -> None:
        super().__init__()
        self._queue = backend.queue
        self._views = backend.views
        self._inbox = store if isinstance(store, KeepsInbox) else None
        self._clock = clock
        self._every_s = every_s
        self._next = 0

    async def prune(self) -> None:
        """Make one pass, unless one was made a short while ago or the service must stop."""
        now = self._clock.now()
        if now < self._next:
            return
        step = await self._queue.prune(LIMIT)
        while step.after is not None and not self._stopping.is_set():
            step = await self._queue.prune(LIMIT, step.after)
        while not self._stopping.is_set() and await self._prune_inbox():
            pass
        self._next = now + round(self._every_s * 1000)

    async def _prune_inbox(self) -> bool:
        """Remove old rows whose message cannot run again; the answer is whether there are more."""
        if self._inbox is None:
            return False
        entries = await self._inbox.old_entries(INBOX_LIMIT)
        needed = {}
        for entry in entries:
            submitted_at = await self._may_run_again(entry)
            if submitted_at is not None:
                needed[entry] = submitted_at
        if entries:
            await self._inbox.prune_inbox([entry for entry in entries if entry not in needed], needed)
        return len(entries) == INBOX_LIMIT

    async def _may_run_again(self, entry: InboxEntry) -> int | None:
        """When the message of a row was accepted, if it may run again; None if it may not.

        A message that waits or runs may, and one that a person can requeue.
        """
        query = StatusQuery(user_id=entry.key.user_id, item_id=entry.key.item_id)
        for item in (await self._views.read(query)).rows:
            if item.status is not Status.COMPLETED and item.submitted_at <= entry.accepted_by:
                return item.submitted_at
        return None

    async def _turn(self) -> None:
        await self.prune()
        await self._rest(self._clock, self._every_s)
