"""The commands of `reverie config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.output import print_json, print_table, shown_errors

if TYPE_CHECKING:
    from reverie.configuration.reading import Reading, Value
    from reverie.settings import Settings

__all__ = ["config"]

config = typer.Typer(help="Look at the settings.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]


@config.command()
def show(
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those that differ from the default.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every setting in force, and where it comes from.

    Example: reverie config show --changed
    """
    with shown_errors():
        from reverie.settings import read_settings

        reading = read_settings()
        rows = [_row(reading, value) for value in reading.values() if value.changed or not changed]
        if json:
            print_json(rows)
            return
        print_table(
            ["setting", "value", "from"],
            [(row["setting"], _text(row["value"]), row["source"]) for row in rows],
        )


@config.command()
def check(
    file: Annotated[
        Optional[Path],  # noqa: UP045  typer reads this when it runs
        typer.Argument(help="A file to check by itself. Default: all that is in force here."),
    ] = None,
    json: Json = False,
) -> None:
    """Say "ok", or name everything that is wrong with the settings.

    Example: reverie config check reverie.yaml
    """
    from reverie.errors import InvalidSettingsError
    from reverie.settings import check_file, read_settings

    problems = []
    try:
        read_settings() if file is None else check_file(file)
    except InvalidSettingsError as error:
        problems = error.problems
    if json:
        from reverie.errors import shown

        print_json(
            [
                {
                    "where": problem.where,
                    "setting": problem.setting,
                    "value": shown(problem.value) if problem.setting else None,
                    "reason": problem.reason,
                }
                for problem in problems
            ]
        )
    elif not problems:
        typer.echo("ok")
    for problem in problems if not json else []:
        typer.secho(f"error: {problem}", fg=typer.colors.RED, err=True)
    if problems:
        raise typer.Exit(1)


def _row(reading: Reading[Settings], value: Value) -> dict[str, Any]:
    """One setting; a URL that is not set is shown as what it then is."""
    from reverie.errors import redacted

    settings = reading.settings
    followed = {"queue.url": settings.queue_url, "memory.url": settings.memory_url}
    held = followed.get(value.field.name, value.value)
    if value.field.secret and held is not None:
        held = "(hidden)"
    if isinstance(held, Path):
        held = str(held)
    return {
        "setting": value.field.name,
        "value": redacted(held) if isinstance(held, str) else held,
        "source": value.source,
        "changed": value.changed,
    }


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
