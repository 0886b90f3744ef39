"""The commands of `reverie dead`: dead letters are messages that have failed and wait for a decision."""

from __future__ import annotations

import shlex
from typing import Annotated, Optional

import typer

from reverie.cli import completion
from reverie.cli.app import opened
from reverie.cli.commands.bulk import DELETE, REQUEUE, of_items
from reverie.cli.items import print_item, print_items
from reverie.cli.options import AnyUser, Json, OfLabel, Url, User
from reverie.cli.output import note, plain, print_json, show_error

__all__ = ["commands"]

commands = typer.Typer(help="Look at what has failed, send it back, or delete it.", no_args_is_help=True)


@commands.command("list")
def list_letters(
    *,
    user: AnyUser = None,
    label: OfLabel = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 100,
    after: Annotated[
        Optional[str],  # noqa: UP045  typer reads this when it runs
        typer.Option("--after", help="Go on behind the page that said so."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first.

    Example: reverie dead list --label export
    """
    with opened(url) as scheduler:
        page = scheduler.control.dead_letters(user_id=user, label=label, limit=limit, after=after)
        if json:
            print_json(page)
        elif page.rows:
            print_items(page.rows, users=True)
        else:
            note("there are no dead letters" + (" here" if user or label or after else ""))
        if page.next is not None and not json:
            note(f"there are more: --after {shlex.quote(page.next)}")


@commands.command()
def show(
    item_id: Annotated[str, typer.Argument(help="The item.", autocompletion=completion.dead_items)],
    *,
    user: User,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show one dead letter: its message, its whole error, its runs.

    Exit code 1 if there is no such dead letter.

    Example: reverie dead show 4f1c --user ann
    """
    with opened(url) as scheduler:
        letter = scheduler.control.dead_letter(item_id, user_id=user)
        if letter is None:
            (row, *_) = scheduler.status(user, item_id)
            show_error(
                f"{plain(item_id)} is no dead letter, it is {row.status}: reverie status --history shows it"
            )
            raise typer.Exit(1)
        history = scheduler.observe.history(item_id, user_id=user)
        if json:
            from msgspec.structs import asdict

            print_json({**asdict(letter), "history": history})
        else:
            print_item(letter, history)


@commands.command()
@of_items(REQUEUE, completion.dead_items)
def requeue() -> None:
    """Send back what has failed or was cancelled: it waits again as if it were new.

    Exit code 1 if an item that was named could not be sent back, or you said no.

    Example: reverie dead requeue 4f1c --user ann

    Example: reverie dead requeue --label export --all
    """


@commands.command()
@of_items(DELETE, completion.dead_items)
def delete() -> None:
    """Forget what has failed for good. This cannot be undone.

    Exit code 1 if an item that was named could not be deleted, or you said no.

    Example: reverie dead delete 4f1c --user ann
    """
