"""`reverie mcp`: the MCP server for one agent, over standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.options import Text, Url
from reverie.cli.output import set_up_logs, shown_errors

if TYPE_CHECKING:
    from reverie.capture.project import Project
    from reverie.settings import Settings

__all__ = ["mcp"]


def mcp(
    user: Annotated[
        Text, typer.Option("--user", "-u", help="The user's id. Default: the login name.")
    ] = None,
    all_projects: Annotated[
        bool, typer.Option("--all-projects", help="Search all projects, not only the one of this folder.")
    ] = False,
    url: Url = None,
) -> None:
    """Let an agent look up what is remembered: an MCP server over standard input and output.

    It is for the project of the working folder, from which it reads nothing else: settings come from the
    configuration folder. It runs no handlers: a worker or a server does.

    Example: reverie mcp --all-projects
    """
    with shown_errors():
        import asyncio
        import signal
        from importlib.util import find_spec

        from reverie.capture.hook_settings import login_name
        from reverie.cli.app import refuse_memory
        from reverie.errors import MissingExtraError

        if find_spec("mcp") is None:
            raise MissingExtraError("mcp")
        set_up_logs()
        project = None if all_projects else _project()
        url = _leave_folder(url)
        from reverie.face.scheduler import AsyncScheduler
        from reverie.mcp.server import serve_stdio

        settings = _settings()
        refuse_memory("queue.url" if url is None else "--url", url or settings.queue.url)
        refuse_memory("memory.url", settings.memory_url)
        scheduler = AsyncScheduler(url, settings=settings)
        # nothing can break off a read of standard input, so Ctrl-C ends the process; the accepted is on disk
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        keys, name = (None, "") if project is None else (project.keys, project.name)
        asyncio.run(serve_stdio(scheduler, user_id=user or login_name(), keys=keys, name=name))


def _project() -> Project:
    """The project of the working folder."""
    from pathlib import Path

    from reverie.capture.project import project_of
    from reverie.errors import InvalidSelectionError

    try:
        return project_of(str(Path.cwd()))
    except OSError as error:
        raise InvalidSelectionError(
            f"the working folder cannot be read ({error.strerror}): start this in the folder of a project, "
            "or use --all-projects"
        ) from error


def _leave_folder(url: str | None) -> str | None:
    """Make the data folder the working folder. The answer is the URL as it was meant in the old one."""
    import os
    from pathlib import Path

    from reverie.capture import hook_settings
    from reverie.errors import InvalidSettingError
    from reverie.storage.location import plain_url, sqlite_path

    if url is not None and plain_url(url).startswith("sqlite:///"):
        url = f"sqlite:///{sqlite_path(url)}"
    folder = hook_settings.load().data_dir
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise InvalidSettingError("data_dir", folder, f"cannot be used: {error.strerror}") from error
    return url


def _settings() -> Settings:
    """The settings, with the data folder that hooks use."""
    import os
    from pathlib import Path

    from reverie.capture import hook_settings
    from reverie.settings import load_settings

    given = os.environ.get("REVERIE_DATA_DIR")
    if given is not None and not Path(given).expanduser().is_absolute():
        del os.environ["REVERIE_DATA_DIR"]  # hooks do not follow a relative one either
    folder = Path(hook_settings.load().data_dir)
    is_default = folder == Path(hook_settings.default_data_folder()).resolve()
    return load_settings() if is_default else load_settings(data_dir=folder)
