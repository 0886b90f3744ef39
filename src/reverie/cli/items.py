"""Print items: many as a table, or one with all that is known about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.cli.output import last_line, moment, note, plain, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.views import Attempt, ItemStatus

__all__ = ["print_item", "print_items"]

MOST_SHOWN = 1000
"""The most rows of a table, because nobody reads a longer one; JSON has all rows."""


def print_items(rows: Sequence[ItemStatus], *, users: bool = False) -> None:
    """Print one row for each item, oldest first; of a long list only the newest `MOST_SHOWN`."""
    if len(rows) > MOST_SHOWN:
        note(f"{len(rows)} items; the newest {MOST_SHOWN} are shown, --json has all")
    print_table(
        [*(["user"] if users else []), "item", "label", "status", "attempts", "submitted", "error"],
        [
            (
                *([row.user_id] if users else []),
                row.item_id,
                row.task_type,
                row.status,
                row.attempts,
                moment(row.submitted_at),
                last_line(row.error),
            )
            for row in rows[-MOST_SHOWN:]
        ],
    )


def print_item(row: ItemStatus, history: Sequence[Attempt]) -> None:
    """Print all that is known about one item: its status, its message if it is kept, its error, its runs."""
    fields = {
        "item": row.item_id,
        "user": row.user_id,
        "label": row.task_type,
        "cube": row.mem_cube_id,
        "task": row.task_id,
        "status": row.status,
        "attempts": f"{row.attempts}, and {row.losses} lost" if row.losses else row.attempts,
        "conflicts": row.conflicts or None,
        "submitted": moment(row.submitted_at),
        "started": moment(row.started_at),
        "ended": moment(row.ended_at),
    }
    if row.message is not None:
        fields |= {"session": row.message.session_id, "trace": row.message.trace_id}
    for name, value in fields.items():
        if value not in {None, ""}:
            say(f"{name:<10} {plain(str(value))}")
    if row.message is not None:
        _print_block("content", _pretty(row.message.content))
    _print_block("error", row.error or "")
    if history:
        say("\nruns")
        print_table(["outcome", "started", "took", "worker", "error"], [_run(attempt) for attempt in history])


def _run(attempt: Attempt) -> tuple[Any, ...]:
    took = None if attempt.started_at is None else f"{(attempt.ended_at - attempt.started_at) / 1000:.3f} s"
    started = moment(attempt.started_at) or f"ended {moment(attempt.ended_at)}"
    return attempt.outcome, started, took, attempt.worker, last_line(attempt.error)


def _print_block(name: str, text: str) -> None:
    if text:
        say(f"\n{name}\n" + "\n".join(f"  {line}" for line in text.rstrip("\n").split("\n")))


def _pretty(content: str) -> str:
    """Indent JSON over several lines; return other text as it is."""
    import msgspec

    try:
        return msgspec.json.format(content, indent=2)
    except msgspec.DecodeError:
        return content
