"""The ingester: submits the messages that wait in the spool to the queue, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    QueueFullError,
    TooManyLabelsError,
    UnhandledLabelError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.backends.moves import Submitted
    from reverie.capture.spool_reader import Spooled, SpoolReader
    from reverie.message import Message

__all__ = ["SpoolIngester"]

log = get_logger(__name__)

LEAST_PAUSE_S = 0.1
"""The shortest pause before a full queue is asked again, because each look lists the folder."""


class SpoolIngester(LoopService):
    """Looks into the spool's folder at intervals. One process at a time takes files in.

    A file is removed when the queue has its message. If that fails, the next submit of it is a duplicate, and
    harmless. While the queue takes no more messages of a user, or refuses a label because no worker handles
    it yet or because there are too many, the files of that user wait, and keep their order.
    """

    name = "spool"

    def __init__(
        self,
        files: SpoolReader,
        submit: Callable[[Sequence[Message]], Awaitable[list[Submitted]]],
        look_s: float,
    ) -> None:
        """`submit` keeps all messages it is given, or raises and keeps none."""
        super().__init__()
        self._files = files
        self._submit = submit
        self._look_s = look_s
        self._away = False
        self._held: dict[str, float] = {}
        """User whose messages the queue refuses in this look → seconds until it is asked again."""
        self._owners: dict[str, str] = {}
        """File → user, for files of these users, which need not be read again."""
        self._unhandled: set[str] = set()
        """Labels that were refused, because no worker handles them or there are too many, and were logged."""

    async def look(self) -> float:
        """Take in the files that wait; return after how many seconds to look again."""
        self._held.clear()
        with self._files.locked() as ours:
            if not ours:
                return self._look_s
            try:
                await self._take(deque(await asyncio.to_thread(self._files.names)))
            except BackendUnavailableError as error:
                if not self._away:
                    log.warning("spool.waits", reason=str(error), again_in_s=self._look_s)
                self._away = True
                return self._look_s
            except QueueFullError as full:
                return max(LEAST_PAUSE_S, full.retry_after_s)
        return max(LEAST_PAUSE_S, min(self._held.values())) if self._held else self._look_s

    async def _turn(self) -> None:
        pause = await self.look()
        await self._until_stopped(asyncio.sleep(pause))

    async def _take(self, names: deque[str]) -> None:
        self._owners = {name: self._owners[name] for name in names if name in self._owners}
        while names and not self._stopping.is_set():
            await self._hand_over(await asyncio.to_thread(self._files.read_batch, names, self._is_held))

    def _is_held(self, name: str) -> bool:
        return self._owners.get(name) in self._held

    async def _hand_over(self, files: Sequence[Spooled]) -> None:
        """Submit these files; a refused batch is split in halves, down to the message that is refused."""
        self._owners.update(
            (name, message.user_id) for name, message in files if message.user_id in self._held
        )
        files = [file for file in files if file.message.user_id not in self._held]
        if not files:
            return
        try:
            answers = await self._submit([file.message for file in files])
        except (InvalidMessageError, QueueFullError) as error:
            if len(files) > 1:
                middle = len(files) // 2
                await self._hand_over(files[:middle])
                await self._hand_over(files[middle:])
            else:
                await self._refused(files[0], error)
        else:
            self._away = False
            self._unhandled.difference_update(file.message.label for file in files)
            failpoint("after_ingest")
            await asyncio.to_thread(self._settle, files, answers)

    async def _refused(self, file: Spooled, error: InvalidMessageError | QueueFullError) -> None:
        if isinstance(error, UnhandledLabelError | TooManyLabelsError):
            self._hold(file, self._look_s)
            if file.message.label not in self._unhandled:
                self._unhandled.add(file.message.label)
                log.warning("spool.waits", reason=str(error), again_in_s=self._look_s)
        elif isinstance(error, InvalidMessageError):
            await asyncio.to_thread(self._files.set_aside, file.name, f"was refused: {error}")
        elif error.tenant is None:
            raise error
        else:
            self._hold(file, error.retry_after_s)

    def _hold(self, file: Spooled, again_in_s: float) -> None:
        self._held[file.message.user_id] = again_in_s
        self._owners[file.name] = file.message.user_id

    def _settle(self, files: Sequence[Spooled], answers: Sequence[Submitted]) -> None:
        for file, answer in zip(files, answers, strict=True):
            self._owners.pop(file.name, None)
            if answer.status == "conflict":
                reason = f"the queue has another message with the item_id {file.message.item_id!r}"
                self._files.set_aside(file.name, reason)
            else:
                self._files.remove(file.name)
        log.info("spool.ingested", files=len(files))
