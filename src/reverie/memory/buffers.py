"""The buffer zone: what waits to become memories, by user, cube and kind of content.

A buffer collects turns until it is full or its oldest turn is old; then one run of `mem_read` takes its rows
under a lease, and marks them done in the transaction that writes the memories made from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec
from pydantic import Field

from reverie.configuration.section import Section
from reverie.errors import ReverieError
from reverie.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.memory.interface import Tenant

__all__ = [
    "READING",
    "BlobType",
    "BufferClaim",
    "BufferKey",
    "BufferRow",
    "BufferSettings",
    "BufferState",
    "KeepsBuffers",
    "NoBuffersError",
    "RowStatus",
    "buffers_of",
    "read_message",
    "unique_key_of",
]


READING = "mem_read"
"""The label of the messages that read buffers."""

RowStatus = Literal["idle", "processing", "done", "failed"]
"""The states of a row in a buffer."""


class BlobType(StrEnum):
    """The kinds of content that are buffered."""

    chat = "chat"


class BufferSettings(Section):
    """The buffer zone. It is used only if there is a language model."""

    max_tokens: int = Field(1024, ge=1, description="tokens of a buffer that is full and is read at once")
    max_age_s: float = Field(3600, gt=0, description="seconds after which the oldest turn is read anyway")
    lease_s: float = Field(
        600,
        gt=0,
        description="seconds that one run holds the rows of a buffer; then another one may take them",
    )
    max_failures: int = Field(
        3, ge=1, description="runs that may fail on a row before the row is given up as failed"
    )
    retention_s: float = Field(
        7 * 24 * 3600,
        ge=0,
        description="seconds that rows which became memories are kept, without their text",
    )
    sweep_s: float = Field(60, gt=0, description="seconds between two looks for buffers whose run was lost")
    processor: Literal["engine", "cluster"] = Field(
        "engine", description="who reads full buffers: the workers here, or the cluster"
    )


class BufferKey(msgspec.Struct, frozen=True, order=True):
    """One buffer."""

    user_id: str
    project_id: str
    """The cube."""
    blob_type: str = BlobType.chat

    @property
    def tenant(self) -> Tenant:
        """The tenant whose buffer it is."""
        return self.user_id, self.project_id


class BufferRow(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, or another piece of content, in a buffer."""

    buffer_id: str
    """The id of the row, unique for a user."""
    blob_id: str
    """The id of the memory that keeps the content word for word."""
    content: str
    buffer_size: int
    """How many tokens the content has."""
    status: RowStatus = "idle"
    failures: int = 0
    """How many runs have failed on the row."""
    metadata: dict[str, Any] = {}
    created_at: int = 0
    updated_at: int = 0


class BufferState(msgspec.Struct, frozen=True, kw_only=True):
    """How full a buffer is: its idle rows, and rows whose lease is over."""

    key: BufferKey
    rows: int = 0
    tokens: int = 0
    oldest: int | None = None
    """When the oldest of these rows was buffered, in epoch milliseconds."""


class BufferClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that one run has taken."""

    key: BufferKey
    token: str
    """The lease token: the rows are marked done only if they still carry it."""
    rows: tuple[BufferRow, ...] = ()


def unique_key_of(blob_type: str) -> str:
    """The unique key of the messages that read the buffers of a type."""
    return f"buffer:{blob_type}"


def read_message(key: BufferKey, **fields: Any) -> Message:
    """The message that asks for a buffer to be read; one of them waits for each buffer.

    `fields` are those of `Message`, such as `due`.
    """
    return Message(
        user_id=key.user_id,
        mem_cube_id=key.project_id,
        label=READING,
        content=msgspec.json.encode({"blob_type": key.blob_type}).decode(),
        unique_key=unique_key_of(key.blob_type),
        unique_policy="sooner",
        **fields,
    )


@runtime_checkable
class KeepsBuffers(Protocol):
    """A store with a buffer zone. Rows are put and marked done by the effects `Buffer` and `BufferDone`."""

    async def buffer_states(self, keys: Sequence[BufferKey]) -> list[BufferState]:
        """How full buffers are, in the order of the keys."""
        ...

    async def claim_buffer(
        self,
        key: BufferKey,
        holder: str,
        *,
        lease_ms: int,
        max_tokens: int,
        blob_ids: Sequence[str] = (),
        most: int = 0,
    ) -> BufferClaim:
        """Take the oldest rows of a buffer, up to `max_tokens` tokens and at least one, for `holder`.

        A holder that has rows takes these over, and no others: a message that is delivered again reads what
        it has read before. Else rows are taken that are idle or whose lease is over. While another holder has
        rows of the buffer under a lease, nothing is taken. With `blob_ids`, only rows with these. The answer
        has a new token.

        A row that is taken from another holder counts a failure, because the run of that holder has never
        ended; with `most` failures it becomes `failed` and is not taken.
        """
        ...

    async def release_buffer(self, claim: BufferClaim, *, failed: str | None = None, most: int = 0) -> None:
        """Give rows back that still carry the token of the claim.

        With `failed`, a failure with this reason is counted on each row; a row with `most` failures becomes
        `failed` and is kept with the reason, for people to see.
        """
        ...

    async def full_buffers(self, *, tokens: int, before: int, limit: int) -> list[BufferState]:
        """Buffers that have at least `tokens` tokens, or a row from before the moment `before`."""
        ...

    async def failed_buffers(self, limit: int) -> list[BufferState]:
        """Buffers with rows that were given up; the states count these rows alone."""
        ...

    async def buffer_rows(
        self, key: BufferKey, status: str | None = None, limit: int = 100
    ) -> list[BufferRow]:
        """The rows of a buffer, oldest first; all, those in one state, or those that are `free`.

        A run may take free rows: idle ones, and those whose lease is over.
        """
        ...

    async def retry_failed_rows(self, key: BufferKey) -> int:
        """Make rows that were given up idle again; the answer is how many."""
        ...

    async def prune_buffers(self, before: int, limit: int) -> int:
        """Remove rows that were done before a moment; the answer is how many."""
        ...


class NoBuffersError(ReverieError):
    """The memory store keeps no buffers."""

    def __init__(self, store: object) -> None:
        """Name the kind of the store, and what it lacks."""
        self.store = type(store).__name__
        super().__init__(f"the memory store {self.store} keeps no buffers: it lacks methods of KeepsBuffers")


def buffers_of(store: object) -> KeepsBuffers:
    """The store as one that keeps buffers; `NoBuffersError` if it does not."""
    if not isinstance(store, KeepsBuffers):
        raise NoBuffersError(store)
    return store
