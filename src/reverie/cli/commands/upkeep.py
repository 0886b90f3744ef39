"""The commands of `reverie upkeep`: what it would do, doing it now, and taking the last pass back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from reverie.cli.app import opened_memory
from reverie.cli.commands.waiting import progress
from reverie.cli.options import Json, OfCube, Url, User
from reverie.cli.output import note, print_json, say

if TYPE_CHECKING:
    from reverie.face.scheduler import Scheduler
    from reverie.face.upkeep import PlannedGroup, UpkeepPlan, UpkeepProgress

__all__ = ["commands"]

commands = typer.Typer(
    help="Keep memories in order: merge, settle, compress and archive them.",
    no_args_is_help=True,
)

MOST_SHOWN = 10
"""How many groups of each kind are shown; --json shows up to a hundred."""


@commands.command()
def plan(user: User, cube: OfCube = None, url: Url = None, json: Json = False) -> None:
    """Show what upkeep would do with the memories of a user, and what it would cost. Nothing is changed.

    Example: reverie upkeep plan --user ann
    """
    with opened_memory(url) as scheduler:
        with progress("looking at memories", hidden=json, counts=False) as shown:
            shown.add_task("", total=None)
            planned = scheduler.upkeep.plan(user_id=user, mem_cube_id=cube)
        if json:
            print_json(planned)
        else:
            _show_plan(planned)


@commands.command()
def run(user: User, cube: OfCube = None, url: Url = None, json: Json = False) -> None:
    """Keep the memories of a user in order now, as one pass. Workers of this queue help.

    Ctrl-C ends it at any time: what was handed over goes on. Exit code 1 if something has to wait or has
    failed.

    Example: reverie upkeep run --user ann
    """
    with opened_memory(url) as scheduler:
        done = _run(scheduler, user, cube, hidden=json)
        if json:
            print_json(done)
        else:
            _report(done, user)
        if done.waiting or done.failed:
            raise typer.Exit(1)


@commands.command()
def undo(user: User, cube: OfCube = None, url: Url = None, json: Json = False) -> None:
    """Take the last pass of upkeep back. What was deleted since stays deleted.

    Exit code 1 if there is nothing to take back.

    Example: reverie upkeep undo --user ann
    """
    with opened_memory(url) as scheduler:
        undone = scheduler.upkeep.undo(user_id=user, mem_cube_id=cube)
        if json:
            print_json(undone)
        elif undone is not None:
            say(f"took back {_count(undone.changes, 'change')} of the pass {undone.pass_id}")
        if undone is None:
            note(f"there is no pass of upkeep of {user} that could be taken back")
            raise typer.Exit(1)


def _run(scheduler: Scheduler, user: str, cube: str | None, *, hidden: bool) -> UpkeepProgress:
    """Run a worker and upkeep, until all is done or has to wait."""
    scheduler.start()
    try:
        with progress("keeping memories in order", hidden=hidden) as shown:
            bar = shown.add_task("", total=None)

            def show(state: UpkeepProgress) -> None:
                shown.update(bar, completed=state.done, total=state.total)

            return scheduler.upkeep.run(user_id=user, mem_cube_id=cube, on_progress=show)
    except KeyboardInterrupt:
        note("stopping: a worker goes on with what was handed over")
        raise
    finally:
        scheduler.stop()


def _show_plan(planned: UpkeepPlan) -> None:
    say(f"changed    {_count(planned.changed, 'memory', 'memories')} since the last pass")
    say(f"merge      {_count(planned.merges, 'group')} of memories that say the same")
    _show_groups(planned.merged)
    what = f"for {planned.model} to decide upon" if planned.model else "that stay, without a language model"
    say(f"similar    {_count(planned.groups, 'group')} {what}")
    _show_groups(planned.similar)
    say(f"archive    {_count(planned.archived, 'memory', 'memories')}")
    if planned.model:
        say(f"tokens     about {planned.input_tokens:,} of prompts and {planned.output_tokens:,} of answers")
        unknown = f"unknown: set llm.prices.{planned.model}"
        say(f"money      {unknown if planned.cost is None else f'about {planned.cost:g}'}")


def _show_groups(groups: tuple[PlannedGroup, ...]) -> None:
    for group in groups[:MOST_SHOWN]:
        say(f"           {' | '.join(group.texts)}")
    if len(groups) > MOST_SHOWN:
        say("           … --json shows more")


def _report(done: UpkeepProgress, user: str) -> None:
    say(f"{_count(done.changes, 'change')} by {_count(done.done, 'message')}")
    if done.changes:
        note(f"to take them back: reverie upkeep undo --user {user}")
    if done.waiting:
        many = "message waits" if done.waiting == 1 else "messages wait"
        note(f"{done.waiting} {many}: reverie usage shows spent budgets, reverie status what each waits for")
    if done.failed:
        many = "message has" if done.failed == 1 else "messages have"
        note(f"{done.failed} {many} failed: reverie dead list shows why")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
