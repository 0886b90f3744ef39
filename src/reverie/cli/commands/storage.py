"""The commands of `reverie storage`: show what takes room, and give back what is not needed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.commands.waiting import progress
from reverie.cli.options import Json, Url
from reverie.cli.output import note, print_json, print_table, say, shown_errors

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from reverie.backends.redis import ServerUsage
    from reverie.settings import Settings
    from reverie.storage.compaction import Compaction, FileUsage

__all__ = ["commands"]

commands = typer.Typer(help="Show what takes room, and give back what is not needed.")

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
STEP = 1024
MOST_SHOWN = 15
"""The most tables and indexes of a file that are shown to people; JSON has all."""


@commands.callback(invoke_without_command=True)
def show(context: typer.Context, url: Url = None, json: Json = False) -> None:
    """Show what takes room: tables, indexes, empty pages, log, spool, log files; keys on Redis.

    All pages of a file are read once; nobody is held up.

    Example: reverie storage
    """
    if context.invoked_subcommand is not None:
        return
    with shown_errors():
        from reverie.storage.compaction import look_into

        settings = _settings_of(url)
        busy_s = settings.queue.busy_timeout_s
        files = [look_into(path, busy_s) for path in _files(settings)]
        server = _measure_server(settings)
        folders = {"spool": _folder(settings.spool_dir), "logs": _folder(settings.data_dir / "logs")}
        if json:
            print_json({"files": files, "redis": server, "folders": folders})
            return
        for file in files:
            _show_file(file)
        if server is not None:
            _show_server(server)
        rows = [
            (name, found["path"], found["files"], _size(found["bytes"])) for name, found in folders.items()
        ]
        print_table(["folder", "path", "files", "size"], rows)


@commands.command()
def compact(
    url: Url = None,
    long: Annotated[
        bool, typer.Option("--long", help="Also if writers would wait longer than queue.busy_timeout_s.")
    ] = False,
    json: Json = False,
) -> None:
    """Give the empty pages of the SQLite files back to the disk. Workers may go on meanwhile.

    A file is written anew. Readers go on, and writers wait for as long as that takes: about a second for each
    100 MB that the file contains. Redis gives memory back by itself.

    Example: reverie storage compact
    """
    with shown_errors():
        from reverie.errors import BackendUnavailableError
        from reverie.storage.compaction import compact as write_anew
        from reverie.storage.compaction import expected_wait_s

        settings = _settings_of(url)
        busy_s = settings.queue.busy_timeout_s
        files = _files(settings)
        waits = {path: expected_wait_s(path, busy_s) for path in files}
        for path, wait_s in waits.items():
            if wait_s > busy_s and not long:
                raise BackendUnavailableError(
                    f"{path}: writers may have to wait {wait_s:.0f} s, longer than queue.busy_timeout_s = "
                    f"{busy_s:g} s: workers would pause, and submits would be refused meanwhile. "
                    "If that is all right: reverie storage compact --long"
                )
        done = []
        for path, wait_s in waits.items():
            with progress(f"compacting {path}", hidden=json) as shown:
                bar = shown.add_task("", total=max(1, round(wait_s)))
                done.append(write_anew(path, busy_s, partial(_advance, shown, bar)))
        if json:
            print_json(done)
            return
        if not done:
            note("there is no SQLite file to compact")
        for file in done:
            _report(file)


def _advance(shown: Progress, bar: TaskID, seconds: float) -> None:
    shown.update(bar, completed=round(seconds))


def _settings_of(url: str | None) -> Settings:
    """The settings in force, with the queue at `url` if it is given."""
    from reverie.cli.app import scheduler_to_look

    return scheduler_to_look(url).runtime.settings


def _files(settings: Settings) -> list[str]:
    """The SQLite files of queue and memory that exist."""
    from reverie.storage.location import IN_MEMORY, sqlite_path

    urls = [url for url in (settings.queue_url, settings.memory_url) if url.startswith("sqlite:")]
    paths = dict.fromkeys(sqlite_path(url) for url in urls)
    return [path for path in paths if path != IN_MEMORY and Path(path).is_file()]


def _measure_server(settings: Settings) -> ServerUsage | None:
    if not settings.queue_url.startswith(("redis://", "rediss://", "unix://")):
        return None
    import asyncio

    from reverie.backends.redis import measure_server

    return asyncio.run(measure_server(settings.queue_url, prefix=settings.queue.redis_prefix))


def _folder(path: Path) -> dict[str, Any]:
    """How many files a folder has, also inside of other folders, and their bytes."""
    sizes = []
    for file in path.rglob("*") if path.is_dir() else ():
        try:
            if file.is_file():
                sizes.append(file.stat().st_size)
        except OSError:
            continue  # taken away meanwhile
    return {"path": str(path), "files": len(sizes), "bytes": sum(sizes)}


def _show_file(file: FileUsage) -> None:
    say(
        f"{file.path}: {_size(file.file_bytes)}, of which {_size(file.free_bytes)} are empty; "
        f"log {_size(file.log_bytes)}"
    )
    print_table(
        ["name", "kind", "rows", "size"],
        [(part.name, part.kind, part.rows, _size(part.bytes)) for part in file.parts[:MOST_SHOWN]],
    )


def _show_server(server: ServerUsage) -> None:
    def size(number: int | None) -> str:
        return "unknown" if number is None else _size(number)

    limit = f" of {size(server.max_memory_bytes)}" if server.max_memory_bytes else ""
    keys = "unknown" if server.keys is None else server.keys
    say(f"the server uses {size(server.memory_bytes)}{limit} of memory; keys of its database: {keys}")
    rows = [(part.key, part.entries, size(part.bytes)) for part in server.parts]
    print_table(["key", "entries", "size"], rows)


def _report(file: Compaction) -> None:
    say(
        f"{file.path}: {_size(file.bytes_before)} → {_size(file.bytes_after)}; "
        f"writers waited at most {file.writers_waited_s:.1f} s"
    )


def _size(number: float) -> str:
    """A number of bytes for people."""
    for unit in UNITS[:-1]:
        if number < STEP:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= STEP
    return f"{number:.1f} {UNITS[-1]}"
