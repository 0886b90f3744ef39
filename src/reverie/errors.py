"""The errors of Reverie, with one base class.

The first line of a class's docstring is its default message; attributes carry the data, so that a caller
decides by type and value, never by words.
"""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from datetime import datetime
from typing import ClassVar

__all__ = [
    "AmbiguousIdError",
    "AppNotFoundError",
    "BackendUnavailableError",
    "BoundKeyError",
    "BufferTakenError",
    "ClosedError",
    "CorruptDatabaseError",
    "DaemonError",
    "EvaluationError",
    "ForeignDataError",
    "ForwardedRequestError",
    "IdempotencyError",
    "InvalidDataError",
    "InvalidMessageError",
    "InvalidSelectionError",
    "InvalidSettingError",
    "InvalidSettingsError",
    "ItemTakenError",
    "KeyNeededError",
    "MemoryDeletedError",
    "MissingExtraError",
    "ModelFailedError",
    "NetworkFileSystemError",
    "NoWorkerError",
    "NotSupportedError",
    "QueueFullError",
    "ReadTimeoutError",
    "ReverieError",
    "RoleError",
    "SalvageError",
    "SchemaMigratedError",
    "SchemaTooNewError",
    "SpoolError",
    "SpoolFullError",
    "TaskTypeDisabledError",
    "TooManyLabelsError",
    "TooManyRequestsError",
    "UnhandledLabelError",
    "UnknownItemError",
    "UnknownKeyError",
    "UnknownMemoryError",
    "UnknownSchemeError",
    "UnknownSessionError",
    "UnknownTaskTypeError",
    "UnknownWebhookError",
    "VersionConflictError",
    "WaitTimeoutError",
    "is_secret",
    "redacted",
    "shown",
]


def redacted(url: str) -> str:
    """Remove the user and the password from a URL, so that it may be shown."""
    return re.sub(r"(?<=://)[^/\s'\"][^\s'\"?#]*@", "", re.sub(r"(?<=[?&]password=)[^&\s'\"]+", "…", url))


def shown(value: object, depth: int = 3) -> str:
    """Format a value so that it may be shown: without passwords, and cut if it is long."""
    if isinstance(value, str):
        text = redacted(value)
        return repr(text if len(text) <= 200 else text[:199] + "…")
    if isinstance(value, dict | list | tuple | set):
        if depth == 0:
            return "…"
        parts = [
            f"{shown(part, 0)}: {shown(_not_secret(part, value[part]), depth - 1)}"
            if isinstance(value, dict)
            else shown(part, depth - 1)
            for part in itertools.islice(value, 8)
        ]
        inside = ", ".join([*parts, "…"] if len(value) > 8 else parts)
        return f"{{{inside}}}" if isinstance(value, dict) else f"[{inside}]"
    if isinstance(value, int) and value.bit_length() > 512:
        return "a whole number of more than 150 digits"
    return repr(value)


def is_secret(name: object) -> bool:
    """Whether a value with this name must never be shown."""
    return re.search(r"(secret|password|token|api_?keys?)$", str(name), re.IGNORECASE) is not None


def _not_secret(name: object, value: object) -> object:
    return "(hidden)" if is_secret(name) and value is not None else value


class ReverieError(Exception):
    """Reverie could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        """Use `message`, or the first line of the class's docstring."""
        super().__init__(message or (self.__doc__ or type(self).__name__).strip().splitlines()[0])


class InvalidMessageError(ReverieError):
    """A message or a question was refused because one of its fields is wrong."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        """Name the field, show the value (shortened), say what is allowed."""
        shown = _shown(value)
        self.field, self.value, self.reason = field, value, reason
        super().__init__(f"{field}={shown if len(shown) <= 80 else shown[:77] + '...'}: {reason}")


class UnhandledLabelError(InvalidMessageError):
    """A message was refused because no live worker handles its label; later one may."""

    def __init__(self, label: str) -> None:
        """Name the label, and what to do."""
        super().__init__(
            "label", label, "no live worker handles it: start one, or set queue.unknown_labels to keep"
        )


class TooManyLabelsError(InvalidMessageError):
    """A message was refused because its label is new, and the queue has too many already."""

    def __init__(self, label: str, allowed: int) -> None:
        """Name the label, the limit and what to do."""
        self.allowed = allowed
        super().__init__(
            "label",
            label,
            f"it is new, and the queue has queue.max_labels = {allowed} already: use a label that it knows, "
            "or raise the limit. A label is forgotten with its last message",
        )


def _shown(value: object) -> str:
    """Format a value as a client would send it; what JSON does not have is shown as Python does."""
    try:
        if isinstance(value, str) or (isinstance(value, dict) and not all(isinstance(k, str) for k in value)):
            return repr(value)
        with suppress(TypeError, ValueError):
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
            return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[:100])
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} too deep to show"


def _plain(value: object) -> object:
    """A model of a request, or a moment, as what JSON has; TypeError for anything else."""
    if isinstance(value, datetime):
        return value.isoformat()
    if dump := getattr(value, "model_dump", None):
        return dump(exclude_unset=True)
    raise TypeError


class ItemTakenError(ReverieError):
    """Another message of this user has this item_id."""

    def __init__(self, item_id: str | None) -> None:
        """Name the id."""
        self.item_id = item_id
        super().__init__(f"item_id {item_id!r} is taken by another message of this user")


class NotSupportedError(ReverieError):
    """This server does not do what was asked."""

    def __init__(self, what: str, reason: str) -> None:
        """Name what was asked for, and why it is not done."""
        self.what, self.reason = what, reason
        super().__init__(f"{what}: {reason}")


class ModelFailedError(ReverieError):
    """The language model gave no answer."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        """Say why, and when to try again, if that is known."""
        self.reason, self.retry_after_s = reason, retry_after_s or 5.0
        super().__init__(reason)


class NoWorkerError(ReverieError):
    """No worker lives that could do the work now; nothing was kept."""

    retry_after_s: ClassVar[float] = 5
    """Seconds until it is worth trying again."""

    def __init__(self, label: str) -> None:
        """Name the label, and what to do."""
        self.label = label
        super().__init__(
            f"no live worker handles the label {label!r}, and nothing was kept: start one (reverie worker), "
            "or ask with async_mode = async, which does not wait for it"
        )


class RoleError(ReverieError):
    """The caller's role does not allow this."""

    def __init__(self, role: str, needed: str, what: str = "this") -> None:
        """Name the role that the caller has, the one that is needed, and what needs it."""
        self.role, self.needed = role, needed
        super().__init__(f"{what} needs the role {needed}; the caller has the role {role}")


class BoundKeyError(ReverieError):
    """This is about all users, or about all cubes of a user: it needs a key that is not bound to some."""


class ForeignDataError(ReverieError):
    """The caller's key may not touch this user or cube."""

    def __init__(self, kind: str, name: str) -> None:
        """Name the user or the cube. The words are the same whether or not there is data."""
        self.kind, self.name = kind, name
        super().__init__(f"this key may not touch the {kind} {shown(name)}")


class KeyNeededError(ReverieError):
    """This server needs an API key: send `Authorization: Bearer …` with a key that is valid."""


class ForwardedRequestError(ReverieError):
    """The request came through a proxy, and this server has no API keys."""

    def __init__(self, header: str) -> None:
        """Name the header that the proxy has added."""
        self.header = header
        super().__init__(
            f"the request came through a proxy (header {header!r}), and without API keys everybody behind it "
            "would be an administrator: make a key with reverie keys create"
        )


class TooManyRequestsError(ReverieError):
    """The caller's key has sent too many requests."""

    def __init__(self, per_s: float, retry_after_s: float) -> None:
        """Name the limit, and when to try again."""
        self.per_s, self.retry_after_s = per_s, retry_after_s
        super().__init__(
            f"this key may send {per_s:g} requests a second: try again in {max(retry_after_s, 0.01):.2g} s"
        )


class UnknownKeyError(ReverieError):
    """There is no API key with this id."""

    def __init__(self, key_id: str) -> None:
        """Name the id."""
        self.key_id = key_id
        super().__init__(f"there is no API key with the id {shown(key_id)}: reverie keys list shows all")


class UnknownWebhookError(ReverieError):
    """There is no webhook with this id."""

    def __init__(self, webhook_id: str) -> None:
        """Name the id."""
        self.webhook_id = webhook_id
        super().__init__(
            f"there is no webhook with the id {shown(webhook_id)}: reverie webhooks list shows all"
        )


class EvaluationError(ReverieError):
    """An evaluation could not be finished."""


class InvalidDataError(ReverieError):
    """A file of conversations and questions was refused."""

    def __init__(self, path: object, place: str, reason: str, value: object = None) -> None:
        """Name the file, the place in it, the value there (shortened), and what is wrong with it."""
        self.path, self.place, self.value, self.reason = path, place, value, reason
        what = f"{place} = {shown(value)}" if place else ""
        super().__init__(": ".join(part for part in (str(path), what, reason) if part))


class InvalidSelectionError(ReverieError):
    """It is not clear which items are meant."""


class InvalidSettingError(ReverieError):
    """A setting was refused."""

    def __init__(self, setting: str, value: object, reason: str, where: str = "") -> None:
        """Name the setting, its value, what is allowed, and where it was set if that is known.

        Without a setting, the place itself is wrong, such as a file that cannot be read.
        """
        self.setting, self.value, self.reason, self.where = setting, value, reason, where
        what = f"{setting} = {shown(value)}" if setting else ""
        super().__init__(": ".join(part for part in (where, what, reason) if part))


class InvalidSettingsError(InvalidSettingError):
    """Settings were refused."""

    def __init__(self, problems: list[InvalidSettingError]) -> None:
        """Name every problem, one on each line; the attributes are those of the first."""
        first = problems[0]
        super().__init__(first.setting, first.value, first.reason, first.where)
        self.problems = problems
        self.args = ("\n".join(str(problem) for problem in problems),)


class UnknownSchemeError(ReverieError):
    """No backend answers to this URL."""

    def __init__(self, url: str, known: list[str]) -> None:
        """Show the URL and the schemes that would work."""
        self.url, self.known = url, known
        super().__init__(f"no backend for {redacted(url)!r}: it must begin with one of {', '.join(known)}")


class MissingExtraError(ReverieError):
    """Something was asked for whose libraries are not installed."""

    def __init__(self, extra: str) -> None:
        """Name the extra that installs them."""
        self.extra = extra
        super().__init__(
            f"this needs the extra {extra!r}: pip install 'reverie[{extra}]' "
            f"(from a checkout: pip install -e '.[{extra}]')"
        )


class QueueFullError(ReverieError):
    """The queue takes no more for now; nothing of this submit was kept."""

    def __init__(self, limit: str, allowed: float, retry_after_s: float, tenant: str | None = None) -> None:
        """Name the limit as the setting that holds it, its value, whose it is, and when to try again."""
        self.limit, self.allowed, self.retry_after_s, self.tenant = limit, allowed, retry_after_s, tenant
        whose = f" of tenant {tenant!r}" if tenant else ""
        super().__init__(
            f"{limit} = {allowed:g} is reached{whose}: nothing was kept; try again in {retry_after_s:g} s"
        )


class BackendUnavailableError(ReverieError):
    """The backend did not answer; nothing is known to have been written."""

    retry_after_s: ClassVar[float] = 5
    """Seconds until it is worth trying again."""


class ReadTimeoutError(BackendUnavailableError):
    """Reading took too long and was ended; what it would have found is not known."""

    def __init__(self, setting: str, allowed_s: float) -> None:
        """Name the limit as the setting that holds it, and what to do."""
        self.setting, self.allowed_s = setting, allowed_s
        super().__init__(
            f"reading took longer than {allowed_s:g} s and was ended, so what is there is not known: ask for "
            f"less, ask again when fewer others ask, or raise {setting}"
        )


class CorruptDatabaseError(BackendUnavailableError):
    """The database file is damaged; nothing more is written to it."""

    def __init__(self, path: str, detail: str) -> None:
        """Say which file, what SQLite found, and the steps that bring the work back."""
        self.path, self.detail = path, detail
        super().__init__(
            f"{path} is damaged, or is no database of Reverie ({detail}): nothing more is written to it. "
            "(1) Stop every process that uses it. "
            f"(2) Keep a copy: cp {path} {path}.damaged (and {path}-wal, if there is one). "
            f"(3) Put a backup in its place, and remove {path}-wal and {path}-shm. Without a backup, save "
            f"what can be read, and put that there: reverie salvage {path} {path}.saved "
            "(4) Start again."
        )


class NetworkFileSystemError(ReverieError):
    """An SQLite file must not lie on a network file system."""

    def __init__(self, path: str, kind: str, mount_point: str) -> None:
        """Say which file, what it lies on, and where it could be instead."""
        self.path, self.kind, self.mount_point = path, kind, mount_point
        super().__init__(
            f"{path} lies on {mount_point}, a network file system ({kind}), where SQLite's locks do not hold "
            "and files get damaged: use a folder on a local disk, or a queue made for several machines "
            "(redis://…). If you know that only one machine uses it, set queue.allow_network_fs = true"
        )


class SalvageError(ReverieError):
    """The damaged database could not be copied."""


class SchemaTooNewError(ReverieError):
    """The database was written by a newer Reverie."""

    def __init__(self, path: str, room: str, found: int, known: int) -> None:
        """Say which part of which file is too new, and what to do."""
        self.path, self.room, self.found, self.known = path, room, found, known
        super().__init__(
            f"{path}: its {room} tables have version {found}, this Reverie knows up to {known}: "
            "upgrade Reverie, or point it at another file"
        )


class SchemaMigratedError(SchemaTooNewError, BackendUnavailableError):
    """A newer Reverie has migrated the database while this process has it open."""

    def __init__(self, path: str, room: str, found: int, known: int) -> None:
        """Say which part of which file is too new for this process, and what to do."""
        self.path, self.room, self.found, self.known = path, room, found, known
        ReverieError.__init__(
            self,
            f"{path}: a newer Reverie has migrated its {room} tables to version {found} while this process "
            f"knows up to {known}: this process writes nothing more. Start it again with the newer Reverie; "
            "what was accepted is kept",
        )


class SpoolError(ReverieError):
    """The spool could not keep a message."""

    def __init__(self, path: str, reason: str) -> None:
        """Say which folder, what is wrong with it, and what to do."""
        self.path, self.reason = path, reason
        super().__init__(f"the spool {path} did not keep this: {reason}")


class SpoolFullError(SpoolError):
    """The spool takes no more."""

    def __init__(self, path: str, max_files: int) -> None:
        """Name the limit, and how to make room."""
        self.max_files = max_files
        super().__init__(
            path,
            f"spool.max_files = {max_files} is reached. Run a worker or a server that takes the files in "
            "(reverie worker), and see in its log why they wait; or raise spool.max_files",
        )


class ClosedError(ReverieError):
    """This was used before it was opened or after it was closed."""


class UnknownItemError(ReverieError):
    """No message or task has this id."""

    def __init__(self, user_id: str, item_id: str) -> None:
        """Name both halves of the identity."""
        self.user_id, self.item_id = user_id, item_id
        super().__init__(f"user {user_id!r} has no item or task {item_id!r}")


class UnknownTaskTypeError(ReverieError):
    """There is no such type of timed tasks."""

    def __init__(self, task_type: str, known: list[str]) -> None:
        """Name the type, and the types that there are."""
        self.task_type, self.known = task_type, known
        there_are = f"there are {', '.join(known)}" if known else "there are none"
        super().__init__(f"there is no task type {task_type!r} (scheduler.tasks); {there_are}")


class TaskTypeDisabledError(ReverieError):
    """A type of timed tasks is disabled."""


class MemoryDeletedError(ReverieError):
    """The memory was deleted."""

    def __init__(self, memory_id: str) -> None:
        """Name the memory."""
        self.memory_id = memory_id
        super().__init__(f"the memory {memory_id!r} was deleted")


class UnknownMemoryError(ReverieError):
    """There is no such memory."""

    def __init__(self, memory_id: str) -> None:
        """Name the memory."""
        self.memory_id = memory_id
        super().__init__(f"there is no memory {memory_id!r} of this user")


class UnknownSessionError(ReverieError):
    """There is no such session."""

    def __init__(self, session_id: str) -> None:
        """Name the session. The words are the same whether or not another user has it."""
        self.session_id = session_id
        super().__init__(f"there is no session {shown(session_id)} of this user")


class AmbiguousIdError(ReverieError):
    """Several users of the caller have a memory, or a cube, with this id."""

    def __init__(self, name: str, what: str = "memory") -> None:
        """Name the id, and what to add."""
        self.name, self.what = name, what
        super().__init__(f"several users have a {what} {shown(name)}: say whose, with user_id")


class IdempotencyError(ReverieError):
    """The `Idempotency-Key` was used for another request: a new request needs a new key."""


class VersionConflictError(ReverieError):
    """A memory item was changed after the handler had read it."""

    def __init__(self, memory_id: str, expected: int, found: int | None) -> None:
        """Name the item, the version that the handler has read, and the one that is there."""
        self.memory_id, self.expected, self.found = memory_id, expected, found
        now = "is gone" if found is None else f"has version {found}"
        super().__init__(f"memory {memory_id!r} {now}, but the change is based on version {expected}")


class BufferTakenError(VersionConflictError):
    """A row of a buffer was taken by another run before this run marked it done."""

    def __init__(self, buffer_id: str) -> None:
        """Name the row."""
        self.buffer_id = buffer_id
        ReverieError.__init__(
            self, f"the row {buffer_id!r} of a buffer was taken by another run, or is done already"
        )


class WaitTimeoutError(ReverieError):
    """The work did not end in the time that was given."""

    def __init__(self, item_id: str, status: str, seconds: float) -> None:
        """Name the item that was waited for, and its status."""
        self.item_id, self.status, self.seconds = item_id, status, seconds
        hint = {
            "waiting": "; a worker must handle its label: `reverie queue` shows whether one does",
            "in_progress": "; its handler still runs",
        }
        words = status.replace("_", " ")
        super().__init__(f"{item_id} is still {words} after {seconds:g} s{hint.get(status, '')}")


class DaemonError(ReverieError):
    """The worker in the background could not be started or stopped."""


class AppNotFoundError(ReverieError):
    """The application that holds your handlers could not be loaded."""

    def __init__(self, app: str, reason: str) -> None:
        """Name the application as it was given, and say why it failed."""
        self.app, self.reason = app, reason
        super().__init__(f"--app {app}: {reason}")
