"""The commands that look at the queue: `status`, `queue`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli import completion
from reverie.cli.app import opened
from reverie.cli.items import print_item, print_items
from reverie.cli.options import AnyUser, Json, Url, User
from reverie.cli.output import console, counted, note, plain, print_json, say, show_error, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from reverie.backends.views import ItemStatus, Page
    from reverie.face.scheduler import Scheduler

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
def status(
    task_id: Annotated[
        Optional[str],  # noqa: UP045  typer reads this when it runs
        typer.Argument(
            help="An item id or a business task id. Default: all of the user.",
            autocompletion=completion.item_ids,
        ),
    ] = None,
    *,
    user: User,
    history: Annotated[
        bool, typer.Option("--history", help="Show the runs of the item and its whole error.")
    ] = False,
    limit: Annotated[
        Optional[int],  # noqa: UP045  typer reads this when it runs
        typer.Option(min=1, max=1000, help="Show one page of this many items."),
    ] = None,
    cursor: Annotated[
        Optional[str],  # noqa: UP045  typer reads this when it runs
        typer.Option("--cursor", help="Go on behind the page that said this."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show how messages stand: all of a user, one item, or the items of a business task.

    Exit code 1 if the user has no such item or task.

    Example: reverie status --user ann

    Example: reverie status --user ann --limit 100

    Example: reverie status 4f1c --user ann --history
    """
    if history and task_id is None:
        show_error("--history shows one item or one task: say which, reverie status ITEM --user … --history")
        raise typer.Exit(2)
    pages = limit is not None or cursor is not None
    if pages and task_id is not None:
        show_error("--limit and --cursor are for all items of a user: leave the item out")
        raise typer.Exit(2)
    with opened(url) as scheduler:
        if pages:
            _show_page(scheduler.status_page(user, limit=limit or 100, cursor=cursor), user, json=json)
            return
        rows = scheduler.status(user, task_id)
        if history:
            _show_histories(scheduler, rows, json=json)
        elif json:
            print_json(rows)
        else:
            _show_rows(rows, user, task_id)


def _show_page(page: Page, user: str, *, json: bool) -> None:
    if json:
        print_json(page)
        return
    _show_rows(page.rows, user, None)
    if page.next is not None:
        note(f"there are more: --cursor {shlex.quote(page.next)}")


def _show_histories(scheduler: Scheduler, rows: Sequence[ItemStatus], *, json: bool) -> None:
    from msgspec.structs import asdict

    runs = [scheduler.observe.history(row.item_id, user_id=row.user_id) for row in rows]
    if json:
        print_json([{**asdict(row), "history": attempts} for row, attempts in zip(rows, runs, strict=True)])
        return
    for number, (row, attempts) in enumerate(zip(rows, runs, strict=True)):
        if number:
            say("")
        print_item(row, attempts)


def _show_rows(rows: Sequence[ItemStatus], user: str, task_id: str | None) -> None:
    from reverie.observe.status import business_status

    if not rows:
        note(f"{plain(user)} has no messages")
        return
    if task_id is not None and rows[0].item_id != task_id:
        words = f"task {plain(task_id)}: {business_status(row.status for row in rows)}"
        say(f"{words}, {counted(len(rows))}")
    print_items(rows)


@commands.command()
def queue(
    user: AnyUser = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show how much work each label has, or (--user) each lane of a user.

    With --watch and --json each look is one line.

    Example: reverie queue --watch
    """
    with opened(url) as scheduler:
        if not watch:
            if json:
                print_json(_rows(scheduler, user))
            else:
                console().print(_table(_rows(scheduler, user), user))
            return
        try:
            _watch(lambda: _rows(scheduler, user), user, every, json=json)
        except KeyboardInterrupt:
            return


def _watch(look: Callable[[], list[dict[str, Any]]], user: str | None, every: float, *, json: bool) -> None:
    from rich.live import Live

    screen = console()
    if json or not screen.is_terminal:
        while True:
            print_json(look(), indent=0) if json else screen.print(_table(look(), user))
            time.sleep(every)
    with Live(_table(look(), user), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_table(look(), user), refresh=True)


def _rows(scheduler: Scheduler, user: str | None) -> list[dict[str, Any]]:
    """The rows to show, one for each label or lane."""
    from msgspec.structs import asdict

    if user is not None:
        return [
            {**state.lane._asdict(), "waiting": state.waiting, "in_progress": state.in_progress}
            for state in scheduler.observe.lanes(user)
        ]
    workers = scheduler.control.workers()
    return [
        {**asdict(state), "workers": sum(state.label in worker.labels for worker in workers)}
        for state in scheduler.control.labels()
    ]


def _table(rows: list[dict[str, Any]], user: str | None) -> RenderableType:
    if not rows:
        return "nothing waits or runs" if user is not None else "the queue is empty"
    if user is not None:
        names = ["mem_cube_id", "label", "waiting", "in_progress"]
        shown = [[row[name] for name in names] for row in rows]
        return table_of(["cube", "label", "waiting", "running"], shown)
    names = ["label", "waiting", "in_progress", "completed", "failed", "cancelled"]
    shown = [[row[name] for name in names] + [row["workers"] or "nobody", row["paused"]] for row in rows]
    heads = ["label", "waiting", "running", "done", "failed", "cancelled", "workers", "paused"]
    return table_of(heads, shown)
