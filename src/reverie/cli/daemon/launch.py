"""How a worker in the background is started: its options, its folder, and variables in place of options."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from reverie.errors import redacted

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["Launch", "here", "like_last", "names_anew"]

NAMES = {"REVERIE_APP": "--app", "REVERIE_QUEUE__URL": "--url", "REVERIE_WORKER__PROCESSES": "--processes"}
"""Environment variables that mean the same as an option."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to start the same worker once more."""

    options: dict[str, str] = {}
    folder: str
    """Where the worker is started: its app is looked for there."""
    environment: dict[str, str] = {}
    """The variables of `NAMES` that were set."""

    @property
    def arguments(self) -> list[str]:
        """The options as words of a command line."""
        return [text for option in self.options.items() for text in option]

    def words(self, given: Container[str] = ()) -> str:
        """The options that are not in `given`, and the variables that are not set now, for people to read."""
        variables = [f"{name}={value}" for name, value in self.environment.items() if name not in os.environ]
        options = [text for option in self.options.items() if option[0] not in given for text in option]
        return shlex.join(redacted(text) for text in [*variables, *options])


def here(options: dict[str, str]) -> Launch:
    """A launch with these options, in this folder and this environment."""
    return Launch(options=options, folder=str(Path.cwd()), environment=_named())


def like_last(last: Launch, options: dict[str, str]) -> Launch:
    """The same launch as last time, except for these options and for variables that have changed."""
    dropped = {NAMES[name] for name in names_anew(last)}
    if dropped & {"--app"} or options.keys() & {"--app", "--url"}:  # --app and --url exclude each other
        dropped |= {"--app", "--url"}
    before = {name: value for name, value in last.options.items() if name not in dropped}
    return Launch(options=before | options, folder=last.folder, environment={**last.environment, **_named()})


def names_anew(last: Launch) -> list[str]:
    """The variables that are set to another value than last time."""
    return [name for name, value in _named().items() if last.environment.get(name) != value]


def _named() -> dict[str, str]:
    return {name: os.environ[name] for name in NAMES if name in os.environ}
