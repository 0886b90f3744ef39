"""What a shell offers when someone presses tab.

What it offers ends up in a shell, and comes from anyone: only names that mean nothing to a shell are offered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from reverie.scheduler import AsyncScheduler

__all__ = ["dead_items", "event_names", "item_ids", "label_names", "open_items"]

PATIENCE_S = 2.0
"""Who presses tab does not wait longer."""
MOST_OFFERED = 200
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@%+/-]*")


def label_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The labels that the queue knows."""

    async def read(scheduler: AsyncScheduler) -> list[str]:
        handled = [label for worker in await scheduler.control.workers() for label in worker.labels]
        return [state.label for state in await scheduler.control.labels()] + handled

    return _offered(ctx, incomplete, read)


def item_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Items of the user that the command line names so far."""
    return _items(ctx, incomplete)


def open_items(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those that have not ended."""
    return _items(ctx, incomplete, only_open=True)


def dead_items(ctx: typer.Context, incomplete: str) -> list[str]:
    """Dead letters, of the user if one is named."""

    async def read(scheduler: AsyncScheduler) -> list[str]:
        page = await scheduler.control.dead_letters(user_id=ctx.params.get("user"), limit=MOST_OFFERED)
        return [row.item_id for row in page.rows]

    return _offered(ctx, incomplete, read)


def event_names(incomplete: str) -> list[str]:
    """What can happen."""
    from reverie.observe.events import EventName

    return [name.value for name in EventName if name.value.startswith(incomplete)]


def _items(ctx: typer.Context, incomplete: str, *, only_open: bool = False) -> list[str]:
    user = ctx.params.get("user")

    async def read(scheduler: AsyncScheduler) -> list[str]:
        from reverie.backends.views import StatusQuery

        await scheduler.open()
        page = await scheduler.runtime.backend.views.read(StatusQuery(user_id=user, limit=1000))
        return [row.item_id for row in page.rows if not (only_open and row.status.ended)]

    return [] if user is None else _offered(ctx, incomplete, read)


def _offered(
    ctx: typer.Context,
    incomplete: str,
    read: Callable[[AsyncScheduler], Coroutine[Any, Any, Iterable[str]]],
) -> list[str]:
    """The names that are read and fit; none if the queue cannot be read at once."""
    try:
        names = set(_read(ctx.params.get("url"), read))
    except Exception:  # noqa: BLE001  there is nobody to tell
        return []
    return sorted(n for n in names if n.startswith(incomplete) and _HARMLESS.fullmatch(n))[:MOST_OFFERED]


def _read(
    url: str | None, read: Callable[[AsyncScheduler], Coroutine[Any, Any, Iterable[str]]]
) -> Iterable[str]:
    import asyncio
    from pathlib import Path

    from reverie.scheduler import AsyncScheduler
    from reverie.settings import load_settings

    settings = load_settings()
    queue = url or settings.queue_url
    if queue.startswith("sqlite:///") and not Path(queue.removeprefix("sqlite:///")).exists():
        return []  # pressing tab creates no queue

    async def look() -> Iterable[str]:
        scheduler = AsyncScheduler(url, settings=settings)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await read(scheduler)
        finally:
            await scheduler.stop()

    return asyncio.run(look())
