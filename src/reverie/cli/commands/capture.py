"""The commands of `reverie capture`: whether hooks of agents capture anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.options import Json
from reverie.cli.output import note, plain, print_json, print_table, say, show_error, shown_errors

if TYPE_CHECKING:
    from reverie.capture.hook_settings import HookSettings
    from reverie.capture.project import Project
    from reverie.cli.agents.hook_file import HookFile

__all__ = ["commands"]

commands = typer.Typer(help="Switch the capture of agents' work off and on.", no_args_is_help=True)

OfProject = Annotated[bool, typer.Option("--project", help="Only for one project.")]
Folder = Annotated[
    Optional[Path],  # noqa: UP045  typer reads this when it runs
    typer.Argument(help="With --project: a folder of the project. Default: the working folder."),
]


@commands.command()
def off(folder: Folder = None, *, project: OfProject = False, json: Json = False) -> None:
    """Capture nothing from the next hook on, of all projects or of one. Agents go on as before.

    A project is off in all its clones and worktrees, and stays off if its folder is renamed.

    Example: reverie capture off --project
    """
    _switch(folder, of_project=project, to_on=False, json=json)


@commands.command()
def on(folder: Folder = None, *, project: OfProject = False, json: Json = False) -> None:
    """Capture again from the next hook on, of all projects that are not off, or of one.

    Example: reverie capture on --project
    """
    _switch(folder, of_project=project, to_on=True, json=json)


@commands.command()
def status(folder: Folder = None, *, project: OfProject = False, json: Json = False) -> None:
    """Show what is captured, what waits for a worker, and whether anything was lost.

    Example: reverie capture status
    """
    with shown_errors():
        from reverie.capture import hook_settings
        from reverie.cli.agents.hook_file import HookFile

        found = _project(folder, of_project=project)
        settings = hook_settings.load()
        about = _status(settings)
        if found is not None:
            about |= _status_of(settings, found, (folder or Path.cwd()).expanduser().absolute())
        if json:
            print_json(about)
            return
        rows = [(name.replace("_", " "), _text(value)) for name, value in about.items()]
        print_table(["what", "now"], rows)
        if settings.problem:
            show_error(f"{settings.problem}: nothing is captured")
        elif not HookFile().path.exists():
            note("hooks use their defaults: reverie install writes their settings")


def _switch(folder: Path | None, *, of_project: bool, to_on: bool, json: bool) -> None:
    with shown_errors():
        from reverie.cli.agents.hook_file import HookFile

        project = _project(folder, of_project=of_project)
        file = HookFile()
        with file.changing() as fields:
            if project is None:
                fields["enabled"] = to_on
            else:
                others = [key for key in fields.get("off_projects", []) if key not in project.keys]
                fields["off_projects"] = others if to_on else [*others, *project.keys]
            is_on = fields.get("enabled", True)
        _tell_settings(file)
        about = {"enabled": is_on}
        if json:
            print_json(about if project is None else {**about, "project": project.name, "captured": to_on})
            return
        what = "everything" if project is None else f"the project {project.name}"
        say(plain(f"the capture of {what} is {'on' if to_on else 'off'}, from the next hook on"))
        if project is not None and to_on and not is_on:
            note("the capture of everything is off: reverie capture on")


def _tell_settings(file: HookFile) -> None:
    """Write the other settings of hooks, too; if these are bad, hooks keep what they have."""
    from reverie.errors import ReverieError
    from reverie.settings import load_own_settings

    try:
        file.update(load_own_settings())
    except ReverieError as error:
        note(f"hooks keep their other settings, because the settings are bad: {error}")


def _project(folder: Path | None, *, of_project: bool) -> Project | None:
    """The project that is meant; None if all are."""
    if folder is None and not of_project:
        return None
    from reverie.capture.project import project_of
    from reverie.errors import InvalidSelectionError

    place = (folder or Path.cwd()).expanduser()
    if not place.is_dir():
        raise InvalidSelectionError(f"{place} is no folder: name a folder of the project")
    return project_of(str(place))


def _status(settings: HookSettings) -> dict[str, Any]:
    from reverie.cli.daemon.state import Daemon

    data = Path(settings.data_dir)
    return {
        "enabled": settings.enabled,
        "off_projects": settings.off_projects,
        "exclude_tools": settings.exclude_tools,
        "exclude_projects": settings.exclude_projects,
        "waiting_files": _waiting(Path(settings.spool_dir)),
        "lost_events": _size(data / "hook-losses"),
        "worker": Daemon(data).is_locked,
        "data_dir": settings.data_dir,
        "problem": settings.problem or None,
    }


def _status_of(settings: HookSettings, project: Project, folder: Path) -> dict[str, Any]:
    from reverie.capture.hook_exclusions import is_excluded

    return {
        "project": project.name,
        "keys": project.keys,
        "captured": settings.enabled and not is_excluded(settings, project.keys, str(folder), {}),
    }


def _waiting(spool: Path) -> int:
    """How many files wait in the spool."""
    from reverie.capture.spool import is_name

    try:
        return sum(is_name(path.name) for path in spool.iterdir())
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
