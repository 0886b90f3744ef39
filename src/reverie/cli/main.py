"""The commands of `reverie`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.config import config
from reverie.cli.output import print_json, print_table, set_up_logs, shown_errors

if TYPE_CHECKING:
    from reverie.scheduler import Scheduler

__all__ = ["main"]

cli = typer.Typer(
    name="reverie",
    help="The memory scheduler for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(config, name="config")

Url = Annotated[
    Optional[str],  # noqa: UP045  typer reads this when it runs
    typer.Option("--url", help="The queue: sqlite:///path, redis://host:port/db. Default: the settings."),
]
App = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--app", help="module:attribute of the scheduler that holds your handlers."),
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
User = Annotated[str, typer.Option("--user", "-u", help="The user's id.")]
Cube = Annotated[str, typer.Option("--cube", help="The cube. Default: the user's own.")]


def main() -> None:
    """Run the command line."""
    cli()


def _show_version(wanted: bool) -> None:
    if wanted:
        from reverie.version import __version__

        typer.echo(f"reverie {__version__}")
        raise typer.Exit


@cli.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The memory scheduler for AI agents."""


@cli.command()
def serve(
    url: Url = None,
    app: App = None,
    host: Annotated[Optional[str], typer.Option(help="Address. Default 127.0.0.1.")] = None,  # noqa: UP045
    port: Annotated[Optional[int], typer.Option(help="Port; 0 picks a free one. Default 8000.")] = None,  # noqa: UP045
) -> None:
    """Start the HTTP server, with a worker in it.

    Example: reverie serve --port 8080
    """
    with shown_errors():
        from reverie.api.app import serve as run_server
        from reverie.errors import redacted

        set_up_logs()
        scheduler = _scheduler(url, app)
        server = scheduler.runtime.settings.server
        run_server(
            scheduler.asynchronous,
            host=host or server.host,
            port=server.port if port is None else port,
            run_worker=server.run_worker,
            announce=lambda address: typer.echo(
                f"Reverie is listening on {address} (process {os.getpid()}), "
                f"data in {redacted(scheduler.runtime.settings.queue_url)}",
                err=True,
            ),
        )


@cli.command()
def worker(
    url: Url = None,
    app: App = None,
    drain: Annotated[bool, typer.Option("--drain", help="Run what is ready now, then end.")] = False,
    processes: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1, help="Worker processes to keep running. Default: the setting worker.processes, 1."
        ),
    ] = None,
    lifeline: Annotated[Optional[int], typer.Option(hidden=True)] = None,  # noqa: UP045
) -> None:
    """Run handlers until it is stopped (Ctrl-C or SIGTERM), without a server.

    Example: reverie worker --app app:scheduler --processes 4
    """
    with shown_errors():
        import asyncio

        from reverie.cli.worker import run_until_drained, run_until_stopped, start_anew
        from reverie.runtime import Runtime

        set_up_logs()
        Runtime.runs_here = True
        scheduler = _scheduler(url, app)
        if drain:
            asyncio.run(run_until_drained(scheduler.asynchronous))
        elif lifeline is None and (processes or scheduler.runtime.settings.worker.processes) > 1:
            asyncio.run(_supervise(scheduler, url, app, processes))
        elif asyncio.run(run_until_stopped(scheduler.asynchronous, lifeline)):
            start_anew()


@cli.command()
def submit(
    label: Annotated[str, typer.Argument(help="What kind of work.")],
    content: Annotated[str, typer.Argument(help="JSON or text for the handler; - reads standard input.")],
    *,
    user: User,
    cube: Cube = "",
    item_id: Annotated[Optional[str], typer.Option("--item-id", help="Makes a repeat safe.")] = None,  # noqa: UP045
    task_id: Annotated[Optional[str], typer.Option("--task-id", help="The business task.")] = None,  # noqa: UP045
    url: Url = None,
    json: Json = False,
) -> None:
    """Hand a message over; when this returns it is kept.

    Example: reverie submit export '{"doc": 7}' --user ann
    """
    with shown_errors(), _scheduler(url, None).used() as scheduler:
        receipt = scheduler.submit(
            label, user_id=user, content=_content(content), mem_cube_id=cube, item_id=item_id, task_id=task_id
        )
        _print_receipt(receipt, json=json)


@cli.command()
def add(
    text: Annotated[str, typer.Argument(help="What to remember; - reads standard input.")],
    *,
    user: User,
    cube: Cube = "",
    session: Annotated[Optional[str], typer.Option("--session", help="The conversation.")] = None,  # noqa: UP045
    item_id: Annotated[Optional[str], typer.Option("--item-id", help="Makes a repeat safe.")] = None,  # noqa: UP045
    url: Url = None,
    json: Json = False,
) -> None:
    """Remember something; a running server or worker makes it searchable.

    Example: reverie add "I moved to Lisbon in May" --user ann
    """
    with shown_errors(), _scheduler(url, None).used() as scheduler:
        receipt = scheduler.memory.add(
            _content(text), user_id=user, mem_cube_id=cube, session_id=session, item_id=item_id
        )
        _print_receipt(receipt, json=json)


@cli.command()
def status(
    task_id: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="An item id or a business task id. Default: all of the user."),
    ] = None,
    *,
    user: User,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show how messages stand.

    Example: reverie status --user ann
    """
    with shown_errors(), _scheduler(url, None).used() as scheduler:
        from reverie.clock import from_epoch_ms

        rows = scheduler.status(user, task_id)
        if json:
            print_json(rows)
            return
        print_table(
            ["item", "label", "status", "attempts", "submitted", "error"],
            [
                (
                    row.item_id,
                    row.task_type,
                    row.status,
                    row.attempts,
                    from_epoch_ms(row.submitted_at).strftime("%Y-%m-%d %H:%M:%S"),
                    _last_line(row.error),
                )
                for row in rows
            ],
        )


@cli.command()
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
    with shown_errors(), _scheduler(url, None).used() as scheduler:
        hits = scheduler.memory.search(query, user_id=user, mem_cube_ids=[cube] if cube else [], limit=limit)
        if json:
            print_json(hits)
            return
        print_table(
            ["score", "memory", "source"],
            [(f"{hit.score:.2f}", hit.text, ", ".join(s.item_id for s in hit.sources)) for hit in hits],
        )


@cli.command()
def salvage(
    damaged: Annotated[str, typer.Argument(help="The damaged SQLite file; no process may use it.")],
    saved: Annotated[str, typer.Argument(help="The file to create.")],
    json: Json = False,
) -> None:
    """Copy what can be read of a damaged database into a new one.

    Example: reverie salvage reverie.db saved.db
    """
    with shown_errors():
        from reverie.salvage import salvage as save

        tables = save(damaged, saved)
        if json:
            print_json(tables)
            return
        print_table(["table", "rows saved", "not readable"], [(t.table, t.rows, t.lost) for t in tables])


async def _supervise(scheduler: Scheduler, url: str | None, app: str | None, processes: int | None) -> None:
    """Keep worker processes running. That the scheduler could be loaded says that they can do so too."""
    from reverie.cli.supervisor import supervise
    from reverie.dispatch.supervisor import Supervisor
    from reverie.errors import InvalidSettingError

    settings = scheduler.runtime.settings
    count = processes or settings.worker.processes
    if settings.queue_url.startswith("memory:"):
        raise InvalidSettingError(
            "worker.processes", count, "memory:// lives in one process: there is only 1"
        )
    options = {"--url": url, "--app": app}
    arguments = [text for name, value in options.items() if value is not None for text in (name, value)]
    await supervise(Supervisor(arguments, processes=count), settings.worker.grace_s)


def _scheduler(url: str | None, app: str | None) -> Scheduler:
    from reverie.cli.app import load_app
    from reverie.errors import InvalidSettingError, redacted
    from reverie.scheduler import Scheduler
    from reverie.settings import load_settings

    settings = load_settings()
    if app is not None and url is not None:
        raise InvalidSettingError(
            "--url", redacted(url), "the scheduler of --app has a queue of its own; leave one out"
        )
    app = app or settings.app
    if app is None or url is not None:
        return Scheduler(url, settings=settings)
    scheduler = load_app(app)
    scheduler.runtime.app = app
    return scheduler


def _content(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else ""


def _print_receipt(receipt: Any, *, json: bool) -> None:
    if json:
        print_json(receipt)
    else:
        typer.echo(f"{receipt.status} {receipt.item_id}")
    if receipt.status == "conflict":
        typer.secho(
            "error: this id is taken by another message of this user; nothing was changed",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)
