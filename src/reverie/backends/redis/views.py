"""Looking at the queue on Redis."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import ItemStatus, Page, Status
from reverie.backends.redis import wire
from reverie.backends.redis.keys import encode_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import StatusQuery
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library
    from reverie.message import Message

__all__ = ["RedisViews", "TaskMeta"]


class TaskMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in `task_meta` for each item, as far as a view shows it."""

    status: Status
    task_type: str
    mem_cube_id: str
    submitted_at: int
    seq: int
    task_id: str | None = None
    started_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    cancelled_at: int | None = None
    error: str | None = None
    attempts: int = 0
    losses: int = 0

    @property
    def ended_at(self) -> int | None:
        """When it ended, however it did."""
        return self.completed_at or self.failed_at or self.cancelled_at


_decode_meta = msgspec.json.Decoder(TaskMeta).decode


class RedisViews:
    """See `reverie.backends.interface.QueueViews`."""

    def __init__(self, connections: Connections, library: Library, keys: Keys) -> None:
        self._connections = connections
        self._library = library
        self._keys = keys

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        found = await self._find(query)
        found.sort(key=lambda pair: (pair[1].submitted_at, pair[1].seq))
        shown = found[: query.limit]
        messages = await self._messages(query.user_id, shown) if query.with_message else {}
        rows = [_row(query.user_id, item_id, meta, messages.get(item_id)) for item_id, meta in shown]
        return Page(rows=rows, truncated=len(found) > query.limit)

    async def _find(self, query: StatusQuery) -> list[tuple[str, TaskMeta]]:
        key = self._keys.task_meta(query.user_id)
        if query.item_id is None and query.task_id is None:
            flat: list[bytes] = await self._connections.call("HGETALL", key)
            return _readable(flat[::2], flat[1::2])
        if query.item_id is not None:
            names = [query.item_id.encode()]
        else:
            members = self._keys.task_items(query.user_id, query.task_id or "")
            names = await self._connections.call("SMEMBERS", members)
        if not names:
            return []
        texts: list[bytes | None] = await self._connections.call("HMGET", key, *names)
        found = _readable(names, texts)
        return [pair for pair in found if query.task_id in {None, pair[1].task_id}]

    async def _messages(self, user_id: str, found: list[tuple[str, TaskMeta]]) -> dict[str, Message]:
        """The messages themselves, as far as the queue still has them; those of ended work it has not."""
        request = {"user": encode_id(user_id), "items": [item_id for item_id, _ in found]}
        answer = await self._library.call("bodies", msgspec.msgpack.encode(request))
        bodies = msgspec.msgpack.decode(answer, type=wire.BodiesReply).bodies
        return {
            item_id: msgspec.structs.replace(
                wire.read_body(body, meta.submitted_at), attempts=meta.attempts, losses=meta.losses
            )
            for (item_id, meta), body in zip(found, bodies, strict=True)
            if body
        }


def _readable(names: list[bytes], texts: Sequence[bytes | None]) -> list[tuple[str, TaskMeta]]:
    """Read what is ours: another program may use the same hash, and items may go in between."""
    found = []
    for name, text in zip(names, texts, strict=True):
        with contextlib.suppress(msgspec.ValidationError):
            if text is not None:
                found.append((name.decode(), _decode_meta(text)))
    return found


def _row(user_id: str, item_id: str, meta: TaskMeta, message: Message | None) -> ItemStatus:
    return ItemStatus(
        item_id=item_id,
        user_id=user_id,
        mem_cube_id=meta.mem_cube_id,
        task_type=meta.task_type,
        status=meta.status,
        submitted_at=meta.submitted_at,
        task_id=meta.task_id,
        started_at=meta.started_at,
        ended_at=meta.ended_at,
        error=meta.error,
        attempts=meta.attempts,
        losses=meta.losses,
        message=message,
    )
