"""Requests that wait for their work: `async_mode = sync`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import HTTPException

from reverie.api.streams import unless_gone
from reverie.errors import NoWorkerError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Request

    from reverie.backends.views import ItemStatus
    from reverie.face.scheduler import AsyncScheduler
    from reverie.message import Key, Message

__all__ = ["Waiting", "check_worker"]


async def check_worker(scheduler: AsyncScheduler, label: str) -> None:
    """Refuse a request that would wait for work which nobody does."""
    await scheduler.open()
    workers = await scheduler.runtime.backend.views.workers()
    if not any(label in worker.labels for worker in workers):
        raise NoWorkerError(label)


class Waiting:
    """The time that one request may wait: `server.sync_timeout_s` from now on."""

    def __init__(self, scheduler: AsyncScheduler, client: Request) -> None:
        self._scheduler = scheduler
        self._client = client
        self._end = time.monotonic() + scheduler.runtime.settings.server.sync_timeout_s

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    async def settled(self, messages: Sequence[Message]) -> dict[Key, ItemStatus]:
        """The status of the messages that have ended when the time is over, or as soon as all have ended.

        None, if the server stops meanwhile: the work is kept and goes on elsewhere.
        """
        ended: dict[Key, ItemStatus] = {}

        async def wait() -> None:
            for message in messages:
                with suppress(WaitTimeoutError):
                    ended[message.key] = await self._scheduler.wait(
                        message.item_id, user_id=message.user_id, timeout=self.left_s
                    )

        with suppress(HTTPException):
            await unless_gone(self._client, wait())
        return ended
