"""The spool's writing side: a private folder with one file for each captured message.

It needs no backend, no worker and only the standard library, and imports little of that, because a hook
starts a new interpreter for each event. A file with its final name is complete and on disk.
`reverie.capture.ingester` submits the messages to the queue.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import allocate_lock  # `threading` would take longer to import than all this
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["FIELDS", "Spool", "is_name", "is_temporary_name", "opened_folder"]

SUFFIX = ".json"
TEMPORARY = ".tmp"
FULL = ".full"
"""A file of this name marks a folder that was full: the next writer counts its files again."""
FIELDS = frozenset(
    {
        "user_id", "label", "content", "item_id", "mem_cube_id", "session_id", "task_id", "trace_id",
        "user_name", "info", "timestamp", "due", "deadline", "depends_on", "if_dependency_fails",
        "unique_key", "unique_window_s", "unique_policy",
    }
)  # fmt: skip
"""The fields of `Message` that a file may set."""


def is_name(name: str) -> bool:
    """Whether a complete file has this name: the time, then random digits. Foreign names are left alone."""
    return (
        len(name) == 42
        and name[20] == "-"
        and name.endswith(SUFFIX)
        and not name[:20].strip("0123456789")
        and not name[21:37].strip("0123456789abcdef")
    )


def is_temporary_name(name: str) -> bool:
    """Whether a file that is being written has this name."""
    return name.startswith(".") and name.endswith(TEMPORARY) and is_name(name[1 : -len(TEMPORARY)])


class Spool:
    """Keeps messages in a folder until a worker or a server takes them in. The constructor opens no file."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_files: int = 100_000,
        max_file_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        """Refuse messages once about `max_files` files wait, and messages larger than `max_file_bytes`."""
        self.folder = os.path.abspath(folder)
        self.max_files = max_files
        self.max_file_bytes = max_file_bytes
        self._count_every = max(1, max_files // 1000)

    def write(self, fields: Mapping[str, Any]) -> str:
        """Keep one message and return its item_id; when this returns, the message is on disk.

        `fields` are those of `Message`; `user_id` and `label` are required, and a missing `item_id` is made.
        Raises `SpoolError` if the message could not be kept, `InvalidMessageError` if it could not be read.
        """
        import uuid
        from datetime import UTC, datetime

        given = {name: value for name, value in fields.items() if value is not None}
        given.setdefault("item_id", str(uuid.uuid4()))
        given.setdefault("timestamp", datetime.now(UTC))
        self._keep(_names.next(), self._encoded(given))
        item_id: str = given["item_id"]
        return item_id

    def write_record(self, record: Mapping[str, Any], at_ns: int) -> None:
        """Keep the record of a hook that started at `at_ns`, in nanoseconds since the epoch.

        When this returns, the record is on disk. `reverie.capture.hook_record` makes messages of it. Raises
        `SpoolError` if it could not be kept. Halves of characters that UTF-8 cannot write become "?".
        """
        from reverie.capture.plain_json import encode

        data = encode(record).encode(errors="replace")
        if len(data) > self.max_file_bytes:
            raise self._error(
                f"it has {len(data)} bytes, at most spool.max_file_bytes = {self.max_file_bytes}"
            )
        self._keep(name_at(at_ns), data)

    def _keep(self, name: str, data: bytes) -> None:
        try:
            _make(self.folder)
            with opened_folder(self.folder) as folder:
                self._check_room(folder)
                _write(folder, name, data)
        except OSError as error:
            raise self._error(_advice(error)) from error

    def check(self) -> None:
        """Raise `SpoolError`, which says what to do, if no message could be kept now."""
        probe = f".{_names.next()}{TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            _make(self.folder)
            with opened_folder(self.folder) as folder:
                self._check_room(folder)
                os.close(os.open(probe, flags, 0o600, dir_fd=folder))
                os.unlink(probe, dir_fd=folder)
        except OSError as error:
            raise self._error(_advice(error)) from error

    def _error(self, reason: str) -> Exception:
        from reverie.errors import SpoolError

        return SpoolError(self.folder, reason)

    def _encoded(self, fields: dict[str, Any]) -> bytes:
        import json

        from reverie.errors import InvalidMessageError

        for name, value in fields.items():
            if name not in FIELDS:
                raise InvalidMessageError(
                    name, value, f"no such field; known are {', '.join(sorted(FIELDS))}"
                )
        for name in ("user_id", "label", "item_id"):
            if not isinstance(fields.get(name), str) or not fields[name]:
                raise InvalidMessageError(name, fields.get(name), "must be text, and not empty")
        try:
            data = json.dumps(fields, ensure_ascii=False, allow_nan=False, default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessageError("message", fields, f"cannot be written as JSON: {error}") from error
        if len(data) > self.max_file_bytes:
            reason = f"has {len(data)} bytes as JSON, at most spool.max_file_bytes = {self.max_file_bytes}"
            raise InvalidMessageError("message", fields, reason)
        return data

    def _check_room(self, folder: int) -> None:
        """Raise an error if the folder is full.

        Only one write in many counts the files, because that lists the folder. Chance decides which ones,
        because the writer may be a process that writes only once. A writer that finds the folder full marks
        it for the others.
        """
        marked = _exists(FULL, folder)
        if not marked and int.from_bytes(os.urandom(8)) % self._count_every:
            return
        with os.scandir(folder) as entries:
            names = (entry.name for entry in entries)
            files = (name for name in names if is_name(name) or is_temporary_name(name))
            count = sum(1 for _ in islice(files, self.max_files))
        if count >= self.max_files:
            from reverie.errors import SpoolFullError

            try:
                os.close(os.open(FULL, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600, dir_fd=folder))
            except OSError:
                pass  # the next writer counts anew only if chance says it
            raise SpoolFullError(self.folder, self.max_files)
        if marked:
            try:
                os.unlink(FULL, dir_fd=folder)
            except FileNotFoundError:
                pass  # another writer has removed the mark


def opened_folder(path: str) -> _OpenedFolder:
    """Open the folder for a `with` block, which gets its descriptor; another user's folder is refused."""
    return _OpenedFolder(path)


class _OpenedFolder:
    """A folder that is open for the time of a block; its mode is left alone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> int:
        self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        owner = os.fstat(self._folder).st_uid
        if owner != os.geteuid():
            os.close(self._folder)
            from reverie.errors import SpoolError

            raise SpoolError(
                self._path, f"it belongs to user {owner}, not to you: set spool.dir to a folder of your own"
            )
        return self._folder

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)


class _Names:
    """Names that sort by time, and within one process in the order in which they were made.

    If the clock is set back, the next name of a process still sorts after its last one.
    """

    def __init__(self) -> None:
        self._last = 0
        self.renew()

    def renew(self) -> None:
        """Replace the lock in a forked process, because a thread of the parent may have held it."""
        self._lock = allocate_lock()

    def next(self) -> str:
        with self._lock:
            self._last = max(time.time_ns(), self._last + 1)
            return name_at(self._last)


def name_at(time_ns: int) -> str:
    """A new name that sorts by this time."""
    return f"{time_ns:020d}-{os.urandom(8).hex()}{SUFFIX}"


_names = _Names()
os.register_at_fork(after_in_child=_names.renew)


def _make(folder: str) -> None:
    """Create a folder and its missing parents, and sync each to disk."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make(parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # another process has made it
    above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _write(folder: int, name: str, data: bytes) -> None:
    """Write to a temporary name, then rename: a file with its final name is never incomplete."""
    temporary = f".{name}{TEMPORARY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(file, 0o600)  # whatever the umask is
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(temporary, dir_fd=folder)
        except OSError:
            pass  # the first error says more
        raise
    os.fsync(folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _plain(value: object) -> str:
    from datetime import datetime

    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"it contains a {type(value).__name__}")


def _advice(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full: free space on it, then try again"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{error.strerror}: give yourself the right to write there, or set spool.dir to another folder"
    if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.ELOOP}:
        return f"{error.strerror}: it must be a folder; set spool.dir to one"
    return f"{error.strerror or error}"
