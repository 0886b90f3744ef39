"""The scheduler that a command works with."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.cli.output import note, shown_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.face.scheduler import Scheduler
    from reverie.settings import Settings

__all__ = [
    "load_app",
    "opened",
    "opened_memory",
    "refuse_memory",
    "scheduler_of",
    "scheduler_to_look",
    "settings_or_default",
]


@contextmanager
def opened(url: str | None, *, makes: bool = False) -> Iterator[Scheduler]:
    """Open the scheduler at `url` without a worker, show errors, and close it after the block.

    An SQLite file that `url` names must exist, unless the command `makes` it.
    """
    with shown_errors(), (scheduler_of if makes else scheduler_to_look)(url, None).used() as scheduler:
        import asyncio

        from reverie.cli.signals import undisturbed

        refuse_memory("queue.url" if url is None else "--url", scheduler.runtime.settings.queue.url)
        with undisturbed():
            scheduler.run(asyncio.sleep(0))  # start its event loop now: a half-started one could not be ended
        try:
            yield scheduler
        except KeyboardInterrupt:
            warnings.simplefilter("ignore", RuntimeWarning)  # about a call that was cut off before it began
            raise


@contextmanager
def opened_memory(url: str | None, *, makes: bool = False) -> Iterator[Scheduler]:
    """Like `opened`, for commands that read or change memories: these must outlive the command."""
    with opened(url, makes=makes) as scheduler:
        refuse_memory("memory.url", scheduler.runtime.settings.memory_url)
        yield scheduler


def refuse_memory(setting: str, url: str | None) -> None:
    """Refuse to use a storage in memory in a command that ends at once: its storage would end with it."""
    from reverie.errors import InvalidSettingError
    from reverie.storage.location import plain_url

    if url is not None and plain_url(url).startswith("memory:"):
        reason = (
            "ends with the process of this command, and no other process can reach it: "
            "use a storage that stays, such as sqlite:///path or redis://host:port/db"
        )
        raise InvalidSettingError(setting, url, reason)


def scheduler_of(url: str | None, app: str | None, *, runs: bool = False) -> Scheduler:
    """The scheduler of the queue at `url`, or of an application; default: what the settings say.

    The application that a settings file names is loaded only by commands that run its handlers (`runs`): a
    look at a queue must not run code from the working folder.
    """
    from reverie.errors import InvalidSettingError, redacted
    from reverie.face.scheduler import Scheduler
    from reverie.settings import load_settings

    settings = load_settings()
    if app is not None and url is not None:
        raise InvalidSettingError(
            "--url", redacted(url), "the scheduler of --app has a queue of its own; leave one out"
        )
    if app is None:
        app = settings.app if runs else os.environ.get("REVERIE_APP")
    if app is None or url is not None:
        return Scheduler(url, settings=settings)
    scheduler = load_app(app)
    scheduler.runtime.app = app
    return scheduler


def scheduler_to_look(url: str | None, app: str | None = None) -> Scheduler:
    """Like `scheduler_of`, for commands that only look: an SQLite file that `url` names must exist."""
    from reverie.errors import InvalidSettingError
    from reverie.storage.location import plain_url

    plain = plain_url(url or "")
    path = plain.removeprefix("sqlite:///")
    if url is not None and path != plain and not Path(path).expanduser().exists():
        reason = "there is no such file; check the name, or make it: submit, add, worker and serve do"
        raise InvalidSettingError("--url", url, reason)
    return scheduler_of(url, app)


def load_app(app: str) -> Scheduler:
    """Import `module:attribute`, looking in the working folder first."""
    import difflib

    from reverie.errors import AppNotFoundError
    from reverie.face.scheduler import Scheduler

    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise AppNotFoundError(app, "it must be module:attribute of a Scheduler, such as app:scheduler")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise AppNotFoundError(app, _why_not(module_name, error)) from error
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; do you mean {near[0]!r}?" if near else ""
        raise AppNotFoundError(app, f"{module_name} has no {attribute!r}{hint}")
    found = getattr(module, attribute)
    if not isinstance(found, Scheduler):
        raise AppNotFoundError(app, f"{attribute!r} is {type(found).__name__}, not a Scheduler")
    return found


def _why_not(module_name: str, error: Exception) -> str:
    """Why a module could not be imported, with the file and the line of the error."""
    import traceback

    if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} here ({Path.cwd()})"
    words = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {words}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
    ours = [frame for frame in frames[1:] if Path(frame.filename).is_relative_to(Path.cwd())]
    frame = (ours or frames[1:] or frames)[-1]
    return f"{frame.filename}:{frame.lineno}: {words}"


def settings_or_default() -> Settings:
    """The settings; if they are invalid, a note and defaults that are enough to find the worker."""
    from reverie.errors import ReverieError
    from reverie.settings import Settings, load_settings

    try:
        return load_settings()
    except ReverieError as error:
        place = os.environ.get("REVERIE_DATA_DIR")
        settings = Settings(data_dir=place) if place else Settings()
        note(f"the settings are bad: {error}\nlooking in the data folder {settings.data_dir}")
        return settings
