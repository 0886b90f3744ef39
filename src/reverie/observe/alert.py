"""An alert, and the commands that its remedy names."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

__all__ = ["Alert", "command"]


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that someone should look at."""

    rule: str
    level: Literal["warning", "error"]
    message: str
    """What is wrong, in words."""
    remedy: str
    """What to do; commands stand in backticks."""
    subject: str = ""
    """Which label or service it is about, if it is about one."""

    @property
    def id(self) -> str:
        """The same for as long as the same thing is wrong."""
        return f"{self.rule}:{self.subject}" if self.subject else self.rule


def command(*words: str) -> str:
    """A command as it is typed into a shell; a last word that looks like an option is none."""
    *before, last = words
    dashes = ["--"] if before in (["resume"], ["triggers", "run"]) and last[:1] == "-" else []
    return shlex.join(["reverie", *before, *dashes, last])
