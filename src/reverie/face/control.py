"""`scheduler.control`: the commands that a person can give to the queue, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from reverie.backends.control import (
    CancelItems,
    DeleteItems,
    PauseLabel,
    RequeueItems,
    ResumeLabel,
    Selection,
)
from reverie.backends.views import StatusQuery, check_cursor
from reverie.base.bridge import Bridge, blocking
from reverie.errors import InvalidSelectionError
from reverie.memory.interface import Application
from reverie.message import check_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.control import Command, ControlResult
    from reverie.backends.moves import Presence
    from reverie.backends.views import ItemStatus, LabelState, Page
    from reverie.message import Key, Message
    from reverie.runtime import Runtime

__all__ = ["AsyncControl", "Control"]


MOST_AT_ONCE = 100_000
"""The most items of one command, because a larger step would keep others waiting."""
MOST_NOTED = 100
"""How many items of one command are named one by one in the audit log; of more there is only the number."""
ACTIONS = {CancelItems: "item.cancel", RequeueItems: "item.requeue", DeleteItems: "item.delete"}
"""command → what the audit log calls it."""
NARROWING = ("user_id", "task_id", "mem_cube_id", "label")


class Which(TypedDict, total=False):
    """Which items a command is about: those that match every field that is given."""

    user_id: str | None
    task_id: str | None
    mem_cube_id: str | None
    label: str | None
    limit: int
    """The most items in one call; default 1000. The answer says if there are more."""


class AsyncControl:
    """Cancels, requeues and deletes messages, pauses and resumes labels, lists labels and workers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def _do(self, command: Command) -> ControlResult:
        """Carry out a command, and tell listeners, waiting callers and the memory store about it."""
        runtime = self._runtime
        await runtime.open()
        result = await runtime.backend.queue.control(command)
        if isinstance(command, CancelItems):
            await self._cancelled(result.changed)
        elif isinstance(command, RequeueItems) and runtime.recorder.active:
            runtime.recorder.enqueued([message for message, _ in await self._find(result.changed)])
        runtime.finishes.announce(result.changed)
        await self._note(command, result)
        return result

    async def _note(self, command: Command, result: ControlResult) -> None:
        """Write to the audit log what a command has changed: its items one by one if they are few."""
        audit = self._runtime.audit
        if isinstance(command, PauseLabel | ResumeLabel):
            await audit.note(
                "label.pause" if isinstance(command, PauseLabel) else "label.resume", [command.label]
            )
            return
        action, which = ACTIONS[type(command)], command.which
        keys = [*result.changed, *result.requested]
        if len(keys) > MOST_NOTED:
            chosen = [f"{name}={value}" for name in NARROWING if (value := getattr(which, name)) is not None]
            await audit.note(action, [f"{len(keys)} items of {', '.join(chosen)}"], which.user_id)
            return
        await audit.add([audit.entry(action, key.item_id, key.user_id) for key in keys])

    async def _cancelled(self, keys: Sequence[Key]) -> None:
        """Tell listeners, and (two databases) the store, which must refuse late answers to these messages."""
        runtime = self._runtime
        must_close = not runtime.backend.capabilities.applies_effects
        if not (must_close or runtime.recorder.active):
            return
        found = await self._find(keys)
        runtime.recorder.cancelled([message for message, _ in found])
        if must_close:
            lost = [
                Application(message=message, submitted_at=submitted_at, close=True)
                for message, submitted_at in found
                if message.losses
            ]
            await runtime.store.apply(lost)

    async def _find(self, keys: Sequence[Key]) -> list[tuple[Message, int]]:
        """The messages with these keys, each with the time of its acceptance."""
        queries = [StatusQuery(user_id=k.user_id, item_id=k.item_id, with_message=True) for k in keys]
        rows = [row for query in queries for row in (await self._runtime.backend.views.read(query)).rows]
        return [(row.message, row.submitted_at) for row in rows if row.message is not None]

    def _selection(self, item_ids: str | Sequence[str] | None, which: Which) -> Selection:
        """Build the selection. An empty one is refused: a forgotten argument must not mean everything."""
        if item_ids is not None and which.get("user_id") is None:
            raise InvalidSelectionError("an item id belongs to a user: say whose, with user_id=")
        if item_ids is None and all(which.get(name) is None for name in NARROWING):
            raise InvalidSelectionError("say which: item ids of a user, a user, a task, a cube or a label")
        if not 1 <= which.get("limit", 1) <= MOST_AT_ONCE:
            raise InvalidSelectionError(f"limit={which['limit']}: must be 1 to {MOST_AT_ONCE}")
        ids = (item_ids,) if isinstance(item_ids, str) else None if item_ids is None else tuple(item_ids)
        limits = self._runtime.limits
        check_ids(limits, **{name: which.get(name) for name in NARROWING})
        for item_id in ids or ():
            check_ids(limits, item_id=item_id)
        return Selection(item_ids=ids, **which)

    async def cancel(
        self, item_ids: str | Sequence[str] | None = None, **which: Unpack[Which]
    ) -> ControlResult:
        """Cancel the selected messages that have not ended.

        A waiting message ends at once. A running one is asked to stop: an async handler is interrupted, a
        sync one sees `ctx.cancelled`. The message ends as cancelled unless it completes. `requeue` takes a
        cancellation back.
        """
        return await self._do(CancelItems(self._selection(item_ids, which)))

    async def requeue(
        self, item_ids: str | Sequence[str] | None = None, **which: Unpack[Which]
    ) -> ControlResult:
        """Let failed or cancelled messages wait again, at the end of their lanes, as if they were new."""
        return await self._do(RequeueItems(self._selection(item_ids, which)))

    async def delete(
        self, item_ids: str | Sequence[str] | None = None, **which: Unpack[Which]
    ) -> ControlResult:
        """Delete dead letters: messages that have failed for good. This cannot be taken back."""
        return await self._do(DeleteItems(self._selection(item_ids, which)))

    async def dead_letters(
        self,
        *,
        user_id: str | None = None,
        label: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """A page of the dead letters, oldest first; `after` is the `next` of the page before."""
        check_cursor("after", after)
        check_ids(self._runtime.limits, user_id=user_id, label=label)
        await self._runtime.open()
        if not 1 <= limit <= MOST_AT_ONCE:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_AT_ONCE}")
        query = StatusQuery(dead=True, user_id=user_id, label=label, limit=limit, after=after)
        return await self._runtime.own_items(query)

    async def dead_letter(self, item_id: str, *, user_id: str) -> ItemStatus | None:
        """One dead letter with its message and its error; None if there is none with this id."""
        check_ids(self._runtime.limits, user_id=user_id, item_id=item_id)
        await self._runtime.open()
        query = StatusQuery(dead=True, user_id=user_id, item_id=item_id, with_message=True)
        rows = (await self._runtime.own_items(query)).rows
        return rows[0] if rows else None

    async def pause(self, label: str, reason: str = "paused") -> None:
        """Stop claims of a label, in all workers, until it is resumed. New messages are kept."""
        check_ids(self._runtime.limits, label=label)
        await self._do(PauseLabel(label, reason))

    async def resume(self, label: str) -> None:
        """Allow claims of a label again."""
        check_ids(self._runtime.limits, label=label)
        await self._do(ResumeLabel(label))

    async def labels(self) -> list[LabelState]:
        """How much work each label has, whether a live worker handles it, whether it is paused."""
        await self._runtime.open()
        return await self._runtime.backend.views.labels()

    async def workers(self) -> list[Presence]:
        """The workers that are alive, and the labels they handle."""
        await self._runtime.open()
        return await self._runtime.backend.views.workers()


class Control:
    """Like `AsyncControl`, for code that blocks."""

    def __init__(self, inner: AsyncControl, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    cancel = blocking(AsyncControl.cancel)
    requeue = blocking(AsyncControl.requeue)
    delete = blocking(AsyncControl.delete)
    dead_letters = blocking(AsyncControl.dead_letters)
    dead_letter = blocking(AsyncControl.dead_letter)
    pause = blocking(AsyncControl.pause)
    resume = blocking(AsyncControl.resume)
    labels = blocking(AsyncControl.labels)
    workers = blocking(AsyncControl.workers)
