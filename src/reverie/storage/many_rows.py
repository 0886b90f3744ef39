"""Writing many rows with few statements: while a statement runs, other threads do."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

__all__ = ["statement_of", "write_rows"]

CHUNKS = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""How many rows one statement may write; few sizes, so that each statement is prepared once."""
MOST_CHARACTERS = 14_500
"""How long the values of a statement may be: a statement of more than 16 kB does not stay prepared."""
FULL_ENOUGH = 0.75
"""A chunk with at least this share of real rows is filled up with rows of NULL.

The empty rows cost less than another statement.
"""


def write_rows(
    connection: apsw.Connection, queries: dict[str, str], name: str, rows: Sequence[Sequence[Any]]
) -> int:
    """Run a statement for all rows, in chunks; return how many rows it has changed.

    The text of the statement is in `queries`: what comes before the values under its name, what comes after
    them under its name with `_end`. It has to skip rows of NULL.
    """
    start = changed = 0
    columns = len(rows[0]) if rows else 0
    for size in CHUNKS:
        if size * (2 * columns + 2) > MOST_CHARACTERS:
            continue
        while len(rows) - start >= FULL_ENOUGH * size:
            flat = list(chain.from_iterable(rows[start : start + size]))
            flat += [None] * (columns * size - len(flat))
            connection.execute(statement_of(queries[name], queries[f"{name}_end"], columns, size), flat)
            changed += connection.changes()
            start += size
    return changed


@lru_cache
def statement_of(before: str, after: str, columns: int, rows: int) -> str:
    """The text of a statement for this many rows, kept short: long statements do not stay prepared."""
    row = f"({','.join('?' * columns)})"
    return f"{before} {','.join([row] * rows)} {after}"
