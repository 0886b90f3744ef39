"""Arguments and options that several commands have."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Optional

import typer

from reverie.cli import completion

__all__ = [
    "All",
    "AnyUser",
    "App",
    "Cube",
    "Json",
    "Limit",
    "Moment",
    "OfCube",
    "OfLabel",
    "OfTask",
    "Text",
    "Texts",
    "Url",
    "User",
    "Yes",
    "read_moment",
]

Text = Optional[str]  # noqa: UP045  typer reads this when it runs
Texts = Optional[list[str]]  # noqa: UP045
Moment = Optional[int]  # noqa: UP045  an option of this type has `parser=read_moment`

Url = Annotated[
    Text,
    typer.Option("--url", help="The queue: sqlite:///path, redis://host:port/db. Default: the settings."),
]
App = Annotated[
    Text, typer.Option("--app", help="module:attribute of the scheduler that holds your handlers.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
User = Annotated[str, typer.Option("--user", "-u", help="The user's id.")]
AnyUser = Annotated[Text, typer.Option("--user", "-u", help="Of this user. Default: of all.")]
Cube = Annotated[str, typer.Option("--cube", help="The cube. Default: the user's own.")]
OfTask = Annotated[Text, typer.Option("--task", help="Of this business task.")]
OfCube = Annotated[Text, typer.Option("--cube", help="Of this cube.")]
OfLabel = Annotated[
    Text, typer.Option("--label", help="Of this label.", autocompletion=completion.label_names)
]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many in one step.")]
All = Annotated[bool, typer.Option("--all", help="Go on, step by step, until nothing is left.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_moment(text: str) -> int:
    """Read an ISO date, or milliseconds since 1970; a date without an offset is in this machine's zone."""
    if re.fullmatch(r"\d{12,16}", text, re.ASCII):
        return int(text)
    try:
        given = datetime.fromisoformat(text)
        return (given.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError) as error:
        allowed = "a date such as 2026-05-02 or 2026-05-02T18:30+02:00, or milliseconds since 1970"
        raise typer.BadParameter(f"{text!r} must be {allowed}") from error
