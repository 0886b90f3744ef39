"""A gate: handlers of any process say that they have begun, and wait until the test lets them go on."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60.0
"""Nobody waits longer than this, so that a test that fails also ends."""


class Gate:
    """The test's side of the gate."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.path = path
        self._listener = listener
        self._waiting: list[socket.socket] = []

    def arrival(self) -> int:
        """Wait until a handler has come to the gate; the id of its process."""
        connection, _ = self._listener.accept()
        connection.settimeout(TIMEOUT_S)
        self._waiting.append(connection)
        return int(connection.recv(32))

    def open(self) -> None:
        """Let all go on that have arrived so far."""
        for connection in self._waiting:
            connection.close()
        self._waiting = []


@contextmanager
def gate() -> Iterator[Gate]:
    with tempfile.TemporaryDirectory(prefix="reverie-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "gate")
        listener.bind(path)
        listener.listen(256)
        listener.settimeout(TIMEOUT_S)
        opened = Gate(listener, path)
        try:
            yield opened
        finally:
            opened.open()


def pass_gate(path: str) -> None:
    """The handler's side: say that this process is here, and wait."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        connection.sendall(str(os.getpid()).encode())
        connection.recv(1)
