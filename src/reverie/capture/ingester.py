"""The ingester: submits the messages that wait in the spool to the queue, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.capture.hook_record import HookRecord
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    QueueFullError,
    TooManyLabelsError,
    UnhandledLabelError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from reverie.backends.moves import Submitted
    from reverie.capture.door import HookDoor
    from reverie.capture.spool_reader import Spooled, SpoolReader
    from reverie.memory.sessions import SessionNote
    from reverie.message import Message

__all__ = ["SpoolIngester"]

log = get_logger(__name__)

LEAST_PAUSE_S = 0.1
"""The shortest pause before a full queue is asked again, because each look lists the folder."""


class _Ready(NamedTuple):
    """A file and the messages that it becomes."""

    name: str
    user_id: str
    messages: tuple[Message, ...]
    note: SessionNote | None = None
    """What the file tells about a session, if a hook wrote it."""


class SpoolIngester(LoopService):
    """Looks into the spool's folder at intervals, and when a hook asks for it. One process takes files in.

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
        door: HookDoor | None = None,
    ) -> None:
        """`submit` keeps all messages it is given, or raises and keeps none.

        `door` makes messages of what hooks have written; without it, such files wait.
        """
        super().__init__()
        self._files = files
        self._submit = submit
        self._look_s = look_s
        self._door = door
        self._asked = asyncio.Event()
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

    def look_now(self) -> None:
        """Look again at once. Call this on the event loop."""
        self._asked.set()

    async def start(self) -> None:
        """See `Service.start`."""
        if self._task is None:
            self._asked = asyncio.Event()  # the last start may have been on another event loop
        await super().start()

    async def _turn(self) -> None:
        pause = await self.look()
        await self._until_stopped(asyncio.sleep(pause), self._asked.wait())
        self._asked.clear()

    async def _take(self, names: deque[str]) -> None:
        self._owners = {name: self._owners[name] for name in names if name in self._owners}
        while names and not self._stopping.is_set():
            files = await asyncio.to_thread(self._files.read_batch, names, self._is_held)
            await self._hand_over(await self._prepare(files))

    def _is_held(self, name: str) -> bool:
        return self._owners.get(name) in self._held

    async def _prepare(self, files: Sequence[Spooled]) -> list[_Ready]:
        """The messages of these files, in the order of the files."""
        records = [file.content for file in files if isinstance(file.content, HookRecord)]
        told = iter(await self._door.captured(records)) if self._door is not None else iter(())
        ready = []
        for name, content in files:
            if not isinstance(content, HookRecord):
                ready.append(_Ready(name, content.user_id, (content,)))
            elif self._door is not None:
                messages, note = next(told)
                ready.append(_Ready(name, content.user_id, messages, note))
        return ready

    async def _hand_over(self, files: Sequence[_Ready]) -> None:
        """Submit these files; a refused batch is split in halves, down to the file that is refused."""
        self._owners.update((file.name, file.user_id) for file in files if file.user_id in self._held)
        files = [file for file in files if file.user_id not in self._held]
        if not files:
            return
        messages = _first_of_each_id(files)
        try:
            answers = await self._submit(messages)
        except (InvalidMessageError, QueueFullError) as error:
            if len(files) > 1:
                middle = len(files) // 2
                await self._hand_over(files[:middle])
                await self._hand_over(files[middle:])
            else:
                await self._refused(files[0], error)
        else:
            if self._door is not None:
                await self._door.note([file.note for file in files if file.note is not None])
            self._away = False
            self._unhandled.difference_update(message.label for message in messages)
            failpoint("after_ingest")
            answered = zip(messages, answers, strict=True)
            taken = {id(message) for message, answer in answered if answer.status == "conflict"}
            await asyncio.to_thread(self._settle, files, taken)

    async def _refused(self, file: _Ready, error: InvalidMessageError | QueueFullError) -> None:
        if isinstance(error, UnhandledLabelError | TooManyLabelsError):
            self._hold(file, self._look_s)
            labels = {message.label for message in file.messages}
            if not labels <= self._unhandled:
                self._unhandled |= labels
                log.warning("spool.waits", reason=str(error), again_in_s=self._look_s)
        elif (
            isinstance(error, InvalidMessageError)
            and file.note is not None
            and any(message.depends_on for message in file.messages)
        ):
            free = tuple(msgspec.structs.replace(message, depends_on=()) for message in file.messages)
            await self._hand_over([file._replace(messages=free)])  # what it waits for was pruned long ago
        elif isinstance(error, InvalidMessageError):
            await asyncio.to_thread(self._files.set_aside, file.name, f"was refused: {error}")
        elif error.tenant is None:
            raise error
        else:
            self._hold(file, error.retry_after_s)

    def _hold(self, file: _Ready, again_in_s: float) -> None:
        self._held[file.user_id] = again_in_s
        self._owners[file.name] = file.user_id

    def _settle(self, files: Sequence[_Ready], taken: Collection[int]) -> None:
        """Remove files whose messages the queue has. `taken` has the messages whose id another one has."""
        for file in files:
            self._owners.pop(file.name, None)
            others = [message.item_id for message in file.messages if id(message) in taken]
            if others and file.note is None:  # of two hooks that tell of the same thing, the first wins
                reason = f"the queue has another message with the item_id {others[0]!r}"
                self._files.set_aside(file.name, reason)
            else:
                self._files.remove(file.name)
        log.info("spool.ingested", files=len(files))


def _first_of_each_id(files: Sequence[_Ready]) -> list[Message]:
    """The messages of all files; of two messages of hooks with the same id, only the first."""
    seen: set[tuple[str, str]] = set()
    messages = []
    for file in files:
        for message in file.messages:
            if file.note is not None and message.key in seen:
                continue
            seen.add(message.key)
            messages.append(message)
    return messages
