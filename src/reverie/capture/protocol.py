"""The request socket of a worker: its path, its frames, and the hook's side of it.

One request a connection, over a Unix socket, as lines of JSON of at most `LARGEST_FRAME`:

- `{"v": 1, "ask": "look"}` has no answer: the worker looks into the spool at once.
- `{"v": 1, "ask": "context", …}` is answered by `{"v": 1, "context": "text", "notice": "text" or null}`.

An answer of another version or shape counts as none. Only the standard library is imported.
"""

from __future__ import annotations

import os
import sys
import time

from reverie.capture.plain_json import decode, encode
from reverie.capture.project import short_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any

__all__ = [
    "LARGEST_FRAME",
    "LONGEST_CONTEXT",
    "LONGEST_PROMPT",
    "VERSION",
    "Answer",
    "AnswerError",
    "ask_context",
    "ask_look",
    "frame",
    "read_frame",
    "session_block",
    "socket_path",
]

VERSION = 1
LARGEST_FRAME = 1024 * 1024
"""The most bytes of a line, with its end."""
LONGEST_CONTEXT = 9000
"""The most characters of context that an agent is given."""
LONGEST_PROMPT = 8000
"""The most characters of a prompt that the worker is asked about."""
LONGEST_PATH = 100
"""The most bytes of the path of a socket that every system takes."""


class AnswerError(ValueError):
    """The other side is no worker, or one of another version."""


class Answer:
    """Context for the agent, and a notice for the person. No context (None): nobody knows what it is."""

    __slots__ = ("context", "notice")

    def __init__(self, context: str | None = "", notice: str | None = None) -> None:
        self.context = context
        self.notice = notice


def socket_path(data_dir: str) -> str:
    """The path of the request socket of a data folder: short enough for a socket, whatever the folder is."""
    data_dir = os.path.realpath(data_dir)
    path = os.path.join(data_dir, "worker.sock")
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    return f"/tmp/reverie-{short_hash(data_dir)}/worker.sock"  # noqa: S108  its owner is checked


def block_path(data_dir: str, key: str) -> str:
    """The file with the block of context of the project with this key."""
    return os.path.join(data_dir, "context", f"{short_hash(key)}.txt")


def session_block(data_dir: str, session_id: str) -> str:
    """The file with the block of context that a session was given."""
    return os.path.join(data_dir, "context", f"session-{short_hash(session_id)}.txt")


def frame(message: dict[str, Any]) -> bytes:
    """A request or an answer as a line. Halves of characters, which are no text, become "?"."""
    return (encode({"v": VERSION, **message}) + "\n").encode(errors="replace")


def read_frame(line: bytes) -> dict[str, Any]:
    """Read a request or an answer; raises `AnswerError` if it has another version or shape."""
    try:
        message = decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise AnswerError("it is no JSON") from error
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise AnswerError(f"it is no message of version {VERSION}")
    return message


def ask_look(data_dir: str) -> None:
    """Tell the worker to look into the spool; raises `OSError` at once if no worker listens."""
    connection = _connect(socket_path(data_dir), 0)
    try:
        connection.send(frame({"ask": "look"}))
    finally:
        connection.close()


def ask_context(data_dir: str, question: dict[str, Any], budget_s: float) -> Answer:
    """Ask the worker for context; raises `OSError` or `AnswerError` if there is none within the budget."""
    deadline = time.monotonic() + budget_s
    connection = _connect(socket_path(data_dir), budget_s)
    try:
        connection.sendall(frame({"ask": "context", **question}))
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(65536)
            line += part
            if not line:
                raise ConnectionAbortedError("the worker has ended")
            if not part or len(line) > LARGEST_FRAME:
                raise AnswerError("it ended in the middle" if not part else "it is too long")
    finally:
        connection.close()
    return _answer(read_frame(line))


def _answer(message: dict[str, Any]) -> Answer:
    context, notice = message.get("context"), message.get("notice")
    if not isinstance(context, str) or not isinstance(notice, str | None):
        raise AnswerError("it has no context")
    return Answer(_whole(context)[:LONGEST_CONTEXT], notice and _whole(notice)[:LONGEST_CONTEXT])


def _whole(text: str) -> str:
    """A text without halves of characters, which some agents refuse to read."""
    return text.encode(errors="replace").decode()


def _connect(path: str, timeout_s: float) -> _socket.socket:
    """Connect to a socket of this user; other users could make one in a shared folder."""
    import _socket  # `socket` would take longer to import than all this

    if os.stat(os.path.dirname(path)).st_uid != os.geteuid():
        raise PermissionError(f"{path} is in a folder of another user")
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
        _check_owner(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owner(connection: _socket.socket) -> None:
    """Refuse a server of another user; systems that do not say whose it is trust the folder's rights."""
    import _socket

    if hasattr(_socket, "SO_PEERCRED"):
        peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
            raise PermissionError("the socket belongs to another user")
