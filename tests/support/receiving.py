"""A real receiver of HTTP requests on this machine."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Receiver(ThreadingHTTPServer):
    """Answers what it is told to, then 200; keeps what it got."""

    daemon_threads = True

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.headers: dict[str, str] = {}
        self.got: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        super().__init__(("127.0.0.1", 0), Desk)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/alerts?team=a%20b"

    @property
    def all(self) -> list[tuple[str, dict[str, str], bytes]]:
        """All that has come and was not taken yet."""
        found = []
        while not self.got.empty():
            found.append(self.got.get_nowait())
        return found

    def next(self) -> tuple[str, dict[str, str], bytes]:
        return self.got.get(timeout=30)


class Desk(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.put((self.path, dict(self.headers.items()), body))
        status = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", self.server.url)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    with Receiver(*answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
