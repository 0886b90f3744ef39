"""The commands `submit`, `add` and `search`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from reverie.cli.app import opened
from reverie.cli.options import Cube, Json, Url, User
from reverie.cli.output import note, plain, print_json, print_table, say, show_error

if TYPE_CHECKING:
    from reverie.backends.moves import Submitted

__all__ = ["commands"]

commands = typer.Typer()

ItemId = Annotated[
    Optional[str],  # noqa: UP045  typer reads this when it runs
    typer.Option("--item-id", help="Makes a repeat safe."),
]


@commands.command()
def submit(
    label: Annotated[str, typer.Argument(help="What kind of work.")],
    content: Annotated[str, typer.Argument(help="JSON or text for the handler; - reads standard input.")],
    *,
    user: User,
    cube: Cube = "",
    item_id: ItemId = None,
    task_id: Annotated[Optional[str], typer.Option("--task-id", help="The business task.")] = None,  # noqa: UP045
    url: Url = None,
    json: Json = False,
) -> None:
    """Hand a message over; when this returns it is kept.

    Example: reverie submit export '{"doc": 7}' --user ann
    """
    with opened(url, makes=True) as scheduler:
        receipt = scheduler.submit(
            label, user_id=user, content=_content(content), mem_cube_id=cube, item_id=item_id, task_id=task_id
        )
        _print_receipt(receipt, json=json)


@commands.command()
def add(
    text: Annotated[str, typer.Argument(help="What to remember; - reads standard input.")],
    *,
    user: User,
    cube: Cube = "",
    session: Annotated[Optional[str], typer.Option("--session", help="The conversation.")] = None,  # noqa: UP045
    item_id: ItemId = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Remember something; a running server or worker makes it searchable.

    Example: reverie add "I moved to Lisbon in May" --user ann
    """
    with opened(url, makes=True) as scheduler:
        receipt = scheduler.memory.add(
            _content(text), user_id=user, mem_cube_id=cube, session_id=session, item_id=item_id
        )
        _print_receipt(receipt, json=json)


@commands.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    *,
    user: User,
    cube: Cube = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 10,
    url: Url = None,
    json: Json = False,
) -> None:
    """Find what is remembered, best first.

    Example: reverie search "where does Ann live" --user ann
    """
    with opened(url) as scheduler:
        hits = scheduler.memory.search(query, user_id=user, mem_cube_ids=[cube] if cube else [], limit=limit)
        if hits.words_left_out:
            note(f"{hits.words_left_out} words of the query were left out: only the rarest are searched for")
        if json:
            print_json(hits)
            return
        if not hits:
            note(f"nothing of {plain(user)} was found")
            return
        print_table(
            ["score", "memory", "source"],
            [
                (f"{hit.score:.2f}", " ".join(hit.text.split()), ", ".join(s.item_id for s in hit.sources))
                for hit in hits
            ],
        )


def _content(text: str) -> str:
    from reverie.errors import InvalidMessageError

    try:
        return sys.stdin.read() if text == "-" else text
    except UnicodeDecodeError as error:
        raise InvalidMessageError("content", "-", f"standard input is not text: {error}") from error


def _print_receipt(receipt: Submitted, *, json: bool) -> None:
    if json:
        print_json(receipt)
    else:
        say(plain(f"{receipt.status} {receipt.item_id}"))
    if receipt.status == "conflict":
        show_error("this id is taken by another message of this user; nothing was changed")
        raise typer.Exit(1)
