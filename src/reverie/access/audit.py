"""The audit log: who changed what. It has ids, and never content or keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.records import AuditEntry
from reverie.observe.tracing import current_trace_id
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.backends.interface import Records
    from reverie.base.clock import Clock

__all__ = ["Audit"]


class Audit:
    """Adds entries to the audit log in the name of the present caller, and reads the log."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    def entry(self, action: str, target: str, user_id: str | None = None) -> AuditEntry:
        """An entry about something that the present caller does."""
        return AuditEntry(
            at=self._clock.now(),
            who=current_principal.get().key,
            action=action,
            target=target,
            user_id=user_id,
            trace_id=current_trace_id.get(),
        )

    async def note(self, action: str, targets: Iterable[str], user_id: str | None = None) -> None:
        """Add an entry for each target of an action that was carried out."""
        await self.add([self.entry(action, target, user_id) for target in targets])

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries to the log."""
        if entries:
            await self._records.change([], entries)

    async def page(
        self, *, before: int | None = None, limit: int = 100, user_id: str | None = None
    ) -> list[AuditEntry]:
        """Entries, newest first; `before` is the number of the last entry of the page before."""
        return await self._records.audited(before=before, limit=limit, user_id=user_id)
