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
    """What to do; commands are in backticks."""
    subject: str = ""
    """The label, service or tenant that the alert is about; empty if it is about none."""

    @property
    def id(self) -> str:
        """The id of the alert; it stays the same for as long as the same thing is wrong."""
        return f"{self.rule}:{self.subject}" if self.subject else self.rule


def command(*words: str) -> str:
    """Quote a command for a shell; a last word that begins with `-` is kept from being read as an option."""
    *before, last = words
    dashes = ["--"] if before in (["resume"], ["triggers", "run"]) and last[:1] == "-" else []
    return shlex.join(["reverie", *before, *dashes, last])
