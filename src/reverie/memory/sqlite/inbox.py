"""The inbox: which messages had their effects applied, if the queue is in another database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import apsw
import msgspec

from reverie.errors import VersionConflictError
from reverie.memory.interface import Applied, InboxEntry
from reverie.memory.sqlite.rows import to_json
from reverie.message import Key, Message
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reverie.memory.interface import Application

__all__ = ["Inbox"]

UNWRITABLE = (
    apsw.ConstraintError,
    apsw.MismatchError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)
"""Errors whose cause is the values to be written, not the file."""
SQL = load_queries(__package__ or "", "inbox.sql")
CLOCK_DIFFERENCE_MS = 24 * 3600 * 1000
"""How much the clock of a queue may be ahead of this machine's clock; default a day."""


class Inbox:
    """Applies the effects of each message once, in the transaction that writes its row."""

    def __init__(self, retention_s: float) -> None:
        self._retention_s = retention_s

    def apply(
        self,
        connection: apsw.Connection,
        application: Application,
        write: Callable[[], None],
        now: int,
    ) -> Applied:
        """Enter a message and call `write`, or answer why its effects are not to be written."""
        message = application.message
        key = message.key
        late_s = (now - (application.lease_until or now)) / 1000
        if late_s > self._retention_s:
            reason = f"its lease ended {late_s:.0f} s ago, which is longer than memory.inbox_retention_s"
            return Applied(key=key, state="stale", error=reason)
        identity = {
            "user_id": key.user_id,
            "item_id": key.item_id,
            "submitted_at": application.submitted_at,
            "now": now,
        }
        entry = {
            "fingerprint": message.fingerprint(),
            "closed": application.close,
            "losses": message.losses,
            "requeues": message.requeues,
            "follow_ups": to_json(application.follow_ups),
            "clock_difference": CLOCK_DIFFERENCE_MS,
        }
        try:
            with connection:  # a savepoint
                if connection.execute(SQL["enter_inbox"], identity | entry).fetchall():
                    write()
                    state: Literal["closed", "applied"] = "closed" if application.close else "applied"
                    return Applied(key=key, state=state, follow_ups=application.follow_ups)
        except VersionConflictError as error:
            return Applied(key=key, state="conflict", error=str(error))
        except UNWRITABLE as error:
            return Applied(key=key, state="rejected", error=repr(error))
        return _answer_of_row(connection, key, identity)

    def old_entries(self, connection: apsw.Connection, now: int, limit: int) -> list[InboxEntry]:
        """See `KeepsInbox.old_entries`."""
        before = now - round(self._retention_s * 1000) - CLOCK_DIFFERENCE_MS
        bindings = {"before": before, "limit": limit, "clock_difference": CLOCK_DIFFERENCE_MS}
        rows: list[tuple[Any, ...]] = connection.execute(SQL["old_entries"], bindings).fetchall()
        return [
            InboxEntry(key=Key(user_id, item_id), accepted_by=accepted_by, used_at=used_at)
            for user_id, item_id, accepted_by, used_at in rows
        ]

    def prune(
        self,
        connection: apsw.Connection,
        gone: Sequence[InboxEntry],
        needed: Mapping[InboxEntry, int],
        now: int,
    ) -> None:
        """See `KeepsInbox.prune_inbox`."""
        connection.executemany(SQL["drop_entry"], [(*entry.key, entry.used_at) for entry in gone])
        connection.executemany(
            SQL["keep_entry"],
            [(*entry.key, entry.used_at, submitted_at, now) for entry, submitted_at in needed.items()],
        )


def _answer_of_row(connection: apsw.Connection, key: Key, identity: dict[str, Any]) -> Applied:
    """The answer to an application that finds a row in the inbox which wins."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["use_inbox"], identity).fetchall()
    ((closed, follow_ups, is_later),) = rows
    if is_later or closed:
        reason = "the id was accepted again after this run" if is_later else None
        return Applied(key=key, state="closed", error=reason)
    return Applied(key=key, state="already", follow_ups=_decode_messages(follow_ups))


_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
