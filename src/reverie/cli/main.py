"""The commands of `reverie`."""

from __future__ import annotations

import io
import os
import shlex
import sys
from typing import Annotated, Optional

import typer

from reverie.cli.app import scheduler_of
from reverie.cli.commands import (
    act,
    capture,
    dead,
    embeddings,
    evaluate,
    events,
    extract,
    index,
    install,
    keys,
    look,
    memories,
    redis,
    search,
    send,
    sessions,
    storage,
    transfer,
    triggers,
    upkeep,
    waiting,
    webhooks,
)
from reverie.cli.commands.config import config
from reverie.cli.commands.hook import hook
from reverie.cli.commands.keys import audit
from reverie.cli.commands.mcp import mcp
from reverie.cli.commands.sessions import timeline
from reverie.cli.commands.statistics import statistics
from reverie.cli.commands.usage import usage
from reverie.cli.commands.worker import worker_cli
from reverie.cli.doctor.command import doctor
from reverie.cli.options import App, Json, Url
from reverie.cli.output import note, print_json, print_table, set_up_logs, show_error, shown_errors

__all__ = ["main"]

cli = typer.Typer(
    name="reverie",
    help="The memory scheduler for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (send, search, look, waiting, events, act, transfer, evaluate, install):
    cli.add_typer(part.commands)
cli.add_typer(capture.commands, name="capture")
cli.add_typer(dead.commands, name="dead")
cli.add_typer(triggers.commands, name="triggers")
cli.add_typer(config, name="config")
cli.add_typer(embeddings.commands, name="embeddings")
cli.add_typer(extract.commands, name="extract")
cli.add_typer(index.commands, name="index")
cli.add_typer(keys.commands, name="keys")
cli.add_typer(memories.commands, name="memories")
cli.add_typer(redis.commands, name="redis")
cli.add_typer(sessions.commands, name="sessions")
cli.add_typer(storage.commands, name="storage")
cli.add_typer(webhooks.commands, name="webhooks")
cli.add_typer(upkeep.commands, name="upkeep")
cli.add_typer(worker_cli, name="worker")
cli.command()(doctor)
cli.command()(statistics)
cli.command()(timeline)
cli.command()(usage)
cli.command()(hook)
cli.command()(mcp)
cli.command()(audit)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["hook"] and "--help" not in sys.argv and "-h" not in sys.argv:
        hook(sys.argv[2:])  # it never fails, whatever the words are
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an old terminal shows \\u2026 instead of failing
    if any("\udc80" <= letter <= "\udcff" for word in sys.argv for letter in word):
        show_error("the command line is not valid UTF-8")
        sys.exit(2)
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
        from reverie.base.own_process import freeze_heap, set_up_process
        from reverie.cli.reload import Reloader
        from reverie.cli.signals import Hangups
        from reverie.errors import redacted
        from reverie.server import serve as run_server

        set_up_process()
        set_up_logs()
        scheduler = scheduler_of(url, app, runs=True)
        scheduler.runtime.command_line = shlex.join(["reverie", *sys.argv[1:]])
        server = scheduler.runtime.settings.server
        hangups, reloader = Hangups(), Reloader(scheduler.runtime)

        def begin() -> None:
            hangups.follow(reloader.reload)
            freeze_heap()

        run_server(
            scheduler.asynchronous,
            host=host or server.host,
            port=server.port if port is None else port,
            run_worker=server.run_worker,
            announce=lambda address: note(
                f"Reverie is listening on {address} (process {os.getpid()}), "
                f"data in {redacted(scheduler.runtime.settings.queue_url)}"
            ),
            on_start=begin,
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
        from reverie.assembly import ROOMS
        from reverie.storage.salvage import salvage as save

        tables = save(damaged, saved, ROOMS)
        if json:
            print_json(tables)
            return
        print_table(["table", "rows saved", "not readable"], [(t.table, t.rows, t.lost) for t in tables])
