"""The SQLite backend: messages wait in an SQLite file. This is the embedded default.

`queue.py` has the moves. Each move is one transaction (`step.py`), written in the module of its name:
`submit`, `claim`, `settle`, `advance`, `control`. The statements of a module are in the `.sql` file beside
it. `breaker_state.py` keeps the breakers and limiters that workers share, `records.py` what people set up.
`triggers.py` keeps the triggers, which turn time or activity into messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.interface import Capabilities
from reverie.backends.moves import QueueLimits
from reverie.backends.sqlite.breaker_state import SqliteSharedState
from reverie.backends.sqlite.counts import count_if_needed
from reverie.backends.sqlite.queue import SqliteQueue
from reverie.backends.sqlite.records import SqliteRecords
from reverie.backends.sqlite.triggers import SqliteTriggers
from reverie.backends.sqlite.views import SqliteViews
from reverie.storage.broadcast import FileBroadcast

if TYPE_CHECKING:
    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.base.clock import Clock
    from reverie.storage.sqlite import Database

__all__ = ["SqliteBackend"]


class SqliteBackend:
    """See `reverie.backends.interface.Backend`."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        limits: QueueLimits | None = None,
        apply_effects: ApplyEffects | None = None,
    ) -> None:
        """Keep messages in `database`; with `apply_effects`, memory is in the same file."""
        self._database = database
        self.queue = SqliteQueue(database, clock, limits or QueueLimits(), apply_effects)
        self.views = SqliteViews(database, clock)
        self.triggers = SqliteTriggers(database, clock, self.queue.written)
        self.shared = SqliteSharedState(database, clock)
        self.records = SqliteRecords(database)
        self.broadcast = FileBroadcast(database.path)
        self.capabilities = Capabilities(
            applies_effects=apply_effects is not None, durability=database.durability
        )

    async def open(self) -> None:
        """See `Backend.open`."""
        self._database.open()
        self._database.migrate("queue", "reverie.backends.sqlite")
        await self._database.write(count_if_needed, urgent=True)

    async def close(self) -> None:
        """See `Backend.close`."""
        self.queue.close()
        self.broadcast.close()
        self._database.close()
