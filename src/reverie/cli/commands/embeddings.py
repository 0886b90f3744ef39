"""The commands of `reverie embeddings`: show the embedders, fetch one, and choose one."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.commands.waiting import progress
from reverie.cli.options import Json
from reverie.cli.output import note, print_json, print_table, say, shown_errors

if TYPE_CHECKING:
    from reverie.memory.interface import IndexProgress
    from reverie.models.fetching import Fetchable
    from reverie.models.onnx import ModelFiles
    from reverie.settings import Settings

__all__ = ["commands", "embedder_in_use", "has_memories"]

commands = typer.Typer(help="Choose what turns texts into vectors for search.", no_args_is_help=True)

EMBEDDING, PATH = ("memory", "embedding"), ("memory", "embedding_path")
COLUMNS = ("name", "in use", "state", "dimensions", "size", "about", "to get it")


@commands.command("list")
def list_embedders(json: Json = False) -> None:
    """Show the embedders that there are, which one is in use, and what to type to get the others.

    No model is loaded.

    Example: reverie embeddings list
    """
    with shown_errors():
        from reverie.settings import load_settings

        rows = _rows(load_settings())
        if json:
            print_json(rows)
            return
        print_table(
            COLUMNS,
            [
                (
                    row["name"],
                    "yes" if row["in_use"] else "",
                    row["state"],
                    row["dimensions"],
                    f"{row['size_bytes'] / 1e6:.0f} MB" if row["size_bytes"] else "",
                    row["about"],
                    row["to_get"],
                )
                for row in rows
            ],
        )


@commands.command()
def fetch(
    name: Annotated[str, typer.Argument(help="e5-small, bge-small-en, minilm or bge-small-zh.")],
    json: Json = False,
) -> None:
    """Fetch a model with Maven into the folder embeddings of the data folder. Nothing else changes.

    A model that is there already is not fetched again.

    Example: reverie embeddings fetch e5-small
    """
    with shown_errors():
        from reverie.models.fetching import fetch as fetch_model
        from reverie.models.fetching import fetched
        from reverie.settings import load_settings

        model, folder = _fetchable(name), _folder(load_settings())
        files = fetched(model, folder)
        status = "present" if files else "fetched"
        if files is None:
            with progress(f"fetching {model.artifact}", hidden=json, counts=False) as shown:
                shown.add_task("", total=None)
                files = fetch_model(model, folder)
        if json:
            print_json(
                {
                    "name": name,
                    "status": status,
                    "path": str(files.place),
                    "size_bytes": files.size_bytes,
                    "dimensions": model.dimensions,
                }
            )
            return
        say(f"{status} {name}: {files.place}")
        note(f"to use it: reverie embeddings use {name}")


@commands.command()
def use(
    name: Annotated[
        str,
        typer.Argument(
            help="A name of `reverie embeddings list`, the folder or jar of an ONNX model, or module:factory."
        ),
    ],
    json: Json = False,
) -> None:
    """Set memory.embedding and memory.embedding_path in the reverie.yaml in force.

    The embedder is tried first. The file is copied before it is changed, and what changes is shown. Without a
    file, one is created in the configuration folder. Processes that run need a restart.

    Example: reverie embeddings use e5-small
    """
    with shown_errors():
        from reverie.settings import load_settings

        values = _values(name, load_settings())
        _refuse_environment(values)
        dimensions = _try_out(values)
        path, backup, diff = _write(values)
        if not json:
            _tell(name, path, backup, diff)
            _index_now(json=False)
            return
        about = {"name": name, "dimensions": dimensions, "file": str(path), "changed": bool(diff)}
        copy = str(backup) if backup else None
        print_json({**about, "backup": copy, "diff": diff, "index": _index_now(json=True)})


def _index_now(*, json: bool) -> IndexProgress | None:
    """Make the vectors of all memories with the embedder that is now in force.

    A worker that runs still has the embedder of before, and would make its vectors again: it is left to
    index after its restart. None if there is nothing to index, or not now.
    """
    from reverie.cli.app import scheduler_of
    from reverie.cli.commands.index import index_all, index_progress, run_index
    from reverie.errors import ReverieError

    try:
        with scheduler_of(None, None).used() as scheduler:
            if not has_memories(scheduler.runtime.settings):
                return None
            state = index_progress(scheduler)
            if state is None or not state.left:
                return state
            if scheduler.observe.health().workers:
                note("a worker runs: it indexes all memories anew after reverie worker restart")
                return state
            return index_all(scheduler, hidden=True) if json else run_index(scheduler)
    except ReverieError as error:
        note(f"the memories are not indexed anew yet: {error}\na worker does it, or reverie index run")
        return None


def has_memories(settings: Settings) -> bool:
    """Whether there is a store of memories that outlives this command."""
    from reverie.storage.location import IN_MEMORY, plain_url, sqlite_path

    if settings.memory.store is not None:
        return True
    if not plain_url(settings.memory_url).startswith("sqlite:"):
        return False
    path = sqlite_path(settings.memory_url)
    return path != IN_MEMORY and Path(path).is_file()


# -- what there is ---------------------------------------------------------------------------------------


def _rows(settings: Settings) -> list[dict[str, Any]]:
    """One row for each embedder that is known, and one for an embedder of the user's that is in use."""
    from reverie.models.fetching import FETCHABLE, fetched

    memory, folder = settings.memory, _folder(settings)
    here = {name: fetched(model, folder) for name, model in FETCHABLE.items()}
    used = _used(settings, here)
    rows = [_wordllama_row()]
    for name, model in FETCHABLE.items():
        files = here[name]
        runs = find_spec("onnxruntime") is not None
        state = "not fetched" if files is None else "fetched" if runs else "fetched, not installed"
        ways = [] if files else [f"reverie embeddings fetch {name}"]
        ways += [] if runs else ["pip install 'reverie[onnx]'"]
        rows.append(
            _row(
                name,
                state,
                dimensions=model.dimensions,
                size_bytes=model.size_bytes,
                about=model.about,
                to_get="; ".join(ways),
            )
        )
    client = find_spec("openai") is not None
    rows.append(
        _row(
            "openai",
            "installed" if client else "not installed",
            about=f"{memory.embedding_model}, by HTTP; texts leave this machine",
            to_get="" if client else "pip install 'reverie[openai]'",
        )
    )
    rows.append(_row("none", "", about="search by words alone"))
    if used not in {row["name"] for row in rows}:
        rows.append(_row(used, "yours"))
    for row in rows:
        row["in_use"] = row["name"] == used
    return rows


def embedder_in_use(settings: Settings) -> tuple[str, str, str]:
    """The embedder in use: its name, its state, and what to type to get it; nothing if it is there."""
    (row,) = (row for row in _rows(settings) if row["in_use"])
    return row["name"], row["state"], row["to_get"]


def _wordllama_row() -> dict[str, Any]:
    from reverie.models.wordllama import DIMENSIONS, WEIGHTS

    package = find_spec("wordllama")
    folders = list(package.submodule_search_locations or ()) if package else []
    weights = next((path for folder in folders if (path := Path(folder) / WEIGHTS).is_file()), None)
    return _row(
        "wordllama",
        "installed" if weights else "not installed" if package is None else "without weights",
        dimensions=DIMENSIONS,
        size_bytes=weights.stat().st_size if weights else None,
        about="English; the fastest, in the install",
        to_get="" if weights else "pip install --force-reinstall wordllama",
    )


def _row(
    name: str,
    state: str,
    *,
    dimensions: int | None = None,
    size_bytes: int | None = None,
    about: str = "",
    to_get: str = "",
) -> dict[str, Any]:
    about_it = {"dimensions": dimensions, "size_bytes": size_bytes, "about": about, "to_get": to_get}
    return {"name": name, "in_use": False, "state": state, **about_it}


def _used(settings: Settings, here: dict[str, ModelFiles | None]) -> str:
    """The name, in this list, of the embedder in use."""
    memory = settings.memory
    if memory.embedding != "onnx" or memory.embedding_path is None:
        return memory.embedding
    path = memory.embedding_path.expanduser().resolve()
    ours = (name for name, files in here.items() if files and files.place.resolve() == path)
    return next(ours, str(path))


def _folder(settings: Settings) -> Path:
    """The folder that models are fetched into."""
    return settings.data_dir.expanduser().resolve() / "embeddings"


def _fetchable(name: str) -> Fetchable:
    from reverie.errors import InvalidSettingError
    from reverie.models.fetching import FETCHABLE

    if name not in FETCHABLE:
        raise InvalidSettingError("NAME", name, f"must be one of {', '.join(FETCHABLE)}")
    return FETCHABLE[name]


# -- choosing one ----------------------------------------------------------------------------------------


def _values(name: str, settings: Settings) -> dict[str, str | None]:
    """The settings that choose an embedder."""
    from reverie.assembly import EMBEDDERS
    from reverie.errors import InvalidSettingError
    from reverie.models.fetching import FETCHABLE, FetchError

    if name in FETCHABLE:
        path = _folder(settings) / FETCHABLE[name].file_name
        if not path.is_file():
            raise FetchError(f"{name} is not here yet: reverie embeddings fetch {name}")
        return {"embedding": "onnx", "embedding_path": str(path)}
    if name in EMBEDDERS and name != "onnx":
        return {"embedding": name, "embedding_path": None}
    if Path(name).expanduser().exists():
        return {"embedding": "onnx", "embedding_path": str(Path(name).expanduser().resolve())}
    if ":" in name:
        return {"embedding": name, "embedding_path": None}
    known = ", ".join([*(each for each in EMBEDDERS if each != "onnx"), *FETCHABLE])
    reason = f"must be one of {known}, the folder or jar of an ONNX model, or module:factory"
    raise InvalidSettingError("NAME", name, reason)


def _refuse_environment(values: dict[str, str | None]) -> None:
    """Refuse if a variable sets what the file is to say, because the variable would win."""
    from reverie.errors import InvalidSettingError
    from reverie.settings import read_settings

    reading = read_settings()
    for source in reading.sources:
        for place in (EMBEDDING, PATH):
            if source.name == "environment" and source.sets(place):
                reason = (
                    "is set by this variable, which wins over the file; nothing was changed. "
                    f"Unset the variable, or set it to {values[place[1]] or 'null'}"
                )
                value = getattr(reading.settings.memory, place[1])
                raise InvalidSettingError(".".join(place), str(value), reason, source.where(place))


def _try_out(values: dict[str, str | None]) -> int | None:
    """Embed one text with these settings; the number of dimensions, None without an embedder."""
    import asyncio
    import sys

    from reverie.assembly import new_models
    from reverie.settings import load_settings

    if "" not in sys.path:
        sys.path.insert(0, "")  # an embedder of the user's may be in the working folder
    models = new_models(load_settings(memory=values))
    if models.embedder_name is None:
        return None
    try:
        return int(asyncio.run(models.vectors(["hello"])).shape[1])
    finally:
        models.disconnect()


def _write(values: dict[str, str | None]) -> tuple[Path, Path | None, str]:
    """Change the settings file; answer the file, its copy, and what has changed; no copy if nothing has."""
    import difflib

    from reverie.configuration.editing import with_values
    from reverie.settings import check_file, default_settings_file, settings_file

    path = (settings_file() or default_settings_file()).resolve()
    exists = path.is_file()
    before = path.read_bytes().decode() if exists else ""
    after = with_values(before, "memory", values, str(path))
    if before == after:
        return path, None, ""
    diff = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"{path} before", str(path)
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(after.encode())
        check_file(new)
        backup = _copy(path) if exists else None
        if exists:
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path, backup, diff


def _copy(path: Path) -> Path:
    """Copy the file to a name beside it that is not taken."""
    number = 0
    while True:
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        if not backup.exists():
            shutil.copy2(path, backup)
            return backup
        number += 1


def _tell(name: str, path: Path, backup: Path | None, diff: str) -> None:
    if not diff:
        say(f"{path} says so already: {name} is in use")
        return
    say(diff.rstrip("\n"))
    say(f"{name} is in use from the next start on; what runs needs a restart: reverie worker restart")
    note(f"to undo: {f'cp {backup} {path}' if backup else f'rm {path}'}")
