"""Placement: choose the executor of a batch by its handler's place; after losses, run it in isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.dispatch.local_executor import LocalExecutor
from reverie.dispatch.processes import ProcessExecutor
from reverie.dispatch.registry import HERE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from reverie.dispatch.context import Context
    from reverie.dispatch.interface import Batch, Executor
    from reverie.message import Key
    from reverie.outcome import Outcome

__all__ = ["ISOLATED_AFTER", "Placement", "is_dangerous"]

log = get_logger(__name__)

ISOLATED_AFTER = 2
"""Losses after which a message is suspected of killing its worker, and runs in isolation."""


class Placement:
    """All places of one worker where handlers run, as one `Executor`."""

    def __init__(
        self,
        new_place: Callable[[str], Executor],
        *,
        max_abandoned: int,
        on_too_many: Callable[[], None],
        on_fewer: Callable[[], None],
    ) -> None:
        """`new_place` makes the executor of a place outside of this process, when it is first needed.

        `too_many` is true while more than `max_abandoned` threads hang; `on_too_many` and `on_fewer` are
        called when it changes.
        """
        self._new_place = new_place
        self._max_abandoned = max_abandoned
        self._on_too_many = on_too_many
        self._on_fewer = on_fewer
        self.abandoned = 0
        """How many threads hang."""
        self.too_many = False
        """Whether too many threads hang: then no sync handler is started."""
        local = LocalExecutor(on_abandoned=self._count)
        self._executors: dict[str, Executor] = dict.fromkeys(HERE, local)
        self._isolation = ProcessExecutor(processes=1)

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        place = batch.handler.place
        executor = self._executors.get(place)
        lost_before = batch.claims[0].message.losses > 0
        if lost_before and place in HERE and is_suspect(batch) and batch.handler.import_path is not None:
            executor = self._isolation
        elif executor is None:
            executor = self._executors[place] = self._new_place(place)
        return await executor.run(batch, context, timeout_s)

    async def abandon(self, batch_id: int) -> None:
        """See `Executor.abandon`."""
        for executor in self._all():
            await executor.abandon(batch_id)

    def cancel(self, keys: Collection[Key]) -> None:
        """See `Executor.cancel`."""
        for executor in self._all():
            executor.cancel(keys)

    async def close(self) -> None:
        """See `Executor.close`."""
        for executor in self._all():
            await executor.close()

    def _all(self) -> set[Executor]:
        return {*self._executors.values(), self._isolation}

    def _count(self, abandoned: int) -> None:
        self.abandoned = abandoned
        if (abandoned > self._max_abandoned) is self.too_many:
            return
        self.too_many = not self.too_many
        if self.too_many:
            log.error("worker.too_many_abandoned", abandoned=abandoned, max_abandoned=self._max_abandoned)
            self._on_too_many()
        else:
            log.info("worker.fewer_abandoned", abandoned=abandoned)
            self._on_fewer()


def is_suspect(batch: Batch) -> bool:
    """Whether a batch is one message that may have killed its worker before."""
    return len(batch.claims) == 1 and batch.claims[0].message.losses >= ISOLATED_AFTER


def is_dangerous(batch: Batch) -> bool:
    """Whether a batch may kill this process and cannot run in another: then it runs alone."""
    handler = batch.handler
    return is_suspect(batch) and handler.place in HERE and handler.import_path is None
