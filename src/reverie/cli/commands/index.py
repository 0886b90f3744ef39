"""The commands of `reverie index`: show how far the index of memories is, and bring it up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from reverie.cli.app import opened_memory
from reverie.cli.commands.waiting import progress
from reverie.cli.options import Json, Url, Yes
from reverie.cli.output import memories, note, print_json, say

if TYPE_CHECKING:
    from reverie.face.scheduler import Scheduler
    from reverie.memory.interface import IndexProgress

__all__ = ["commands", "index_all", "index_progress", "run_index"]

commands = typer.Typer(help="Show how far the index of memories is, and bring it up to date.")


@commands.callback(invoke_without_command=True)
def index(context: typer.Context, url: Url = None, json: Json = False) -> None:
    """Show how far the index of memories is, and bring it up to date.

    Example: reverie index
    """
    if context.invoked_subcommand is None:
        status(url=url, json=json)


@commands.command()
def status(url: Url = None, json: Json = False) -> None:
    """Show how many memories there are, how many are left to index, and the embedder in force.

    No model is loaded.

    Example: reverie index status
    """
    with opened_memory(url) as scheduler:
        state = index_progress(scheduler)
        embedder = scheduler.runtime.models.embedder_name
        if json:
            print_json(_answer(state, embedder))
        elif state is None:
            say("the store keeps no index of its own")
        else:
            say(f"memories   {state.total}")
            say(f"left       {state.left}")
            say(f"embedder   {embedder or 'none: search by words alone'}")
            if state.left:
                note("to index what is left: reverie index run; a worker does it by itself")


@commands.command()
def run(url: Url = None, json: Json = False) -> None:
    """Index what is left to index. A worker does the same in the background.

    Exit code 1 if something has to wait for the embedder.

    Example: reverie index run
    """
    with opened_memory(url) as scheduler:
        state = run_index(scheduler, json=json)
        if state is not None and state.left:
            raise typer.Exit(1)


@commands.command()
def rebuild(yes: Yes = False, url: Url = None, json: Json = False) -> None:
    """Make the vectors of all memories anew. Searches go on meanwhile, at first by words alone.

    Exit code 1 if something has to wait for the embedder.

    Example: reverie index rebuild
    """
    with opened_memory(url) as scheduler:
        from reverie.memory.interface import KeepsIndex

        state, store = index_progress(scheduler), scheduler.runtime.store
        if state is not None and isinstance(store, KeepsIndex):
            if not yes and sys.stdin.isatty():
                question = f"make the vectors of {memories(state.total)} anew?"
                if not typer.confirm(question, err=True):
                    note("nothing was changed")
                    raise typer.Exit(1)
            scheduler.run(store.rebuild())
        state = run_index(scheduler, json=json)
        if state is not None and state.left:
            raise typer.Exit(1)


def run_index(scheduler: Scheduler, *, json: bool = False) -> IndexProgress | None:
    """Index what is left, show the progress, and print the result; None if the store keeps no index."""
    embedder = scheduler.runtime.models.embedder_name
    state = index_all(scheduler, hidden=json)
    if json:
        print_json(_answer(state, embedder))
    elif state is None:
        say("the store keeps no index of its own")
    elif state.left:
        say(f"indexed {state.total - state.left} of {memories(state.total)}")
    else:
        say(f"indexed all {memories(state.total)}")
    if state is not None and state.left:
        note(
            f"{memories(state.left)} must wait for the embedder {embedder or 'of before'}, and are found by "
            f"their words meanwhile; a worker tries again by itself{_reason(scheduler)}"
        )
    return state


def index_all(scheduler: Scheduler, *, hidden: bool) -> IndexProgress | None:
    """Index what is left, and show the progress unless it is hidden."""
    with progress("indexing", hidden=hidden) as shown:
        bar = shown.add_task("", total=None)

        def show(state: IndexProgress) -> None:
            shown.update(bar, total=state.total, completed=state.total - state.left)

        return scheduler.memory.indexed(show)


def _reason(scheduler: Scheduler) -> str:
    """What the embedder says if it is asked for a vector; empty if it answers by now."""
    from reverie.errors import ReverieError

    try:
        scheduler.run(scheduler.runtime.models.vectors(["hello"]))
    except ReverieError as error:
        return f". The reason: {error}"
    return ""


def index_progress(scheduler: Scheduler) -> IndexProgress | None:
    """How much is left to index; None if the store keeps no index. No model is loaded."""
    from reverie.memory.interface import KeepsIndex

    scheduler.open()
    store = scheduler.runtime.store
    return scheduler.run(store.index_progress()) if isinstance(store, KeepsIndex) else None


def _answer(state: IndexProgress | None, embedder: str | None) -> dict[str, Any]:
    return {
        "total": None if state is None else state.total,
        "left": None if state is None else state.left,
        "embedder": embedder,
    }
