"""The buffer zone on SQLite; `memory/buffers.py` says what each step means.

Rows are put and marked done by effects, in the transaction that settles their message.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.failpoints import failpoint
from reverie.errors import BufferTakenError
from reverie.memory.buffers import BufferClaim, BufferKey, BufferRow, BufferState
from reverie.storage.many_rows import write_rows
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.base.clock import Clock
    from reverie.effect import Buffer, BufferDone
    from reverie.memory.sqlite.effects import EffectStep
    from reverie.message import Message
    from reverie.storage.sqlite import Database

__all__ = ["Buffers", "collect_row", "finish_rows", "put_rows"]

SQL = load_queries(__package__ or "", "buffers.sql")
LOST = "each run that took it was lost: its worker died, or its time was over"
"""The reason of a row that is given up because its runs never ended."""


def collect_row(step: EffectStep, effect: Buffer) -> None:
    """Let the row of an effect wait until the new rows of its group are written."""
    step.group.rows.append((step.message, effect))


def put_rows(connection: apsw.Connection, rows: Sequence[tuple[Message, Buffer]], now: int) -> None:
    """Write rows at the ends of their buffers, with few statements."""
    last: int = connection.execute(SQL["last_place"]).get
    values = [
        (message.user_id, effect.buffer_id, message.mem_cube_id, str(effect.blob_type), effect.blob_id, place,
         effect.tokens, now, _to_json(effect.metadata) if effect.metadata else "{}", effect.content)
        for place, (message, effect) in enumerate(rows, last + 1)
    ]  # fmt: skip
    write_rows(connection, SQL, "insert_rows", values)


def finish_rows(step: EffectStep, effect: BufferDone) -> None:
    """Mark the rows of an effect done; `BufferTakenError` if a row does not carry the token."""
    bindings = {
        "blob_type": effect.blob_type,
        "buffer_ids": _to_json(effect.buffer_ids),
        "token": effect.token,
    }
    finished = [buffer_id for (buffer_id,) in step.run(SQL["finish_rows"], **bindings)]
    if len(finished) < len(effect.buffer_ids):  # rows that were deleted meanwhile need not be held
        taken = step.run(SQL["not_held"], **bindings, finished=_to_json(finished))
        if taken:
            raise BufferTakenError(taken[0][0])


class Buffers:
    """The buffers in one file. See `reverie.memory.buffers.KeepsBuffers`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def states(self, keys: Sequence[BufferKey]) -> list[BufferState]:
        """See `KeepsBuffers.buffer_states`."""
        names = [(key.user_id, key.project_id, str(key.blob_type)) for key in keys]
        bindings = {"buffers": _to_json(names), "now": self._clock.now()}
        found = {row[0]: row[1:] for row in await self._read("states", bindings)}
        states = [found.get(place, (0, 0, None)) for place in range(len(keys))]
        return [
            BufferState(key=key, rows=rows, tokens=tokens, oldest=oldest)
            for key, (rows, tokens, oldest) in zip(keys, states, strict=True)
        ]

    async def claim(
        self,
        key: BufferKey,
        holder: str,
        *,
        lease_ms: int,
        max_tokens: int,
        blob_ids: Sequence[str] = (),
        most: int = 0,
    ) -> BufferClaim:
        """See `KeepsBuffers.claim_buffer`."""
        token = secrets.token_hex(16)

        def job(connection: apsw.Connection) -> tuple[BufferRow, ...]:
            now = self._clock.now()
            bindings = _names(key) | {"holder": holder, "now": now}
            is_held, has_lost, has_own = connection.execute(SQL["taken"], bindings).get
            if is_held:
                return ()
            if has_lost:
                connection.execute(SQL["give_up_lost_rows"], bindings | {"most": most, "reason": LOST})
            only = {"blob_ids": _to_json(list(blob_ids)) if blob_ids else None}
            chosen: list[str] = []
            total = 0
            for own in (True, False) if has_own else (False,):
                for buffer_id, size in connection.execute(SQL["free_rows"], bindings | only | {"own": own}):
                    if chosen and total + size > max_tokens:
                        break
                    chosen.append(buffer_id)
                    total += size
                if chosen:
                    break
            if has_own:
                connection.execute(SQL["leave_own_rows"], bindings)
            lease = bindings | {"token": token, "lease_until": now + lease_ms}
            lease["buffer_ids"] = _to_json(chosen)
            taken: list[tuple[Any, ...]] = connection.execute(SQL["take_rows"], lease).fetchall()
            failpoint("inside_claim_buffer")
            by_id = {row[0]: row for row in taken}  # in no order
            return tuple(_row_of(by_id[buffer_id]) for buffer_id in chosen if buffer_id in by_id)

        rows = await self._database.write(job, patient=True)
        return BufferClaim(key=key, token=token, rows=rows)

    async def release(self, claim: BufferClaim, *, failed: str | None = None, most: int = 0) -> None:
        """See `KeepsBuffers.release_buffer`."""
        bindings = _names(claim.key) | {"token": claim.token, "reason": failed, "most": most}
        await self._write("release_rows", bindings)

    async def full(self, *, tokens: int, before: int, limit: int) -> list[BufferState]:
        """See `KeepsBuffers.full_buffers`. The buffer with the oldest row comes first."""
        bindings = {"tokens": tokens, "before": before, "limit": limit, "now": self._clock.now()}
        return [
            BufferState(key=BufferKey(user_id, cube, blob_type), rows=rows, tokens=size, oldest=oldest)
            for user_id, cube, blob_type, rows, size, oldest in await self._read("full_buffers", bindings)
        ]

    async def failed(self, limit: int) -> list[BufferState]:
        """See `KeepsBuffers.failed_buffers`."""
        return [
            BufferState(key=BufferKey(user_id, cube, blob_type), rows=rows, tokens=size, oldest=oldest)
            for user_id, cube, blob_type, rows, size, oldest in await self._read(
                "failed_buffers", {"limit": limit}
            )
        ]

    async def rows(self, key: BufferKey, status: str | None = None, limit: int = 100) -> list[BufferRow]:
        """See `KeepsBuffers.buffer_rows`."""
        statement = "rows" if status in {None, "done"} else "open_rows"
        bindings = {"status": status, "limit": limit, "now": self._clock.now()}
        found = await self._read(statement, _names(key) | bindings)
        return [_row_of(row) for row in found]

    async def retry_failed(self, key: BufferKey) -> int:
        """See `KeepsBuffers.retry_failed_rows`."""
        return len(await self._write("retry_failed", _names(key)))

    async def prune(self, before: int, limit: int) -> int:
        """See `KeepsBuffers.prune_buffers`."""
        return len(await self._write("prune", {"before": before, "limit": limit}, durable=False))

    async def _read(self, statement: str, bindings: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall()
        )

    async def _write(
        self, statement: str, bindings: dict[str, Any], *, durable: bool = True
    ) -> list[tuple[Any, ...]]:
        return await self._database.write(
            lambda connection: connection.execute(
                SQL[statement], bindings | {"now": self._clock.now()}
            ).fetchall(),
            durable=durable,
        )


def _names(key: BufferKey) -> dict[str, Any]:
    """The bindings that name a buffer."""
    return {"user_id": key.user_id, "project_id": key.project_id, "blob_type": str(key.blob_type)}


def _row_of(row: tuple[Any, ...]) -> BufferRow:
    buffer_id, blob_id, content, size, status, failures, metadata, created_at, updated_at = row
    return BufferRow(
        buffer_id=buffer_id,
        blob_id=blob_id,
        content=content,
        buffer_size=size,
        status=status,
        failures=failures,
        metadata=_decode_metadata(metadata),
        created_at=created_at,
        updated_at=updated_at,
    )


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode
