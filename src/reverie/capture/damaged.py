"""The folder of damaged files: each is kept with its reason beside it, until newer ones need the room."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from reverie.base.logs import get_logger
from reverie.capture.spool import opened_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DamagedFiles"]

log = get_logger(__name__)

REASON = ".reason"
SPARE = 10
"""One file in this many is removed beyond the limit, so that the folder is not listed for each new file."""


class _Kept(NamedTuple):
    """A damaged file that is kept: when it was set aside, its name and its bytes, those of its reason too."""

    at: int
    name: str
    size: int


class DamagedFiles:
    """Keeps damaged files, at most `max_files` of them and `max_bytes` in all; the oldest are removed.

    One process at a time uses it: the one that holds the lock of the spool.
    """

    def __init__(self, spool: Path, *, max_files: int, max_bytes: int) -> None:
        """Keep files of the folder `spool` in a folder inside of it, which is made when it is needed."""
        self._spool = spool
        self._folder = spool / "damaged"
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._room = (0, 0)
        """How many files and bytes fit without another look into the folder."""
        self.removed = 0
        """How many files this process has removed to make room."""

    def look_again(self) -> None:
        """Count the kept files with the next one, because others may have used the folder."""
        self._room = (0, 0)

    def keep(self, name: str, reason: str) -> Path:
        """Move a file of the spool here, and return its new path. Then remove the oldest, if need be."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        size = _size(self._spool / name)
        target, number = self._folder / name, 0
        while os.path.lexists(target):
            number += 1
            target = self._folder / f"{name}.{number}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(f"{target}{REASON}", flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
            size += file.write(f"{reason}\n")
            file.flush()
            os.fsync(file.fileno())
        (self._spool / name).rename(target)
        for changed in (self._folder, self._spool):
            with opened_folder(str(changed)) as descriptor:
                os.fsync(descriptor)
        try:
            self._make_room(size)
        except OSError as error:
            log.warning("spool.damaged_not_removed", error=str(error))
        return target

    def _make_room(self, size: int) -> None:
        files, room = self._room
        self._room = (files - 1, room - size)
        if files > 0 and room >= size:
            return
        kept = self._list()
        total = sum(one.size for one in kept)
        if len(kept) > self._max_files or total > self._max_bytes:
            kept, total = self._remove_oldest(kept, total)
        self._room = (self._max_files - len(kept), self._max_bytes - total)

    def _remove_oldest(self, kept: list[_Kept], total: int) -> tuple[list[_Kept], int]:
        """Remove the oldest files; return those that stay, and their bytes."""
        most_files = self._max_files - self._max_files // SPARE
        most_bytes = self._max_bytes - self._max_bytes // SPARE
        before = total
        gone = 0
        while gone < len(kept) and (len(kept) - gone > most_files or total > most_bytes):
            self._remove(kept[gone].name)
            total -= kept[gone].size
            gone += 1
        self.removed += gone
        log.warning(
            "spool.damaged_removed",
            files=gone,
            bytes=before - total,
            first=kept[0].name,
            last=kept[gone - 1].name,
            reason=f"more than spool.max_damaged_files = {self._max_files} or "
            f"spool.max_damaged_bytes = {self._max_bytes} were kept",
        )
        return kept[gone:], total

    def _remove(self, name: str) -> None:
        """Remove a file, or a folder that was set aside, and then its reason."""
        for path in (self._folder / name, self._folder / f"{name}{REASON}"):
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(path.lstat().st_mode):
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _list(self) -> list[_Kept]:
        """The kept files, the oldest first."""
        names = {path.name.removesuffix(REASON) for path in self._folder.iterdir()}
        kept = []
        for name in names:
            paths = [
                path
                for path in (self._folder / name, self._folder / f"{name}{REASON}")
                if os.path.lexists(path)
            ]
            if paths:  # nobody has removed it meanwhile
                kept.append(_Kept(paths[-1].lstat().st_mtime_ns, name, sum(map(_size, paths))))
        return sorted(kept)


def _size(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode):
        return state.st_size
    inside = (os.path.join(place, name) for place, _, names in os.walk(path) for name in names)  # noqa: PTH118
    return state.st_size + sum(os.lstat(name).st_size for name in inside)
