"""`scheduler.buffers`: put content into buffers, look at it and let it be read; async and blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec

from reverie.backends.moves import Status
from reverie.base.bridge import Bridge, blocking
from reverie.base.clock import from_epoch_ms
from reverie.effect import Buffer, Remember, check_effect
from reverie.errors import InvalidMessageError, InvalidSelectionError, MemoryDeletedError
from reverie.memory.buffers import (
    READING,
    BlobType,
    BufferKey,
    BufferRow,
    RowStatus,
    buffers_of,
    read_message,
)
from reverie.message import Message, check_ids, check_message, new_item_id
from reverie.models.interface import ModelMissingError
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Submitted
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.buffers import KeepsBuffers

__all__ = ["AsyncBuffers", "Buffers", "Processed"]

MOST_ROWS = 10_000
"""The most rows of one answer."""


class Processed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `process_buffer`."""

    item_id: str
    """The id of the message that read the rows."""
    status: Status
    """How the message has ended."""
    error: str | None = None
    memory_ids: tuple[str, ...] = ()
    """The memories that were derived from the blobs."""


class AsyncBuffers:
    """Puts content into buffers, looks at it and lets it be read, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def insert(
        self,
        user_id: str,
        content: str,
        mem_cube_id: str = "",
        blob_type: str = "chat",
        blob_id: str | None = None,
    ) -> str:
        """Keep a text word for word as a memory, and buffer it; the answer is the id of both.

        Both are kept when this returns. The same `blob_id` and text again change nothing. The buffer is read
        when it is full, or when its oldest row is old.
        """
        runtime = self._scheduler.runtime
        key = self._key(user_id, mem_cube_id, blob_type)
        message = Message(user_id=user_id, mem_cube_id=key.project_id, label=READING, content=content)
        check_message(message, runtime.limits)
        if not content.strip():
            raise InvalidMessageError("content", content, "has nothing to remember")
        blob_id = blob_id or new_item_id()
        (tokens,) = await runtime.models.count_tokens([content])
        effects = (
            Remember(memory_id=blob_id, text=content, kind="turn"),
            Buffer(
                buffer_id=blob_id,
                blob_id=blob_id,
                content=content,
                tokens=tokens,
                blob_type=blob_type,
            ),
        )
        for effect in effects:
            check_effect(effect, runtime.limits)
        store = await self._store()
        if await runtime.store.is_deleted(user_id, blob_id):
            raise MemoryDeletedError(blob_id)
        try:
            await runtime.store.change(key.tenant, effects)
        except ValueError as error:
            raise InvalidMessageError("blob_id", blob_id, str(error)) from error
        if runtime.reads_buffers:
            await self._ask_for_reading(store, key)
        return blob_id

    async def _ask_for_reading(self, store: KeepsBuffers, key: BufferKey) -> None:
        """Submit the message that reads a buffer: at once if the buffer is full, else when it is old."""
        settings = self._scheduler.runtime.settings.buffer
        (state,) = await store.buffer_states([key])
        if state.oldest is None:
            return
        due = None
        if state.tokens < settings.max_tokens:
            due = from_epoch_ms(state.oldest + round(settings.max_age_s * 1000))
        await self._scheduler.submit_messages([read_message(key, due=due)])

    async def flush(self, user_id: str, mem_cube_id: str = "", blob_type: str = "chat") -> Submitted:
        """Submit the message that reads a buffer now, however full it is; the answer is its receipt."""
        key = self._key(user_id, mem_cube_id, blob_type)
        self._check_model()
        return (await self._scheduler.submit_messages([read_message(key)]))[0]

    async def detect_buffer_full_or_not(
        self, user_id: str, mem_cube_id: str = "", blob_type: str | None = None
    ) -> dict[str, Any]:
        """Whether a buffer of a cube is full, and the ids of the blobs that wait in full buffers.

        A buffer is full by its tokens, or by the age of its oldest row. Without a `blob_type`, the buffers of
        all types are looked at.
        """
        types = list(BlobType) if blob_type is None else [blob_type]
        keys = [self._key(user_id, mem_cube_id, each) for each in types]
        store = await self._store()
        settings = self._scheduler.runtime.settings.buffer
        old = self._scheduler.runtime.clock.now() - round(settings.max_age_s * 1000)
        full = [
            state.key
            for state in await store.buffer_states(keys)
            if state.tokens >= settings.max_tokens or (state.oldest is not None and state.oldest <= old)
        ]
        waiting = [row.blob_id for key in full for row in await self._readable(key, "free", MOST_ROWS)]
        return {"is_full": bool(full), "buffer_full_ids": waiting}

    async def process_buffer(
        self,
        user_id: str,
        blob_type: str,
        blob_ids: Sequence[str],
        mem_cube_id: str = "",
        *,
        timeout: float = 300,  # noqa: ASYNC109
    ) -> Processed:
        """Let these blobs of a buffer be read, and wait for the end; else raise `WaitTimeoutError`."""
        key = self._key(user_id, mem_cube_id, blob_type)
        if not blob_ids:
            raise InvalidSelectionError("blob_ids: name at least one blob; `flush` reads a whole buffer")
        for blob_id in blob_ids:
            check_ids(self._scheduler.runtime.limits, blob_id=blob_id)
        self._check_model()
        await self._store()
        receipt = await self._scheduler.submit(
            READING,
            user_id=user_id,
            mem_cube_id=key.project_id,
            content={"blob_type": str(key.blob_type), "blob_ids": list(blob_ids)},
        )
        item = await self._scheduler.wait(receipt.item_id, user_id=user_id, timeout=timeout)
        store = self._scheduler.runtime.store
        links = [link for blob_id in blob_ids for link in await store.links(user_id, blob_id)]
        derived = {
            link.item.id: None for link in links if link.relation == "derived_from" and not link.outgoing
        }
        return Processed(
            item_id=item.item_id, status=item.status, error=item.error, memory_ids=tuple(derived)
        )

    async def rows(
        self,
        user_id: str,
        mem_cube_id: str = "",
        blob_type: str = "chat",
        *,
        status: RowStatus | None = None,
        limit: int = 100,
    ) -> list[BufferRow]:
        """The rows of a buffer, oldest first; with `status`, only rows in this state."""
        if not 1 <= limit <= MOST_ROWS:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_ROWS}")
        if status is not None and status not in get_args(RowStatus):
            raise InvalidSelectionError(f"status={status!r}: must be one of {', '.join(get_args(RowStatus))}")
        return await self._readable(self._key(user_id, mem_cube_id, blob_type), status, limit)

    async def retry_failed(self, user_id: str, mem_cube_id: str = "", blob_type: str = "chat") -> int:
        """Let rows that were given up be read again with the next rows; the answer is how many."""
        key = self._key(user_id, mem_cube_id, blob_type)
        store = await self._store()
        count = await store.retry_failed_rows(key)
        if count and self._scheduler.runtime.reads_buffers:
            await self._ask_for_reading(store, key)
        return count

    async def _readable(self, key: BufferKey, status: str | None, limit: int) -> list[BufferRow]:
        """The first rows of a buffer whose memories the caller may read."""
        store, reads = await self._store(), self._scheduler.runtime.reads
        if not reads.is_governed:
            return await store.buffer_rows(key, status, limit)
        rows = await store.buffer_rows(key, status, MOST_ROWS)
        seen = [row for row in rows if await reads.get(key.user_id, row.blob_id) is not None]
        return seen[:limit]

    async def _store(self) -> KeepsBuffers:
        await self._scheduler.open()
        return buffers_of(self._scheduler.runtime.store)

    def _key(self, user_id: str, mem_cube_id: str, blob_type: str) -> BufferKey:
        cube = mem_cube_id or self._scheduler.memory.default_cube or user_id
        check_ids(self._scheduler.runtime.limits, user_id=user_id, mem_cube_id=cube)
        current_principal.get().check_touch(user_id, (cube,))
        if blob_type not in list(BlobType):
            raise InvalidMessageError("blob_type", blob_type, f"must be one of {', '.join(BlobType)}")
        return BufferKey(user_id, cube, blob_type)

    def _check_model(self) -> None:
        """Refuse to ask for a run that could do nothing."""
        if not self._scheduler.runtime.models.has_language_model:
            raise ModelMissingError("language model", "llm.preset")


class Buffers:
    """Like `AsyncBuffers`, for code that blocks."""

    def __init__(self, inner: AsyncBuffers, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    insert = blocking(AsyncBuffers.insert)
    flush = blocking(AsyncBuffers.flush)
    detect_buffer_full_or_not = blocking(AsyncBuffers.detect_buffer_full_or_not)
    process_buffer = blocking(AsyncBuffers.process_buffer)
    rows = blocking(AsyncBuffers.rows)
    retry_failed = blocking(AsyncBuffers.retry_failed)
