"""Views of the queue on Redis."""

from __future__ import annotations

import contextlib
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from reverie.backends.moves import Presence, Status
from reverie.backends.redis import wire
from reverie.backends.redis.keys import decode_id, encode_id
from reverie.backends.views import (
    MOST_KEPT,
    Attempt,
    ItemStatus,
    LabelState,
    LaneState,
    Page,
    QueueHealth,
)
from reverie.message import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library
    from reverie.backends.views import StatusQuery
    from reverie.message import Key, Message

__all__ = ["RedisViews", "TaskMeta"]

DEAD_PAGE = 1000
"""Dead letters that one call looks at."""


SCANNED = 500
"""Items of a user that one call reads."""


class TaskMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an item in `task_meta` that the views show."""

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
    requeues: int = 0
    conflicts: int = 0
    claimed_at: int | None = None
    worker: str | None = None

    @property
    def ended_at(self) -> int | None:
        """When the item completed, failed or was cancelled."""
        return self.completed_at or self.failed_at or self.cancelled_at


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `note_run` in `lua/ends.lua` has written it."""

    outcome: Literal["failed", "cancelled", "retry", "handed_back", "lost"]
    ended_at: int
    claimed_at: int | None = None
    worker: str | None = None
    error: str | None = None


class _Found(NamedTuple):
    user_id: str
    item_id: str
    meta: TaskMeta


_NO_COUNTS = ["0"] * 8
"""The counts of an unknown label. They also complete the shorter counts that an older Reverie wrote."""

_decode_meta = msgspec.json.Decoder(TaskMeta).decode
_decode_run = msgspec.json.Decoder(_Run).decode


class RedisViews:
    """See `reverie.backends.interface.QueueViews`."""

    def __init__(self, connections: Connections, library: Library, keys: Keys) -> None:
        self._connections = connections
        self._library = library
        self._keys = keys

    async def read(self, query: StatusQuery) -> Page:
        """See `QueueViews.read`."""
        if query.user_id is None:
            found = await self._find_dead(query)
        else:
            found = [one for one in await self._find(query, query.user_id) if _fits(one.meta, query)]
            found.sort(key=lambda one: one.meta.seq)
        shown = found[: query.limit]
        messages = await self._messages(shown) if query.with_message else [None] * len(shown)
        return Page(
            rows=[_row(one, message) for one, message in zip(shown, messages, strict=True)],
            next=str(shown[-1].meta.seq) if shown and len(found) > query.limit else None,
        )

    async def labels(self) -> list[LabelState]:
        """See `QueueViews.labels`."""
        reply = await self._look()
        counts = {label: text.split() for label, text in _pairs(reply.labels) if label}
        paused = dict(_pairs(reply.paused))
        handled = {encode_id(label) for worker in _alive(reply) for label in worker.labels}
        states = []
        for label in counts.keys() | paused.keys() | handled:
            numbers = map(int, [*counts.get(label, ()), *_NO_COUNTS])
            depth, running, completed, failed, cancelled, completed_ever, failed_ever, *_ = numbers
            states.append(
                LabelState(
                    label=decode_id(label),
                    waiting=depth - running,
                    in_progress=running,
                    completed=completed,
                    failed=failed,
                    cancelled=cancelled,
                    completed_ever=completed_ever,
                    failed_ever=failed_ever,
                    handled=label in handled,
                    paused=paused.get(label),
                )
            )
        return sorted(states, key=lambda state: state.label)

    async def workers(self) -> list[Presence]:
        """See `QueueViews.workers`."""
        return sorted(_alive(await self._look()), key=lambda worker: worker.worker)

    async def lanes(self, user_id: str) -> list[LaneState]:
        """See `QueueViews.lanes`."""
        answer = await self._call("lanes", {"user": encode_id(user_id)})
        reply = msgspec.msgpack.decode(answer, type=wire.LanesReply)
        states = []
        for name, waiting, in_progress in reply.lanes:
            cube, label = map(decode_id, name.split(":"))
            lane = Lane(user_id, cube, label)
            states.append(LaneState(lane=lane, waiting=waiting, in_progress=in_progress))
        return sorted(states, key=lambda state: state.lane)

    async def due_later(self, lane: Lane, unique_key: str) -> int | None:
        """See `QueueViews.due_later`."""
        user = encode_id(lane.user_id)
        request = {"user": user, "lane": self._keys.lane(lane), "unique": encode_id(unique_key)}
        reply = msgspec.msgpack.decode(await self._call("due_later", request), type=wire.DueReply)
        return _moment(reply.due)

    async def health(self) -> QueueHealth:
        """See `QueueViews.health`."""
        reply = msgspec.msgpack.decode(await self._call("health", {}), type=wire.HealthReply)
        return QueueHealth(
            oldest_waiting_at=_moment(reply.oldest_waiting_at),
            oldest_created_at=_moment(reply.oldest_created_at),
            oldest_in_progress_at=_moment(reply.oldest_in_progress_at),
            last_completed_at=_moment(reply.last_completed_at),
        )

    async def history(self, key: Key) -> list[Attempt]:
        """See `QueueViews.history`."""
        request = {"user": encode_id(key.user_id), "item_id": key.item_id}
        reply = msgspec.msgpack.decode(await self._call("history", request), type=wire.HistoryReply)
        found = _readable(key.user_id, [key.item_id.encode()], [reply.item.encode() or None])
        if not found:
            return []
        attempts = [_attempt(_decode_run(text)) for text in reply.runs]
        return [*attempts, *_completion(found[0].meta)][-MOST_KEPT:]

    async def _look(self) -> wire.LabelsReply:
        return msgspec.msgpack.decode(await self._call("labels", {}), type=wire.LabelsReply)

    async def _find(self, query: StatusQuery, user_id: str) -> list[_Found]:
        key = self._keys.task_meta(user_id)
        if query.item_id is None and query.task_id is None:
            return await self._find_all(query, user_id, key)
        if query.item_id is not None:
            names = [query.item_id.encode()]
        else:
            members = self._keys.task_items(user_id, query.task_id or "")
            names = await self._connections.call("SMEMBERS", members)
        if not names:
            return []
        texts: list[bytes | None] = await self._connections.call("HMGET", key, *names)
        return _readable(user_id, names, texts)

    async def _find_all(self, query: StatusQuery, user_id: str, key: str) -> list[_Found]:
        """The items of a user: all of them if they fit on the page, else the first of those that fit.

        The items of a large user are read in small portions, and only one page of them is held at a time.
        """
        if await self._connections.call("HLEN", key) <= query.limit:
            flat: list[bytes] = await self._connections.call("HGETALL", key)
            return _readable(user_id, flat[::2], flat[1::2])
        found: dict[str, _Found] = {}
        cursor = b"0"
        while True:
            cursor, flat = await self._connections.call("HSCAN", key, cursor, "COUNT", str(SCANNED))
            read = _readable(user_id, flat[::2], flat[1::2])
            found.update((one.item_id, one) for one in read if _fits(one.meta, query))
            if len(found) > 2 * query.limit + SCANNED or cursor == b"0":
                first = nsmallest(query.limit + 1, found.values(), key=lambda one: one.meta.seq)
                found = {one.item_id: one for one in first}
            if cursor == b"0":
                return list(found.values())

    async def _find_dead(self, query: StatusQuery) -> list[_Found]:
        """Dead letters of all users, in order: more than a page if there are that many."""
        found: list[_Found] = []
        after = int(query.after or 0)
        while len(found) <= query.limit:
            answer = await self._call("dead", {"after": after, "limit": DEAD_PAGE})
            reply = msgspec.msgpack.decode(answer, type=wire.DeadReply)
            for user, item_id, text in reply.rows:
                meta = _decode_meta(text)
                after = meta.seq
                if _fits(meta, query) and query.item_id in {None, item_id}:
                    found.append(_Found(decode_id(user), item_id, meta))
            if reply.looked_at < DEAD_PAGE or not reply.rows:
                break
        return found

    async def _messages(self, found: Sequence[_Found]) -> list[Message | None]:
        """The messages of items, if the queue still has them: it does not keep those of completed work."""
        request = {"items": [(encode_id(one.user_id), one.item_id) for one in found]}
        reply = msgspec.msgpack.decode(await self._call("bodies", request), type=wire.BodiesReply)
        return [
            _message(meta, body) if body else None
            for (_, _, meta), body in zip(found, reply.bodies, strict=True)
        ]

    async def _call(self, function: str, request: dict[str, Any]) -> bytes:
        answer: bytes = await self._library.call(function, msgspec.msgpack.encode(request))
        return answer


def _message(meta: TaskMeta, body: str) -> Message:
    """Build the message of an item from its body and what has happened to it."""
    row = wire.MessageRow(
        body,
        "",
        meta.submitted_at,
        attempts=meta.attempts,
        losses=meta.losses,
        requeues=meta.requeues,
        conflicts=meta.conflicts,
    )
    return wire.read_message(row)


def _pairs(flat: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _moment(number: int) -> int | None:
    return number if number >= 0 else None


def _attempt(run: _Run) -> Attempt:
    return Attempt(
        outcome=run.outcome,
        ended_at=run.ended_at,
        started_at=run.claimed_at,
        worker=None if run.worker is None else decode_id(run.worker),
        error=run.error,
    )


def _completion(meta: TaskMeta) -> list[Attempt]:
    """The run that completed an item, which only the item itself remembers."""
    if meta.completed_at is None:
        return []
    worker = None if meta.worker is None else decode_id(meta.worker)
    return [
        Attempt(outcome="completed", ended_at=meta.completed_at, started_at=meta.claimed_at, worker=worker)
    ]


def _alive(reply: wire.LabelsReply) -> list[Presence]:
    workers = []
    for worker, text in _pairs(reply.workers):
        alive_until, lives_ms, *labels = text.split()
        if int(alive_until) > reply.now:
            handled = tuple(decode_id(label) for label in labels)
            workers.append(Presence(worker=worker, labels=handled, lives_ms=int(lives_ms)))
    return workers


def _readable(user_id: str, names: Sequence[bytes], texts: Sequence[bytes | None]) -> list[_Found]:
    """Read the items that are ours: another program may use the same hash, and items may go in between."""
    found = []
    for name, text in zip(names, texts, strict=True):
        with contextlib.suppress(msgspec.ValidationError):
            if text is not None:
                found.append(_Found(user_id, name.decode(), _decode_meta(text)))
    return found


def _fits(meta: TaskMeta, query: StatusQuery) -> bool:
    return (
        query.task_id in {None, meta.task_id}
        and query.label in {None, meta.task_type}
        and (meta.status is Status.FAILED or not query.dead)
        and meta.seq > int(query.after or 0)
    )


def _row(found: _Found, message: Message | None) -> ItemStatus:
    meta = found.meta
    return ItemStatus(
        item_id=found.item_id,
        user_id=found.user_id,
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
        conflicts=meta.conflicts,
        message=message,
    )
