"""Change settings files of agents, and take the changes back.

Before `install` changes a file, it keeps a copy of it and a record in the configuration folder. `uninstall`
puts the copy back if nobody has changed the file since. Otherwise it removes the entries that `install` wrote
from the file as it is now, so that changes of others stay.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import platformdirs

from reverie.cli.agents.errors import AgentFileError
from reverie.cli.agents.json_text import has, parsed

if TYPE_CHECKING:
    from collections.abc import Collection

    from reverie.cli.agents.json_text import Place

__all__ = ["Edit", "Entries", "plan_install", "plan_uninstall", "write_whole"]

LARGEST_FILE = 64 * 1024 * 1024


class Entries(Protocol):
    """What `install` writes into one file."""

    def are_in(self, text: str, where: str) -> bool:
        """Whether the text has exactly these entries; `AgentFileError` if they cannot be written there."""
        ...

    def added(self, text: str, where: str) -> str:
        """The text with these entries."""
        ...

    def removed(self, text: str, where: str, made: Collection[Place] | None) -> str:
        """The text without any entries of `install`, and without those of `made` that this leaves empty.

        `made` are the places of objects and lists that `install` had to make; None if that is not known.
        """
        ...

    def missing(self, text: str, where: str) -> list[Place]:
        """The places of objects and lists that `added` would have to make."""
        ...

    def nothing_else(self, text: str, where: str) -> bool:
        """Whether a text without these entries says nothing."""
        ...


class Install(msgspec.Struct, frozen=True):
    """One change that `install` made to a file."""

    after: str
    """The hash of the file after the change."""
    backup: str | None
    """The name of the copy from before the change; None if there was no file."""


class Record(msgspec.Struct, frozen=True):
    """What `install` did to a file."""

    file: str
    existed: bool
    """Whether there was a file before the first change."""
    folders: list[str] = []
    """The folders that were made for the file, the outermost first."""
    made: list[tuple[str | int, ...]] = []
    """The places of objects and lists that `install` had to make."""
    installs: dict[str, Install] = {}
    """By scope: one file may have entries for a person and for several projects."""


@dataclass(frozen=True)
class Edit:
    """A change of one file that is planned: None stands for no file."""

    path: Path
    before: bytes | None
    after: bytes | None
    record: Record | None = field(repr=False, default=None)
    """The record that is kept after the change; None if the file has none from then on."""
    backup: tuple[str, bytes] | None = field(repr=False, default=None)
    mode: int = 0o600
    removes: bool = False

    @property
    def status(self) -> str:
        """What the change does to the file, in one word."""
        if self.before == self.after:
            return "absent" if self.before is None else "unchanged"
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"

    @property
    def backup_path(self) -> Path | None:
        """Where the copy from before the change is kept."""
        return _folder() / self.backup[0] if self.backup else None

    def diff(self) -> str:
        """The change, as `diff -u` shows it."""
        old, new = (_lines(content) for content in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), n=2)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )

    def write(self) -> None:
        """Make the change; `AgentFileError` if somebody has changed the file since it was read."""
        if not self.removes:
            self._write_record()
        if self.before != self.after:
            self._write_file()
        if self.removes:
            self._write_record()

    def _write_file(self) -> None:
        real = _real(self.path)
        try:
            if self.after is None:
                self._check_unchanged()
                real.unlink(missing_ok=True)
                return
            real.parent.mkdir(parents=True, exist_ok=True)
            write_whole(real, self.after, self.mode, check=self._check_unchanged)
        except OSError as error:
            raise AgentFileError(self.path, f"cannot be written: {error.strerror or error}") from error

    def _check_unchanged(self) -> None:
        if _read(self.path) != self.before:
            reason = "was changed by another program just now, and was left alone: run the command again"
            raise AgentFileError(self.path, reason)

    def _write_record(self) -> None:
        folder, record_file, old = _folder(), _record_file(self.path), _record_of(self.path)
        try:
            if self.record is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self.backup:
                    write_whole(folder / self.backup[0], self.backup[1], 0o600)
                write_whole(record_file, msgspec.json.encode(self.record), 0o600)
            if self.removes and old is not None:
                self._forget(old, record_file)
        except OSError as error:
            raise AgentFileError(record_file, f"cannot be written: {error.strerror or error}") from error

    def _forget(self, old: Record, record_file: Path) -> None:
        """Remove what was kept of a change that is taken back, and folders made for a file that is gone."""
        kept = self.record.installs if self.record else {}
        for scope, install in old.installs.items():
            if scope not in kept and install.backup:
                (_folder() / install.backup).unlink(missing_ok=True)
        if self.record is None:
            record_file.unlink(missing_ok=True)
            with suppress(OSError):  # other files have records
                _folder().rmdir()
        if self.after is None:
            for folder in reversed(old.folders):
                with suppress(OSError):  # somebody else put something there
                    Path(folder).rmdir()


def plan_install(path: Path, scope: str, entries: Entries) -> Edit:
    """Plan to write entries into a file; what an earlier `install` of this scope wrote there is replaced."""
    before, mode = _read(path), _mode(path)
    text, where = _text(before, path), str(path)
    record = _record_of(path)
    if entries.are_in(text, where):
        return Edit(path, before, before, record)
    base, made = _without_install(before, record, scope, entries, path)
    base_text = _text(base, path)
    after = _encoded(entries.added(base_text, where), path)
    install = Install(_hash(after), None if base is None else _backup_name(path, scope))
    is_old = record is not None and base == before and not record.installs.keys() - {scope}
    if record is None or before is None or is_old:  # an old record is of a file that somebody made anew
        record = Record(str(_real(path)), before is not None, _missing_folders(path))
    made += [place for place in entries.missing(base_text, where) if place not in made]
    record = msgspec.structs.replace(record, made=made, installs={**record.installs, scope: install})
    backup = None if base is None or install.backup is None else (install.backup, base)
    return Edit(path, before, after, record, backup, mode)


def plan_uninstall(path: Path, scope: str, entries: Entries) -> Edit:
    """Plan to remove what `install` of this scope wrote into a file."""
    before, mode = _read(path), _mode(path)
    record = _record_of(path)
    after, made = _without_install(before, record, scope, entries, path)
    if record is not None:
        rest = {name: install for name, install in record.installs.items() if name != scope}
        record = msgspec.structs.replace(record, made=made, installs=rest) if rest else None
    return Edit(path, before, after, record, None, mode, removes=True)


def _without_install(
    content: bytes | None, record: Record | None, scope: str, entries: Entries, path: Path
) -> tuple[bytes | None, list[Place]]:
    """A file as it would be without the entries of a scope, and the places that `install` made and that stay.

    That is the copy from before the change if nobody has changed the file since.
    """
    if content is None:
        return None, []
    where = str(path)
    install = record.installs.get(scope) if record else None
    made = list(record.made) if record else None
    if install is not None and install.after == _hash(content):
        restored, found = _backup(install)
        if found:
            return restored, _still_there(made or [], restored, path)
    text = entries.removed(_text(content, path), where, made)
    if record is not None and not record.existed and entries.nothing_else(text, where):
        return None, []
    after = _encoded(text, path)
    return after, _still_there(made or [], after, path)


def _still_there(made: list[Place], content: bytes | None, path: Path) -> list[Place]:
    if content is None or not made:
        return []
    value = parsed(_text(content, path), str(path))
    return [place for place in made if has(value, place)]


def _backup(install: Install) -> tuple[bytes | None, bool]:
    """The copy from before a change, and whether it is known."""
    if install.backup is None:
        return None, True
    try:
        return (_folder() / install.backup).read_bytes(), True
    except OSError:
        return None, False


def _read(path: Path) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise AgentFileError(path, "is no regular file, and was left alone")
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentFileError(path, f"cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise AgentFileError(path, f"has more than {LARGEST_FILE} bytes, and was left alone")
    return content


def _mode(path: Path) -> int:
    """The permissions that the file keeps, or gets when it is made."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0o600
    if not mode & 0o222:
        raise AgentFileError(path, "is read-only, and was left alone: allow its owner to write it")
    return mode


def _text(content: bytes | None, path: Path) -> str:
    try:
        return (content or b"").decode()
    except UnicodeDecodeError as error:
        reason = f"is not text in UTF-8 (byte {error.start}), and was left alone"
        raise AgentFileError(path, reason) from error


def _encoded(text: str, path: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        reason = "cannot name a folder whose name is not valid UTF-8: rename the folder"
        raise AgentFileError(path, reason) from error


def _real(path: Path) -> Path:
    """The file itself, behind all links: a link stays a link."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise AgentFileError(path, f"cannot be followed: {error}") from error


def _missing_folders(path: Path) -> list[str]:
    parents = _real(path).parents
    return [str(folder) for folder in reversed(parents) if not folder.exists()]


def _folder() -> Path:
    return Path(platformdirs.user_config_dir("reverie")) / "installed"


def _record_file(path: Path) -> Path:
    return _folder() / f"{_hash(os.fsencode(_real(path)))[:16]}.json"


def _backup_name(path: Path, scope: str) -> str:
    digits = _hash(os.fsencode(_real(path)) + b"\0" + scope.encode(errors="surrogateescape"))[:16]
    return f"{digits}-{_real(path).name.lstrip('.')}"


def _record_of(path: Path) -> Record | None:
    """The record of a file; None if there is none, or if it cannot be read."""
    try:
        return msgspec.json.decode(_record_file(path).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").splitlines(keepends=True)


class _Check(Protocol):
    def __call__(self) -> None: ...


def write_whole(path: Path, content: bytes, mode: int, check: _Check = lambda: None) -> None:
    """Write a file as a whole or not at all; `check` is called just before the new file takes its place."""
    new = path.with_name(f".{path.name}.reverie-{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            with suppress(OSError):  # only root can give a file to its old owner
                owner = path.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        check()
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
