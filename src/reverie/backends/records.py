"""Records: the few things that people set up, such as API keys and webhooks, and the audit log of changes.

A record is a small JSON object with a kind and an id. Every process of a queue reads the same records. A
change of records and its entries in the audit log are one step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reverie.errors import ReverieError

__all__ = ["MOST_AUDITED", "MOST_RECORDS", "AuditEntry", "Dropped", "Record", "TooManyRecordsError"]

MOST_RECORDS = 10_000
"""The most records of one kind; a further one is refused."""
MOST_AUDITED = 100_000
"""How many entries the audit log keeps; the oldest are removed."""


class TooManyRecordsError(ReverieError):
    """There are too many records of this kind."""

    def __init__(self, kind: str) -> None:
        """Name the kind and the limit."""
        self.kind = kind
        super().__init__(f"there are {MOST_RECORDS} records of the kind {kind} already: remove some first")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people set up."""

    kind: str
    id: str
    value: dict[str, Any]


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The removal of a record; nothing happens if there is none."""

    kind: str
    id: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what. The log never has content, keys or passwords."""

    at: int
    """When, in epoch milliseconds."""
    who: str
    """The id of the API key, or `local`."""
    action: str
    """What was done, such as `key.create` or `memory.delete`."""
    target: str
    """What it was done to: an id."""
    user_id: str | None = None
    """Whose data it was; None if it concerns no single user."""
    trace_id: str | None = None
    number: int = 0
    """The place of the entry in the log, given by the backend: later entries have larger numbers."""
