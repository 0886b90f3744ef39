"""The commands of `reverie config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.output import note, print_json, print_table, say, show_error, shown_errors

if TYPE_CHECKING:
    from reverie.cli.reload import Reloaded
    from reverie.configuration.reading import Reading, Value
    from reverie.settings import Settings

__all__ = ["config"]

config = typer.Typer(help="Look at the settings, and let them be read anew.", no_args_is_help=True)

NOT_RUNNING = 3
"""The exit code of `config reload` if no worker runs in the background."""

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
        show_error(str(problem))
    if problems:
        raise typer.Exit(1)


@config.command()
def reload(json: Json = False) -> None:
    """Let the worker in the background read its settings anew, and bring the section scheduler into force.

    Settings of other sections need a restart; those that differ are named. Bad settings are refused, and the
    old ones stay in force: exit code 1. Exit code 3 if no worker runs in the background. A worker in the
    foreground and a server do the same when they get the signal SIGHUP.

    Example: reverie config reload
    """
    with shown_errors():
        from reverie.cli.app import settings_or_default
        from reverie.cli.daemon.control import reload as reload_daemon
        from reverie.cli.daemon.state import Daemon

        state = reload_daemon(Daemon(settings_or_default().data_dir))
        if state is None or state.reloaded is None:
            if json:
                print_json({"status": "not_running"})
            else:
                show_error(
                    "no worker is running in the background; a server or worker elsewhere: kill -HUP PID"
                )
            raise typer.Exit(NOT_RUNNING)
        answer = state.reloaded
        status = "refused" if answer.problems else "reloaded"
        if json:
            from msgspec.structs import asdict

            print_json({"status": status, "pid": state.pid, **asdict(answer)})
        else:
            _tell(state.pid, answer)
        if answer.problems or answer.not_in_force:
            raise typer.Exit(1)


def _tell(pid: int, answer: Reloaded) -> None:
    """Print the result of a reload in words."""
    if answer.problems:
        for problem in answer.problems:
            show_error(problem)
        note(f"the worker (process {pid}) goes on with the settings that it has")
        return
    says = "scheduler says something new" if answer.changed else "scheduler says the same as before"
    say(f"the worker (process {pid}) has read its settings anew: {says}")
    if answer.not_in_force:
        show_error(f"what scheduler says is not in force: {answer.not_in_force}")
    if answer.need_restart:
        names = ", ".join(answer.need_restart)
        note(f"these differ, too, and need a restart (reverie worker restart): {names}")


def _row(reading: Reading[Settings], value: Value) -> dict[str, Any]:
    """One setting as a row; a URL that is not set is shown with the default in force."""
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
