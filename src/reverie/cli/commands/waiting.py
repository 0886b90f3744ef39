"""The command `wait`, and the progress line of long commands."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from reverie.cli import completion
from reverie.cli.app import opened
from reverie.cli.options import Json, Url, User
from reverie.cli.output import counted, last_line, plain, print_json, say, show_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from reverie.backends.views import ItemStatus
    from reverie.face.observation import Idleness
    from reverie.face.scheduler import AsyncScheduler, Scheduler

__all__ = ["commands", "progress"]

commands = typer.Typer()

IN_TIME, ENDED_BADLY, NOT_IN_TIME = 0, 1, 2
LONGEST_WAIT_S = 86_400


def _seconds(value: float) -> float:
    if math.isnan(value) or not 0 <= value <= LONGEST_WAIT_S:
        raise typer.BadParameter(f"{value} must be 0 to {LONGEST_WAIT_S} seconds")
    return value


@commands.command()
def wait(
    item_id: Annotated[
        Optional[str],  # noqa: UP045  typer reads this when it runs
        typer.Argument(
            help="An item, or a business task. Default: all work of the user.",
            autocompletion=completion.open_items,
        ),
    ] = None,
    *,
    user: User,
    timeout: Annotated[float, typer.Option(callback=_seconds, help="Seconds, at most a day.")] = 120,
    url: Url = None,
    json: Json = False,
) -> None:
    """Wait until an item or a whole business task has ended, or until nothing of a user waits or runs.

    Exit code 0: the item or task is completed, or the user has no more work. 1: it failed or was cancelled,
    or there is none. 2: not in time.

    Example: reverie wait 4f1c --user ann --timeout 60

    Example: reverie wait --user ann
    """
    with opened(url) as scheduler:
        if item_id is None:
            code = _wait_idle(scheduler, user, timeout, json=json)
        elif scheduler.status(user, item_id)[0].item_id != item_id:
            code = _wait_task(scheduler, user, item_id, timeout, json=json)
        else:
            code = _wait_item(scheduler, user, item_id, timeout, json=json)
    raise typer.Exit(code)


@contextmanager
def progress(text: str, *, hidden: bool, counts: bool = True) -> Iterator[Progress]:
    """Show a progress line during the block, with `counts` also a bar; nothing where no person looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = [SpinnerColumn(), TextColumn(_unformatted(text), markup=False)]
    columns += [BarColumn(), MofNCompleteColumn()] if counts else []
    nobody = hidden or not sys.stdout.isatty()
    with Progress(*columns, Elapsed(), transient=True, disable=nobody) as shown:
        yield shown


def _unformatted(text: str) -> str:
    """Escape a text, also its braces, because rich would fill in what is between them."""
    return plain(text).replace("{", "{{").replace("}", "}}")


def _wait_item(scheduler: Scheduler, user: str, item_id: str, timeout: float, *, json: bool) -> int:
    from reverie.errors import WaitTimeoutError

    try:
        with progress(f"waiting for {item_id}", hidden=json, counts=False) as shown:
            shown.add_task("", total=None)
            item = scheduler.wait(item_id, user_id=user, timeout=timeout)
    except WaitTimeoutError as late:
        if json:
            print_json({"item_id": item_id, "user_id": user, "status": late.status, "timed_out": True})
        show_error(str(late))
        return NOT_IN_TIME
    if json:
        print_json(item)
    else:
        say(plain(f"{item.status} {item.item_id}" + (f": {last_line(item.error)}" if item.error else "")))
    return IN_TIME if item.status == "completed" else ENDED_BADLY


def _wait_task(scheduler: Scheduler, user: str, task_id: str, timeout: float, *, json: bool) -> int:
    from reverie.observe.status import business_status

    with progress(f"task {task_id}", hidden=json) as shown:
        rows = _wait_rows(scheduler, user, task_id, timeout, shown)
    status, left = business_status(row.status for row in rows), sum(not row.status.ended for row in rows)
    if json:
        about = {"task_id": task_id, "user_id": user, "status": status, "timed_out": left > 0}
        print_json({**about, "items": rows})
    elif not left:
        say(plain(f"{status} task {task_id}, {counted(len(rows))}"))
    if left:
        of = f"{left} of {counted(len(rows))} of task {plain(task_id)}"
        show_error(f"{of} not ended after {timeout:g} s; see reverie status {plain(task_id)}")
        return NOT_IN_TIME
    return IN_TIME if status == "completed" else ENDED_BADLY


def _wait_rows(
    scheduler: Scheduler, user: str, task_id: str, timeout: float, shown: Progress
) -> list[ItemStatus]:
    """The items of a task, once all have ended, also those that were added meanwhile, or the time is over."""
    from reverie.errors import WaitTimeoutError

    deadline = time.monotonic() + timeout
    bar = shown.add_task("", total=None)
    while True:
        rows = scheduler.status(user, task_id)
        unended = [row.item_id for row in rows if not row.status.ended]
        shown.update(bar, total=len(rows), completed=len(rows) - len(unended))
        left = deadline - time.monotonic()
        if not unended or left <= 0:
            return rows
        with suppress(WaitTimeoutError):
            scheduler.wait(unended[0], user_id=user, timeout=left)


def _wait_idle(scheduler: Scheduler, user: str, timeout: float, *, json: bool) -> int:
    with progress(f"work of {user}", hidden=json) as shown:
        state = scheduler.run(_follow(scheduler.asynchronous, user, timeout, shown))
    if json:
        names = "active_tasks", "elapsed_seconds", "status"
        print_json({"user_id": user, **{name: getattr(state, name) for name in names}})
    elif not state.timed_out:
        say(plain(f"{user} has no work that waits or runs"))
    if state.timed_out:
        left = counted(state.active_tasks)
        show_error(f"{left} of {plain(user)} not ended after {timeout:g} s; see reverie queue")
    return NOT_IN_TIME if state.timed_out else IN_TIME


async def _follow(scheduler: AsyncScheduler, user: str, timeout: float, shown: Progress) -> Idleness:  # noqa: ASYNC109
    """Watch until the user is idle; the bar's total is the highest number of tasks that was seen."""
    bar = shown.add_task("", total=None)
    most = 0
    async for state in scheduler.observe.idling(user, timeout=timeout):
        most = max(most, state.active_tasks)
        shown.update(bar, total=most, completed=most - state.active_tasks)
    return state
