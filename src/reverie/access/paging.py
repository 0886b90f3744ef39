"""Pages of rows of which a caller may see only some: the page looks as if the others did not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["seen_page"]

T = TypeVar("T")

LONGEST_LOOK = 10_000
"""How many rows are looked at for one page; after that many a page may be short."""
AHEAD = 100
"""How many rows are read at once to find out whether another page follows."""


async def seen_page(
    read: Callable[[str | None, int], Awaitable[tuple[Sequence[T], str | None]]],
    after: str | None,
    limit: int,
    sees: Callable[[T], bool],
) -> tuple[list[T], str | None]:
    """The rows of a page that may be seen, and the cursor of the next page if that has such rows, too.

    `read` takes a cursor and a number: it answers with at most this many rows, and the next cursor.
    """
    rows: list[T] = []
    looked_at = 0
    while True:
        part, follows = await read(after, limit - len(rows))
        rows += filter(sees, part)
        looked_at += len(part)
        if follows is None or looked_at >= LONGEST_LOOK:
            return rows, follows
        if len(rows) == limit:
            break
        after = follows
    ahead: str | None = follows
    while ahead is not None and looked_at < LONGEST_LOOK:
        part, ahead = await read(ahead, AHEAD)
        if any(map(sees, part)):
            return rows, follows
        looked_at += len(part)
    return rows, None if ahead is None else follows
