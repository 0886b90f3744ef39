"""Suggestions that a shell shows when someone presses tab.

The names in a queue come from anyone, and a suggestion becomes part of a shell command: only names without
characters that are special to a shell are offered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reverie.backends.interface import Backend

    Reader = Callable[[Backend], Coroutine[Any, Any, list[str]]]

__all__ = ["dead_items", "event_names", "item_ids", "label_names", "open_items", "task_types"]

PATIENCE_S = 2.0
"""If the queue has not answered after this time, nothing is offered."""
MOST_READ, MOST_OFFERED = 1000, 200
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@%+/-]*")


def label_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Labels that the queue knows or a worker handles."""

    async def read(backend: Backend) -> list[str]:
        handled = [label for worker in await backend.views.workers() for label in worker.labels]
        return [state.label for state in await backend.views.labels()] + handled

    return _offered(ctx, incomplete, read)


def item_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of items of the user whom the command line names so far."""
    return _items(ctx, incomplete)


def open_items(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of this user's items that have not ended."""
    return _items(ctx, incomplete, only_open=True)


def dead_items(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of dead letters; only those of the user if the command line names one."""
    return _items(ctx, incomplete, dead=True)


def task_types(ctx: typer.Context, incomplete: str) -> list[str]:
    """The types of timed tasks that are in force."""

    async def read(backend: Backend) -> list[str]:
        return [one.name for one in await backend.triggers.types()]

    return _offered(ctx, incomplete, read)


def event_names(incomplete: str) -> list[str]:
    """The names of all events."""
    from reverie.observe.events import EventName

    return [name.value for name in EventName if name.value.startswith(incomplete)]


def _items(ctx: typer.Context, incomplete: str, *, only_open: bool = False, dead: bool = False) -> list[str]:
    user = ctx.params.get("user")

    async def read(backend: Backend) -> list[str]:
        from reverie.backends.views import StatusQuery

        page = await backend.views.read(StatusQuery(user_id=user, dead=dead, limit=MOST_READ))
        return [row.item_id for row in page.rows if not (only_open and row.status.ended)]

    return [] if user is None and not dead else _offered(ctx, incomplete, read)


def _offered(ctx: typer.Context, incomplete: str, read: Reader) -> list[str]:
    """The names from `read` that complete the word; none if the queue cannot be read in time."""
    try:
        names = _read(ctx.params.get("url"), read)
    except Exception:  # noqa: BLE001  there is nobody to tell
        return []
    fit = {name for name in names if name.startswith(incomplete) and _HARMLESS.fullmatch(name)}
    return sorted(fit)[:MOST_OFFERED]


def _read(url: str | None, read: Reader) -> list[str]:
    import asyncio
    from pathlib import Path

    from reverie.face.scheduler import AsyncScheduler
    from reverie.settings import load_settings

    scheduler = AsyncScheduler(url, settings=load_settings())
    place = scheduler.runtime.settings.queue_url
    if place.startswith("sqlite:///") and not Path(place.removeprefix("sqlite:///")).exists():
        return []  # pressing tab creates no queue

    async def look() -> list[str]:
        backend = scheduler.runtime.backend
        try:
            async with asyncio.timeout(PATIENCE_S):
                await backend.open()
                return await read(backend)
        finally:
            await backend.close()

    return asyncio.run(look())
