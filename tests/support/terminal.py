"""A person at a terminal: reads what a program shows, types, presses Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.places import Place

PATIENCE_S = 30


class Terminal:
    """A program that thinks that a person is there."""

    def __init__(self, process: subprocess.Popen[bytes], side: int) -> None:
        self._process = process
        self._side = side
        self.shown = ""

    def reads(self, text: str) -> None:
        """Wait until `text` is shown, behind what was waited for before."""
        seen = ""
        while text not in seen:
            piece = self._read()
            assert piece, f"the program has ended without {text!r}: {self.shown}"
            seen += piece

    def types(self, text: str) -> None:
        os.write(self._side, text.encode())

    def presses_ctrl_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ends(self) -> int:
        """Read to the end, and how it ended."""
        while self._read():
            pass
        return self._process.wait(PATIENCE_S)

    def _read(self) -> str:
        ready, _, _ = select.select([self._side], [], [], PATIENCE_S)
        assert ready, f"nothing more is shown: {self.shown}"
        try:
            piece = os.read(self._side, 65_536).decode(errors="replace")
        except OSError:  # the program has ended
            return ""
        self.shown += piece
        return piece


@contextmanager
def terminal(place: Place, *command: str, columns: int = 120) -> Iterator[Terminal]:
    """Run a command in a terminal until the block ends."""
    side, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in place.environment.items() if k not in {"NO_COLOR", "COLUMNS", "LINES"}}

    process = subprocess.Popen(
        command,
        stdin=other,
        stdout=other,
        stderr=other,
        env=environment | {"TERM": "xterm-256color"},
        cwd=place.folder,
    )
    os.close(other)
    try:
        yield Terminal(process, side)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(side)
