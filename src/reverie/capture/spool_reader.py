"""The spool's reading side: list the files that wait, read their messages, set damaged files aside.

The ingester calls everything here on threads, because it blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.base.logs import get_logger
from reverie.capture.hook_record import HookRecord, captured
from reverie.capture.spool import FIELDS, is_name, is_temporary_name, opened_folder
from reverie.message import Message, MessageLimits, check_message

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from reverie.capture.damaged import DamagedFiles

__all__ = ["SpoolReader", "Spooled"]

log = get_logger(__name__)

LOCK = ".lock"
RECORD_VERSION = 1
"""The version of the records of hooks that can be read."""
BATCH = 100
"""The most files that are submitted together."""
BATCH_BYTES = 4 * 1024 * 1024
"""Once the files of a batch have this many bytes, no further file is added."""
STALE_S = 3600.0
"""An unfinished file that is older than this belongs to a dead writer."""
OUR_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of this process or machine, which say nothing about the file."""


class Spooled(NamedTuple):
    """A file that waits, and what it holds: a message, or what a hook has told."""

    name: str
    content: Message | HookRecord


class _DamagedError(Exception):
    """A file that will never become a message, and why."""


class SpoolReader:
    """Reads and removes files; damaged files go to a folder of their own, each with its reason beside it."""

    def __init__(
        self, folder: str, limits: MessageLimits, max_file_bytes: int, damaged: DamagedFiles
    ) -> None:
        """Take messages within `limits` from files of at most `max_file_bytes`; others go to `damaged`."""
        self._folder = Path(folder)
        self.damaged = damaged
        self._limits = limits
        self._max_file_bytes = max_file_bytes
        self._stuck: set[str] = set()

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Yield whether this process may take files in until the block ends; False if there is no folder."""
        if not self._folder.is_dir():
            yield False
            return
        with opened_folder(str(self._folder)) as folder:
            lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may still have the descriptor
        finally:
            os.close(lock)

    def names(self) -> list[str]:
        """The files that wait, in order. Unfinished files of dead writers are set aside."""
        self.damaged.look_again()
        found = os.listdir(self._folder)  # noqa: PTH208  names are all that is needed
        for name in found:
            if is_temporary_name(name) and self._is_stale(name):
                self.set_aside(name, "was not finished: its writer died, or the disk was full")
        return sorted(filter(is_name, found))

    def read_batch(self, names: deque[str], skip: Callable[[str], bool]) -> list[Spooled]:
        """Take names from the front and read their files, until the batch is large enough for one submit."""
        batch: list[Spooled] = []
        size = 0
        while names and len(batch) < BATCH and size < BATCH_BYTES:
            name = names.popleft()
            if skip(name):
                continue
            try:
                data = self._read(name)
                batch.append(Spooled(name, self._content(data)))
                size += len(data)
            except FileNotFoundError:
                continue  # another process took it in
            except _DamagedError as damage:
                self.set_aside(name, str(damage))
        return batch

    def remove(self, name: str) -> None:
        """Remove a file whose message is in the queue."""
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()

    def set_aside(self, name: str, reason: str) -> None:
        """Move a file to the damaged ones, for a person to look at; if that fails, it stays where it is."""
        try:
            kept_as = self.damaged.keep(name, reason)
        except FileNotFoundError:
            return
        except OSError as error:
            if name not in self._stuck:
                self._stuck.add(name)
                log.warning("spool.damaged", file=name, reason=reason, left_because=str(error))
        else:
            log.warning("spool.damaged", file=name, reason=reason, kept_as=str(kept_as))

    def _is_stale(self, name: str) -> bool:
        try:
            return time.time() - (self._folder / name).lstat().st_mtime > STALE_S
        except FileNotFoundError:
            return False

    def _read(self, name: str) -> bytes:
        """Read a regular file of this user; anything else is closed as soon as that is seen."""
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENOENT or error.errno in OUR_OWN:
                raise
            link = error.errno == errno.ELOOP
            reason = "is a symbolic link" if link else f"cannot be read: {error.strerror}"
            raise _DamagedError(reason) from error
        try:
            self._check_file(os.fstat(file))
            with open(file, "rb", closefd=False) as opened:
                data = opened.read(self._max_file_bytes + 1)
        except OSError as error:
            raise _DamagedError(f"cannot be read: {error.strerror}") from error
        finally:
            os.close(file)
        self._check_size(len(data))
        return data

    def _check_file(self, state: os.stat_result) -> None:
        if not stat.S_ISREG(state.st_mode):
            raise _DamagedError("is a folder" if stat.S_ISDIR(state.st_mode) else "is no regular file")
        if state.st_uid != os.geteuid():
            raise _DamagedError(f"belongs to user {state.st_uid}, not to the one who reads it")
        self._check_size(state.st_size)

    def _check_size(self, size: int) -> None:
        if size > self._max_file_bytes:
            allowed = f"spool.max_file_bytes = {self._max_file_bytes}"
            raise _DamagedError(f"has {size} bytes or more, at most {allowed} are allowed")

    def _content(self, data: bytes) -> Message | HookRecord:
        try:
            fields = msgspec.json.decode(data)
        except Exception as error:
            raise _DamagedError(f"is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise _DamagedError(f"is JSON, but a {type(fields).__name__} and not an object")
        return self._record(fields) if "hook" in fields else self._message(fields)

    def _record(self, fields: dict[str, Any]) -> HookRecord:
        if fields["hook"] != RECORD_VERSION:
            raise _DamagedError(f"is a record of the form {fields['hook']!r}, known is {RECORD_VERSION}")
        try:
            record = msgspec.convert(fields, HookRecord)
            for message in captured(record, record.user_id).messages:
                check_message(message, self._limits)
        except Exception as error:  # whatever is wrong with one file, the others go on
            raise _DamagedError(f"is no record of a hook: {error}") from error
        if not record.project.keys:
            raise _DamagedError("is no record of a hook: it names no project")
        return record

    def _message(self, fields: dict[str, Any]) -> Message:
        if unknown := sorted(set(fields) - FIELDS):
            raise _DamagedError(f"has unknown fields: {', '.join(map(repr, unknown))}")
        if not fields.get("item_id"):
            raise _DamagedError("has no item_id: without one, a second try could make a second message")
        try:
            message = msgspec.convert(fields, Message)
            check_message(message, self._limits)
        except Exception as error:  # whatever is wrong with one file, the others go on
            raise _DamagedError(f"is no message: {error}") from error
        return message
