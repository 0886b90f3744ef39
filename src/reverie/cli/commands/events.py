"""The command `events`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from reverie.cli import completion
from reverie.cli.app import scheduler_to_look
from reverie.cli.options import AnyUser, Json, Url
from reverie.cli.output import last_line, moment, note, plain, print_json, shown_errors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reverie.face.scheduler import AsyncScheduler
    from reverie.observe.bus import Wanted
    from reverie.observe.events import Event

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
def events(
    *,
    user: AnyUser = None,
    label: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads this when it runs
        typer.Option(
            "--label", help="Only of this label; may be repeated.", autocompletion=completion.label_names
        ),
    ] = None,
    item: Annotated[Optional[str], typer.Option("--item", help="Only of this item.")] = None,  # noqa: UP045
    event: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--event", help="Only these events; may be repeated.", autocompletion=completion.event_names
        ),
    ] = None,
    count: Annotated[Optional[int], typer.Option(min=1, help="End after so many.")] = None,  # noqa: UP045
    url: Url = None,
    json: Json = False,
) -> None:
    """Show what happens as it happens, in all processes that use this queue, until Ctrl-C.

    With --json each event is one line; times are epoch milliseconds. What happened before is not shown, and
    one who reads too slowly misses some: reverie status --history has the runs of an item.

    Example: reverie events --label export --event finish
    """
    with shown_errors():
        import asyncio

        from reverie.observe.bus import Wanted

        _check_names(event)
        wanted = Wanted(
            events=frozenset(event) if event else None,
            labels=frozenset(label) if label else None,
            user_id=user,
            item_id=item,
        )
        scheduler = scheduler_to_look(url).asynchronous
        try:
            asyncio.run(_show(scheduler, wanted, count, json=json))
        except KeyboardInterrupt:
            return


def _check_names(names: list[str] | None) -> None:
    from reverie.observe.events import EventName

    known = [name.value for name in EventName]
    if unknown := [name for name in names or () if name not in known]:
        raise typer.BadParameter(f"{unknown[0]} is no event; known are {', '.join(known)}")


async def _show(scheduler: AsyncScheduler, wanted: Wanted, count: int | None, *, json: bool) -> None:
    shown = 0
    await scheduler.open()
    try:
        async with aclosing(_heard(scheduler)) as heard:
            async for event in heard:
                for one in wanted.sift([event]):
                    print_json(one, indent=0) if json else _print(one)
                    shown += 1
                    if shown == count:
                        return
    finally:
        await scheduler.stop()


async def _heard(scheduler: AsyncScheduler) -> AsyncGenerator[Event]:
    """Yield every event that a process on this queue announces from now on."""
    import asyncio

    from reverie.errors import redacted
    from reverie.observe.events import decode_events

    url = scheduler.runtime.settings.queue_url
    async with aclosing(scheduler.runtime.backend.broadcast.listen()) as pieces:
        first = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)  # the listening begins with this first step
        note(f"listening to all who use {redacted(url)}; Ctrl-C ends it")
        if url.startswith("memory:"):
            note("memory:// lives in one process: nobody else can be heard here; use sqlite:/// or redis://")
        for event in decode_events(await first):
            yield event
        async for piece in pieces:
            for event in decode_events(piece):
                yield event


def _print(event: Event) -> None:
    """Print one line: time, event, label, user, item, status, durations, error."""
    durations = {
        "waited": event.queue_wait_ms,
        "ran": event.exec_duration_ms,
        "in all": event.total_duration_ms,
    }
    took = ", ".join(f"{word} {ms:g} ms" for word, ms in durations.items() if ms is not None)
    parts = [
        moment(event.at, "%H:%M:%S.%f")[:-3],
        f"{event.event:<7}",
        event.label,
        event.user_id,
        event.item_id,
        event.status,
        took,
        None if event.last is None else "the last run" if event.last else "it is tried again",
        last_line(event.error),
    ]
    line = "  ".join(part for part in parts if part)
    typer.secho(plain(line), fg=typer.colors.RED if event.error else None)
