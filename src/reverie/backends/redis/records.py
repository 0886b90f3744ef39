"""Records and the audit log on Redis: a hash for each kind, and a stream whose ids are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.records import MOST_AUDITED, MOST_RECORDS, AuditEntry, Record, TooManyRecordsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.records import Dropped
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys

__all__ = ["RedisRecords"]

AT_ONCE = 1000
"""Entries of the log that are read in one step, while those of one user are looked for."""

_decode_entry = msgspec.json.Decoder(AuditEntry).decode


class RedisRecords:
    """See `reverie.backends.interface.Records`."""

    def __init__(self, connections: Connections, keys: Keys) -> None:
        self._connections = connections
        self._keys = keys

    async def get(self, kind: str, record_id: str) -> Record | None:
        """See `Records.get`."""
        value = await self._connections.call("HGET", self._keys.records(kind), record_id)
        return None if value is None else Record(kind=kind, id=record_id, value=msgspec.json.decode(value))

    async def page(self, kind: str, *, after: str = "", limit: int = 1000) -> list[Record]:
        """See `Records.page`."""
        found = await self._connections.call("HGETALL", self._keys.records(kind))
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        named = sorted((_text(name), value) for name, value in pairs)
        return [
            Record(kind=kind, id=name, value=msgspec.json.decode(value))
            for name, value in named
            if name > after
        ][:limit]

    async def change(self, changes: Sequence[Record | Dropped], entries: Sequence[AuditEntry] = ()) -> None:
        """See `Records.change`."""
        commands: list[tuple[str | bytes, ...]] = []
        for change in changes:
            key = self._keys.records(change.kind)
            if isinstance(change, Record):
                known = await self._connections.call("HGET", key, change.id) is not None
                if not known and await self._connections.call("HLEN", key) >= MOST_RECORDS:
                    raise TooManyRecordsError(change.kind)
                commands.append(("HSET", key, change.id, msgspec.json.encode(change.value)))
            else:
                commands.append(("HDEL", key, change.id))
        kept = str(MOST_AUDITED)
        commands += [
            ("XADD", self._keys.audit, "MAXLEN", "~", kept, "*", "entry", msgspec.json.encode(entry))
            for entry in entries
        ]
        answers = await self._connections.try_all(("MULTI",), *commands, ("EXEC",))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def audited(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """See `Records.audited`."""
        found: list[AuditEntry] = []
        last = "+" if before is None else f"({_id_of(before)}"
        while len(found) < limit:
            rows = await self._connections.call(
                "XREVRANGE", self._keys.audit, last, "-", "COUNT", str(max(limit, AT_ONCE))
            )
            for name, fields in rows:
                entry = msgspec.structs.replace(_entry(fields), number=_number_of(_text(name)))
                if user_id in {None, entry.user_id}:
                    found.append(entry)
            if len(rows) < max(limit, AT_ONCE):
                break
            last = f"({_text(rows[-1][0])}"
        return found[:limit]


PLACES = 10_000
"""Entries that one millisecond may have."""


def _number_of(entry_id: str) -> int:
    """The number of an entry, from its id `{milliseconds}-{place}`."""
    milliseconds, _, place = entry_id.partition("-")
    return int(milliseconds) * PLACES + int(place)


def _id_of(number: int) -> str:
    return f"{number // PLACES}-{number % PLACES}"


def _entry(fields: Any) -> AuditEntry:
    value = next(iter(fields.values())) if isinstance(fields, dict) else fields[1]
    return _decode_entry(value)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
