"""The commands that change the queue: `cancel`, `pause`, `resume`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from reverie.cli import completion
from reverie.cli.app import opened
from reverie.cli.commands.bulk import CANCEL, of_items
from reverie.cli.options import Json, Url
from reverie.cli.output import note, plain, print_json, say

__all__ = ["commands"]

commands = typer.Typer()

Label = Annotated[str, typer.Argument(help="The label.", autocompletion=completion.label_names)]


@commands.command()
@of_items(CANCEL, completion.open_items)
def cancel() -> None:
    """Cancel what waits, and ask what runs to stop: all that fits everything that is given.

    `reverie dead requeue` takes a cancellation back. Exit code 1 if an item that was named could not be
    cancelled, or you said no.

    Example: reverie cancel 4f1c --user ann

    Example: reverie cancel --label export --all
    """


@commands.command()
def pause(
    label: Label,
    reason: Annotated[Optional[str], typer.Option(help="Why; `reverie queue` shows it.")] = None,  # noqa: UP045
    url: Url = None,
    json: Json = False,
) -> None:
    """Claim nothing more of a label, in any worker. What comes is kept, what runs goes on.

    Example: reverie pause export --reason "the disk is full"
    """
    with opened(url) as scheduler:
        known = {state.label for state in scheduler.control.labels()}
        handled = {name for worker in scheduler.control.workers() for name in worker.labels}
        scheduler.control.pause(label, reason or "paused")
        if json:
            print_json({"label": label, "paused": reason or "paused"})
        else:
            say(plain(f"paused {label}: {reason}" if reason else f"paused {label}"))
        if label not in known | handled:
            note(f"nobody has used the label {plain(label)} yet: is it written as you mean it?")


@commands.command()
def resume(label: Label, url: Url = None, json: Json = False) -> None:
    """Claim a paused label again.

    Example: reverie resume export
    """
    with opened(url) as scheduler:
        paused = any(state.label == label and state.paused for state in scheduler.control.labels())
        scheduler.control.resume(label)
        if json:
            print_json({"label": label, "paused": None})
        else:
            say(plain(f"resumed {label}" if paused else f"{label} was not paused"))
