"""The reserve: a file beside the database that keeps room on the disk for commands such as cancel.

When the disk is full, the file is removed, and commands use its room. Other writes are refused until the disk
has room for the reserve again: they would use up what commands need.
"""

from __future__ import annotations

import contextlib
import errno
import os

import apsw

__all__ = ["Reserve"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """Room on the disk that all processes of one file share."""

    def __init__(self, path: str, size: int) -> None:
        """`size` is in bytes; 0 keeps no reserve."""
        self._path = f"{path}-reserve"
        self._size = size if hasattr(os, "posix_fallocate") else 0
        self._made_here = False

    def hold(self) -> None:
        """Make the file if it is missing; `apsw.FullError` if the disk has no room for it."""
        if not self._size or os.path.exists(self._path):  # noqa: PTH110  before each commit: a Path costs more
            return
        try:
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            finally:
                os.close(file)
            self._made_here = True
        except OSError as error:
            self.give_up()
            if error.errno in FULL:
                raise apsw.FullError("the room that is left is kept for commands such as cancel") from error
            self._size = 0  # such a file is not possible here

    def give_up(self) -> bool:
        """Remove the file, to make its room free; return whether there was one."""
        try:
            os.unlink(self._path)  # noqa: PTH108
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove the file if this process has made it. A process that goes on makes it again."""
        if self._made_here:
            self._made_here = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108
