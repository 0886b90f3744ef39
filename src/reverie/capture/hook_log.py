"""The log of hooks, and the count of lost events; only the standard library.

Nothing here raises an error: a hook that cannot even write its log ends all the same. Lines never quote what
an agent has told.
"""

from __future__ import annotations

import os
import time

from reverie.capture.hook_errors import TABLE, class_of

__all__ = ["count_loss", "log_error", "log_path", "losses", "recent_problems"]

LARGEST_LOG = 512 * 1024
"""Bytes of the log. A larger one becomes the old log, in the place of the one before it."""
READ_BYTES = 64 * 1024
RECENT_S = 24 * 3600
MOST_TOLD = 3
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def log_path(data_dir: str) -> str:
    """The log of the hooks of a data folder."""
    return os.path.join(data_dir, "logs", "hook.log")


def log_error(data_dir: str, event: str, error: BaseException, what: str) -> None:
    """Write a line about an error: its class, the event of the hook, and what did not work."""
    row = class_of(error)
    moment = time.strftime(TIME_FORMAT, time.gmtime())
    words = " ".join(f"{what} ({_reason(error)})".split())
    line = f"{moment} {row.log_level} {row.name} {event or '-'}: {words[:1000]}\n"
    try:
        _append(log_path(data_dir), line.encode(errors="replace"))
    except OSError:
        pass  # a full disk, or a home that cannot be written


def count_loss(data_dir: str) -> None:
    """Count an event that could not be kept."""
    try:
        _write(os.path.join(data_dir, "hook-losses"), b"x")
    except OSError:
        pass  # a full disk, or a home that cannot be written


def losses(data_dir: str) -> int:
    """How many events could not be kept; those that could not even be counted are missing."""
    try:
        return os.stat(os.path.join(data_dir, "hook-losses")).st_size
    except OSError:
        return 0


def recent_problems(data_dir: str) -> list[str]:
    """What a person should know of the errors of the last day, the newest first; each in one line."""
    since = time.strftime(TIME_FORMAT, time.gmtime(time.time() - RECENT_S))
    told: dict[str, int] = {}
    for line in _last_lines(log_path(data_dir)):
        moment, _, rest = line.partition(" ")
        _, _, rest = rest.partition(" ")
        name, _, words = rest.partition(" ")
        if moment >= since and name in TABLE and TABLE[name].is_noticed:
            told[words] = told.pop(words, 0) + 1
    problems = [f"{words}{'' if count == 1 else f' ({count} times)'}" for words, count in told.items()]
    return [f"a hook failed: {problem}" for problem in problems[: -MOST_TOLD - 1 : -1]]


def _reason(error: BaseException) -> str:
    """The type of an error and where it was raised. Its words count only if they quote no input."""
    name = type(error).__name__
    if isinstance(error, OSError):
        return f"{name}: {error.strerror or error}"
    if name in {"BadCallError", "AnswerError", "SpoolError", "SpoolFullError"}:
        return f"{error}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return name
    return f"{name} in {os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}"


def _append(path: str, line: bytes) -> None:
    try:
        if os.stat(path).st_size + len(line) > LARGEST_LOG:
            os.replace(path, f"{path}.1")
    except FileNotFoundError:
        pass  # the first line
    _write(path, line)


def _write(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        before = os.umask(0o077)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        finally:
            os.umask(before)
        file = os.open(path, flags, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _last_lines(path: str) -> list[str]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        size = os.fstat(file).st_size
        text = os.pread(file, READ_BYTES, max(0, size - READ_BYTES)).decode(errors="replace")
    except OSError:
        return []
    finally:
        os.close(file)
    lines = text.splitlines()
    return lines if size <= READ_BYTES else lines[1:]
