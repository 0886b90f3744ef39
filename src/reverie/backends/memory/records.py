"""Records and the audit log in this process's memory."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.records import MOST_AUDITED, MOST_RECORDS, AuditEntry, Record, TooManyRecordsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.records import Dropped

__all__ = ["MemoryRecords"]


class MemoryRecords:
    """See `reverie.backends.interface.Records`."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Record]] = {}
        self._log: deque[AuditEntry] = deque(maxlen=MOST_AUDITED)
        self._numbers = 0

    async def get(self, kind: str, record_id: str) -> Record | None:
        """See `Records.get`."""
        return self._kinds.get(kind, {}).get(record_id)

    async def page(self, kind: str, *, after: str = "", limit: int = 1000) -> list[Record]:
        """See `Records.page`."""
        found = sorted(self._kinds.get(kind, {}).items())
        return [record for name, record in found if name > after][:limit]

    async def change(self, changes: Sequence[Record | Dropped], entries: Sequence[AuditEntry] = ()) -> None:
        """See `Records.change`."""
        kinds = {kind: dict(records) for kind, records in self._kinds.items()}
        for change in changes:
            records = kinds.setdefault(change.kind, {})
            if isinstance(change, Record):
                records[change.id] = change
                if len(records) > MOST_RECORDS:
                    raise TooManyRecordsError(change.kind)
            else:
                records.pop(change.id, None)
        self._kinds = kinds
        for entry in entries:
            self._numbers += 1
            self._log.append(msgspec.structs.replace(entry, number=self._numbers))

    async def audited(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """See `Records.audited`."""
        found = (
            entry
            for entry in reversed(self._log)
            if (before is None or entry.number < before) and user_id in {None, entry.user_id}
        )
        return list(islice(found, limit))
