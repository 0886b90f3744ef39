"""Loading the scheduler that holds a user's handlers."""

from __future__ import annotations

import importlib
import sys

from reverie.errors import AppNotFoundError
from reverie.scheduler import Scheduler

__all__ = ["load_app"]


def load_app(app: str) -> Scheduler:
    """Import `module:attribute`, looking in the working folder first."""
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
