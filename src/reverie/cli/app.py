"""The scheduler behind a command."""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reverie.cli.output import shown_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.scheduler import Scheduler

__all__ = ["load_app", "opened", "scheduler_of"]


@contextmanager
def opened(url: str | None) -> Iterator[Scheduler]:
    """The scheduler at `url`, without a worker; errors are shown, and all is let go of after."""
    with shown_errors(), scheduler_of(url, None).used() as scheduler:
        import asyncio

        from reverie.cli.signals import undisturbed

        with undisturbed():
            scheduler.run(asyncio.sleep(0))  # its event loop runs now; half a one could not be ended
        try:
            yield scheduler
        except KeyboardInterrupt:
            warnings.simplefilter("ignore", RuntimeWarning)  # about a call that was cut off before it began
            raise


def scheduler_of(url: str | None, app: str | None) -> Scheduler:
    """The scheduler of the queue at `url`, or of an application; default: what the settings say."""
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


def load_app(app: str) -> Scheduler:
    """Import `module:attribute`, looking in the working folder first."""
    from reverie.errors import AppNotFoundError
    from reverie.scheduler import Scheduler

    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise AppNotFoundError(app, "it has no attribute")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise AppNotFoundError(app, f"there is no module {error.name!r} here") from error
    except Exception as error:
        raise AppNotFoundError(app, f"importing {module_name} failed: {error!r}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Scheduler):
        raise AppNotFoundError(app, f"{attribute!r} is {type(found).__name__}, not a Scheduler")
    return found
