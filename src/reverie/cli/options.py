"""Arguments and options that several commands have."""

from __future__ import annotations

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
    "OfCube",
    "OfLabel",
    "OfTask",
    "Text",
    "Url",
    "User",
    "Yes",
]

Text = Optional[str]  # noqa: UP045  typer reads this when it runs

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
