"""The commands `submit` and `add`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import opened
from reverie.cli.options import Cube, Json, Text, Texts, Url, User
from reverie.cli.output import note, plain, print_json, say, show_error

if TYPE_CHECKING:
    from reverie.backends.moves import Submitted

__all__ = ["commands", "read_content"]

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
        text = read_content(content)
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
    session: Annotated[Text, typer.Option("--session", help="The conversation.")] = None,
    name: Annotated[Text, typer.Option("--name", help="Who said it.")] = None,
    role: Annotated[str, typer.Option("--role", help="user, assistant, system or tool.")] = "user",
    time: Annotated[
        Text, typer.Option("--time", help="When it was said: a date, such as 2026-05-02T18:30+02:00.")
    ] = None,
    tags: Annotated[Texts, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    item_id: ItemId = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Remember something; a running server or worker makes it searchable.

    A time without an offset is UTC. A time that cannot be understood is kept as it is written.

    Example: reverie add "I moved to Lisbon in May" --user ann --name Ann --tag home
    """
    with opened(url, makes=True) as scheduler:
        from reverie.turn import Turn

        receipt = scheduler.memory.add(
            [Turn(content=read_content(text), role=role, name=name, chat_time=time)],
            user_id=user,
            mem_cube_id=cube,
            session_id=session,
            item_id=item_id,
            info={"custom_tags": tags} if tags else None,
        )
        _print_receipt(receipt, json=json)


def read_content(text: str) -> str:
    """The text itself, or standard input for `-`."""
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
