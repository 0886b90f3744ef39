"""The upkeep watcher: finds tenants whose memories have grown, and lets them be kept in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import InvalidMessageError, QueueFullError
from reverie.memory.upkeep import KeepsUpkeep
from reverie.message import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.base.clock import Clock
    from reverie.memory.interface import MemoryStore
    from reverie.memory.settings import MemorySettings
    from reverie.memory.upkeep import UpkeepSettings

    Submit = Callable[[Sequence[Message]], Awaitable[Any]]

__all__ = ["UpkeepWatcher"]

log = get_logger(__name__)

TENANTS_AT_ONCE = 1000
"""The most tenants of a label that one look submits messages for; the others follow in the next looks."""
FEW = 10
"""Near the limit of long-term memory, one of so many new memories is enough."""


class UpkeepWatcher(LoopService):
    """Submits a message of upkeep for each tenant that has got enough new memories since its last pass.

    A tenant that nobody talks to gets no new memories, and costs nothing.
    """

    name = "upkeep-watcher"

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        settings: UpkeepSettings,
        memory: MemorySettings,
        *,
        submit: Submit,
    ) -> None:
        super().__init__()
        self._store = store if isinstance(store, KeepsUpkeep) else None
        self._clock = clock
        self._settings = settings
        self._near = max(1, round(memory.long_term_limit * settings.near_limit))
        self._submit = submit

    async def start(self) -> None:
        """See `Service.start`. With `upkeep.enabled` false there is nothing to do."""
        if self._store is not None and self._settings.enabled:
            await super().start()

    async def look(self) -> int:
        """Submit a message for each tenant that has grown; the answer is how many were found."""
        assert self._store is not None
        after = {
            "mem_organize": self._settings.organize_after,
            "memory_compression": self._settings.compress_after,
        }
        await self._store.count_fresh(list(after))
        found = 0
        for label, least in after.items():
            few = -(-least // FEW)
            tenants = await self._store.grown(
                label, least=least, few=few, near=self._near, limit=TENANTS_AT_ONCE
            )
            for user_id, cube in tenants:
                message = Message(
                    user_id=user_id,
                    mem_cube_id=cube,
                    label=label,
                    unique_key="upkeep",
                    unique_window_s=self._settings.rest_s,  # a pass that fails is not begun again at once
                )
                try:
                    await self._submit([message])
                except (QueueFullError, InvalidMessageError) as error:  # of this tenant: the others go on
                    log.warning("upkeep.not_submitted", error=str(error), hint="tried again in the next look")
            found += len(tenants)
        return found

    async def _turn(self) -> None:
        await self._rest(self._clock, self._settings.look_s)
        if not self._stopping.is_set():
            await self.look()
