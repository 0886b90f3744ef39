"""The history of a message's runs. A completed run has no row here: the row of its message records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.backends.sqlite.rows import to_json
from reverie.backends.views import MOST_KEPT, Attempt
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.backends.moves import Status
    from reverie.backends.sqlite.step import Step
    from reverie.message import Key

__all__ = ["forget_attempts", "history", "note_end", "note_run"]

SQL = load_queries(__package__ or "", "attempts.sql")


def note_run(
    step: Step, identity: Sequence[Any], outcome: str, error: str | None = None, *, ran: bool = True
) -> None:
    """Record how a run ends. With `ran` false, record it only if the message ends as cancelled."""
    row, user_id, item_id, claim_id = identity
    step.rows(
        SQL["note_run"],
        {
            "row": row,
            "user_id": user_id,
            "id": item_id,
            "claim_id": claim_id,
            "outcome": outcome,
            "error": error,
            "ran": ran,
            "now": step.now,
            "max_losses": step.limits.max_losses,
            "kept": MOST_KEPT,
        },
    )


def note_end(step: Step, user_id: str, item_id: str, status: Status, error: str | None) -> None:
    """Record that a message has ended while it waited."""
    bindings = {"user_id": user_id, "id": item_id, "outcome": str(status), "error": error}
    step.rows(SQL["note_end"], bindings | {"now": step.now, "kept": MOST_KEPT})


def forget_attempts(step: Step, keys: Sequence[Sequence[str]]) -> None:
    """Remove the history of messages that are removed."""
    if keys:
        step.rows(SQL["forget_attempts"], {"keys": to_json(keys)})


def history(connection: apsw.Connection, key: Key) -> list[Attempt]:
    """The last runs of a message, oldest first."""
    bindings = {"user_id": key.user_id, "id": key.item_id}
    rows: list[tuple[Any, ...]] = connection.execute(SQL["history"], bindings).fetchall()
    rows += connection.execute(SQL["completion"], bindings).fetchall()
    return [
        Attempt(outcome=outcome, ended_at=ended_at, started_at=started_at, worker=worker, error=error)
        for outcome, ended_at, started_at, worker, error in rows[-MOST_KEPT:]
    ]
