"""The commands `submit`, `add` and `search`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import opened, refuse_memory
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
    content: Annotated[str, typer.Argument(help="Text for the handler; - reads standard input.")],
    *,
    user: User,
    cube: Cube = "",
    item_id: ItemId = None,
    task_id: Annotated[Optional[str], typer.Option("--task-id", help="The business task.")] = None,  # noqa: UP045
    json_content: Annotated[
        bool, typer.Option("--json-content", help="The content is JSON; broken JSON is refused.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Hand a message over; when this returns it is kept.

    The content is kept as text, as it is given. With --json-content it must be JSON.

    Example: reverie submit export '{"doc": 7}' --json-content --user ann
    """
    with opened(url, makes=True) as scheduler:
        text = _content(content)
        receipt = scheduler.submit(
            label,
            user_id=user,
            content=_parsed(text) if json_content else text,
            mem_cube_id=cube,
            item_id=item_id,
            task_id=task_id,
        )
        _print_receipt(receipt, json=json)
        if not json_content and not json:
            note("the content is kept as text; with --json-content it would be read as JSON")


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
        refuse_memory("memory.url", scheduler.runtime.settings.memory_url)
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


def _parsed(text: str) -> Any:
    """The value of a JSON text; the error names the place where the text stops being JSON."""
    import json

    from reverie.errors import InvalidMessageError

    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"is no JSON: {error.msg} at line {error.lineno} column {error.colno}"
    except RecursionError:
        reason = "is JSON nested too deeply"
    except ValueError as error:  # a number with too many digits
        reason = f"is JSON that cannot be read: {error}"
    raise InvalidMessageError("content", text, reason)


def _print_receipt(receipt: Submitted, *, json: bool) -> None:
    if json:
        print_json(receipt)
    else:
        say(plain(f"{receipt.status} {receipt.item_id}"))
    if receipt.status == "conflict":
        show_error("this id is taken by another message of this user; nothing was changed")
        raise typer.Exit(1)
