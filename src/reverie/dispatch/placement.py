"""Where a batch runs: in this process, in processes of its label, or, after losses, in isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.dispatch.local_executor import LocalExecutor
from reverie.dispatch.processes import ProcessExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from reverie.dispatch.context import Context
    from reverie.dispatch.local_executor import Batch, Executor
    from reverie.dispatch.registry import Handler
    from reverie.message import Key
    from reverie.outcome import Outcome

__all__ = ["ISOLATED_AFTER", "Executors", "is_dangerous"]

log = get_logger(__name__)

ISOLATED_AFTER = 2
"""Losses after which a message may have killed its worker, and is run where it can kill nobody else."""


class Executors:
    """All places of one worker where handlers run, as one `Executor`."""

    def __init__(
        self, *, max_abandoned: int, on_too_many: Callable[[], None], on_fewer: Callable[[], None]
    ) -> None:
        """Above `max_abandoned` threads that hang no sync handler is accepted; the two hear of a change."""
        self._max_abandoned = max_abandoned
        self._on_too_many = on_too_many
        self._on_fewer = on_fewer
        self._too_many = False
        self._local = LocalExecutor(on_return=self._count)
        self._cpu = ProcessExecutor()
        self._isolation = ProcessExecutor(processes=1)

    def accepts(self, handler: Handler) -> bool:
        """Whether more of this handler may be claimed now."""
        return not self._too_many or handler.is_async or handler.is_cpu

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """See `Executor.run`."""
        outcomes = await self._place(batch).run(batch, context, timeout_s)
        self._count()
        return outcomes

    async def abandon(self, batch_id: int) -> None:
        """See `Executor.abandon`."""
        for place in (self._local, self._cpu, self._isolation):
            await place.abandon(batch_id)

    def cancel(self, keys: Collection[Key]) -> None:
        """See `Executor.cancel`."""
        for place in (self._local, self._cpu, self._isolation):
            place.cancel(keys)

    async def close(self) -> None:
        """See `Executor.close`."""
        for place in (self._local, self._cpu, self._isolation):
            await place.close()

    def _place(self, batch: Batch) -> Executor:
        if batch.handler.is_cpu:
            return self._cpu
        if _is_suspect(batch) and batch.handler.import_path is not None:
            return self._isolation
        return self._local

    def _count(self) -> None:
        abandoned = self._local.abandoned
        if (abandoned > self._max_abandoned) is self._too_many:
            return
        self._too_many = not self._too_many
        if self._too_many:
            log.error("worker.too_many_abandoned", abandoned=abandoned, max_abandoned=self._max_abandoned)
            self._on_too_many()
        else:
            log.info("worker.fewer_abandoned", abandoned=abandoned)
            self._on_fewer()


def is_dangerous(batch: Batch) -> bool:
    """Whether a batch may kill this process and cannot run in another: it runs with nobody beside it."""
    handler = batch.handler
    return _is_suspect(batch) and not handler.is_cpu and handler.import_path is None


def _is_suspect(batch: Batch) -> bool:
    return len(batch.claims) == 1 and batch.claims[0].message.losses >= ISOLATED_AFTER
