"""The commands `export` and `import`: memories as JSON Lines."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.app import opened_memory
from reverie.cli.commands.waiting import progress
from reverie.cli.options import AnyUser, Json, OfCube, Text, Url
from reverie.cli.output import memories, note, plain, print_json, say, show_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reverie.face.scheduler import Scheduler
    from reverie.memory.transfer import Importer, Place

__all__ = ["commands"]

commands = typer.Typer()

PRIVATE = 0o600
"""The mode of a new file: it says what users have said."""


@commands.command("export")
def export_memories(
    file: Annotated[str, typer.Argument(help="The file to write; - is standard output.")] = "-",
    *,
    user: AnyUser = None,
    cube: OfCube = None,
    with_superseded: Annotated[
        bool,
        typer.Option("--with-superseded/--no-superseded", help="Also memories that others have superseded."),
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a file that is partly written.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Write all memories, or those of a user or a cube, as JSON Lines.

    The first line names the format; each further line is one memory with its links.

    Example: reverie export memories.jsonl

    Example: reverie export --user ann - | gzip > ann.jsonl.gz
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import InvalidSelectionError

        if file == "-" and (resume or overwrite or json):
            raise InvalidSelectionError("--resume, --overwrite and --json need a file to write")
        if resume and overwrite:
            raise InvalidSelectionError("--resume and --overwrite are opposites: leave one out")
        chosen = {"user_id": user, "mem_cube_id": cube, "with_superseded": with_superseded}
        scheduler.open()
        if file == "-":
            _write_header(sys.stdout.buffer)
            _export(scheduler, sys.stdout.buffer, None, chosen)
            sys.stdout.buffer.flush()
            return
        path = Path(file).expanduser()
        with _opened_file(path, resume=resume, overwrite=overwrite) as target:
            before, place = _look_for_place(path, target, user, cube) if resume else (0, None)
            if target.tell() == 0:
                _write_header(target)
            written = _export(scheduler, target, place, chosen, path=path, before=before, json=json)
            target.flush()
            os.fsync(target.fileno())
        if json:
            print_json({"file": str(path), "written": written, "written_before": before})
            return
        say(plain(f"exported {memories(written)} to {path}"))
        if before:
            note(f"there before: {memories(before)}")


@contextmanager
def _opened_file(path: Path, *, resume: bool, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open the file of an export; it must be new unless the command says otherwise."""
    from reverie.errors import InvalidSelectionError

    flags = os.O_RDWR | os.O_CREAT | (0 if resume else os.O_TRUNC if overwrite else os.O_EXCL)
    try:
        handle = os.open(path, flags, PRIVATE)
    except FileExistsError as error:
        raise InvalidSelectionError(
            f"{path} is there already: --resume goes on with it, --overwrite begins anew"
        ) from error
    except OSError as error:
        raise InvalidSelectionError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "r+b") as file:
        yield file


def _write_header(target: IO[bytes]) -> None:
    from reverie.memory.transfer import HEADER

    target.write(HEADER)


def _export(
    scheduler: Scheduler,
    target: IO[bytes],
    place: Place | None,
    chosen: dict[str, Any],
    *,
    path: Path | None = None,
    before: int = 0,
    json: bool = False,
) -> int:
    """Write the memories from a place on, page by page; the number of those written."""
    from reverie.base.escapes import escape_json
    from reverie.memory.interface import KeepsIndex
    from reverie.memory.transfer import encode_line, export_pages

    store = scheduler.runtime.store

    async def run(tell: Callable[[int, int | None], None]) -> int:
        total = None
        if chosen["user_id"] is None and chosen["mem_cube_id"] is None and isinstance(store, KeepsIndex):
            total = (await store.index_progress()).total
        written = 0
        async for page in export_pages(scheduler.runtime.reads, place=place, **chosen):
            for item in page:
                target.write(escape_json(encode_line(item)))
            target.flush()
            written += len(page)
            tell(before + written, total)
        return written

    with progress(f"exporting to {path}", hidden=json or path is None) as shown:
        bar = shown.add_task("", total=None)
        return scheduler.run(run(lambda done, total: shown.update(bar, completed=done, total=total)))


def _look_for_place(
    path: Path, file: IO[bytes], user: str | None, cube: str | None
) -> tuple[int, Place | None]:
    """How many memories a file has, and where it ends; a line that is cut off is removed."""
    from reverie.errors import InvalidDataError, InvalidSelectionError, ReverieError
    from reverie.memory.transfer import Place, check_header, read_line

    end = count = 0
    place: Place | None = None
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        try:
            if number == 1:
                check_header(line)
            else:
                item = read_line(line)
                count += 1
                here = (item.user_id, item.mem_cube_id)
                is_same = place is not None and (place.tenant, place.created_at) == (here, item.created_at)
                written = place.written if place is not None and is_same else frozenset[str]()
                place = Place(here, item.created_at, written | {item.id})
        except (ValueError, ReverieError) as error:
            raise InvalidDataError(path, "", f"line {number} {error}; nothing was written") from error
        end += len(line)
    if place is not None and (user not in {None, place.tenant[0]} or cube not in {None, place.tenant[1]}):
        raise InvalidSelectionError(
            f"{path} has memories of others: resume with the --user and --cube that began it"
        )
    file.seek(end)
    file.truncate()
    return count, place


@commands.command("import")
def import_memories(
    file: Annotated[str, typer.Argument(help="A file that export has written; - is standard input.")],
    *,
    user: Annotated[
        Text, typer.Option("--user", "-u", help="Import as this user. Default: as it was.")
    ] = None,
    cube: Annotated[Text, typer.Option("--cube", help="Import into this cube. Default: as it was.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Read memories that export has written. It may be repeated, and go on after it was broken off.

    A memory that is there with the same id and text is skipped. One whose id has another text, one that was
    deleted, and a line that cannot be read are reported; the rest goes on. Exit code 1 if there was any.

    Example: reverie import memories.jsonl

    Example: gunzip < ann.jsonl.gz | reverie import - --user bob
    """
    with opened_memory(url, makes=True) as scheduler, _source(file) as source:
        from reverie.memory.transfer import Importer

        scheduler.open()
        name = "standard input" if file == "-" else file

        def report(line: int, reason: str) -> None:
            show_error(f"{plain(name)} line {line}: {plain(reason)}")

        importer = Importer(
            scheduler.runtime.store, scheduler.runtime.limits, report, user_id=user, mem_cube_id=cube
        )
        _check_begin(source, name)
        for title, work in (("memories", importer.write_items), ("links", importer.write_links)):
            with progress(f"importing {title}, bytes", hidden=json) as shown:
                _pass_through(scheduler, source, work, shown)
        _tell(importer, json=json)
        if importer.failed:
            raise typer.Exit(1)


@contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    """The file to import; what can be read only once is copied first, because it is read twice."""
    import shutil
    import tempfile

    from reverie.errors import InvalidSelectionError

    try:
        given = sys.stdin.buffer if file == "-" else Path(file).expanduser().open("rb")
    except OSError as error:
        raise InvalidSelectionError(f"{file} cannot be read: {error.strerror}") from error
    if file != "-" and given.seekable():
        with given:
            yield given
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(given, copy)
        yield copy


def _check_begin(source: IO[bytes], name: str) -> None:
    from reverie.errors import InvalidDataError, ReverieError
    from reverie.memory.transfer import check_header

    source.seek(0)
    try:
        check_header(source.readline())
    except ReverieError as error:
        raise InvalidDataError(name, "", f"{error}; nothing was imported") from error


def _pass_through(scheduler: Scheduler, source: IO[bytes], work: Callable[..., Any], shown: Any) -> None:
    """Hand the lines after the first to `work`, batch by batch."""
    from reverie.memory.transfer import BATCH

    bar = shown.add_task("", total=source.seek(0, os.SEEK_END))
    source.seek(0)
    lines = enumerate(iter(source.readline, b""), 1)
    next(lines)
    while batch := list(islice(lines, BATCH)):
        scheduler.run(work(batch))
        shown.update(bar, completed=source.tell())


def _tell(importer: Importer, *, json: bool) -> None:
    counts = {
        "imported": importer.written,
        "present": importer.present,
        "failed": importer.failed,
        "links_left_out": importer.links_left_out,
    }
    if json:
        print_json(counts)
        return
    say(f"imported {memories(importer.written)}")
    if importer.present:
        note(f"there before: {memories(importer.present)}")
    if importer.links_left_out:
        note(f"links that lead to no memory, and were left out: {importer.links_left_out}")
    if importer.failed:
        note(f"lines that were not imported as they were, see above: {importer.failed}")
