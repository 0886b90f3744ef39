"""What the doctor finds, and whom it examines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from reverie.settings import Settings

__all__ = ["Finding", "Level", "Patient", "a_note", "a_warning", "an_error", "fine"]

Level = Literal["ok", "note", "warning", "error"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was checked, and its condition."""

    check: str
    level: Level
    what: str
    remedy: str = ""
    """What to do; commands are in backticks."""


class Patient(NamedTuple):
    """The queue and the data folder that are checked."""

    settings: Settings
    """The settings of the queue that is checked."""
    folder: Path
    """The data folder of this command line, to which the worker in the background belongs."""

    @property
    def url(self) -> str:
        """The queue's URL."""
        return self.settings.queue_url

    @property
    def file(self) -> Path | None:
        """The queue's file, if it has one."""
        path = self.url.removeprefix("sqlite:///")
        return Path(path).expanduser().resolve() if path != self.url else None


def fine(check: str, what: str) -> Finding:
    """A finding about something that is in order."""
    return Finding(check=check, level="ok", what=what)


def a_note(check: str, what: str, remedy: str = "") -> Finding:
    """A finding that is good to know, and means nothing is wrong."""
    return Finding(check=check, level="note", what=what, remedy=remedy)


def a_warning(check: str, what: str, remedy: str) -> Finding:
    """A finding about something that works badly."""
    return Finding(check=check, level="warning", what=what, remedy=remedy)


def an_error(check: str, what: str, remedy: str) -> Finding:
    """A finding about something that does not work."""
    return Finding(check=check, level="error", what=what, remedy=remedy)
