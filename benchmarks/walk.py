"""Count the files, functions and calls of the package that one message passes, over HTTP on SQLite.

A server runs in this process, as `reverie serve` does. From `POST /product/add` until `POST /product/search`
has found the memory, every call of a function of the package is counted, on any thread. Comprehensions and
generator expressions do not count; a coroutine that goes on after a wait counts as one more call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reverie
from benchmarks.defaults import shipped_settings
from reverie import AsyncScheduler
from reverie.server import serve

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["measure"]

PACKAGE = f"{Path(reverie.__file__).parent}{os.sep}"
NOT_COUNTED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})
SETTLE_S = 1.0
"""How long the server is left alone before the walk: its start must be over."""
WORK_S = 0.3
"""The worker's time before the search: too short for the duties that run every second or two."""
TEXT = "I moved to Lisbon in May"


class Tracer:
    """Counts calls of functions of the package while it is active."""

    def __init__(self) -> None:
        self.active = False
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.active and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE) and code.co_name not in NOT_COUNTED:
                self.calls[code] += 1

    def figures(self) -> dict[str, Any]:
        by_file: Counter[str] = Counter()
        for code in self.calls:
            by_file[code.co_filename.removeprefix(PACKAGE)] += 1
        return {
            "files": len(by_file),
            "functions": len(self.calls),
            "calls": sum(self.calls.values()),
            "functions_by_file": dict(sorted(by_file.items())),
        }

    def names(self) -> list[str]:
        """Each function that was called, by file and line."""
        found = [
            (code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, code.co_qualname, calls)
            for code, calls in self.calls.items()
        ]
        return [f"{file}:{line} {name} {calls}" for file, line, name, calls in sorted(found)]


def measure(*, show_names: bool = False) -> dict[str, Any]:
    """Send one message through a fresh server, and return the counts."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    problems: list[BaseException] = []
    try:
        with tempfile.TemporaryDirectory(prefix="reverie-walk-") as folder:
            scheduler = AsyncScheduler(settings=shipped_settings(f"sqlite:///{folder}/walk.db"))

            def announce(address: str) -> None:
                client = threading.Thread(target=_walk, args=(address, tracer, problems))
                client.start()

            serve(scheduler, host="127.0.0.1", port=0, run_worker=True, announce=announce)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if problems:
        raise problems[0]
    if show_names:
        print("\n".join(tracer.names()))
    return tracer.figures()


def _walk(address: str, tracer: Tracer, problems: list[BaseException]) -> None:
    """Be the client: wait for the server, add one memory, find it, end the server."""
    try:
        while not _ask(address, "/ready")["ready"]:
            time.sleep(0.05)
        time.sleep(SETTLE_S)
        tracer.active = True
        _ask(address, "/product/add", {"user_id": "ann", "messages": [{"role": "user", "content": TEXT}]})
        time.sleep(WORK_S)
        found = _ask(address, "/product/search", {"user_id": "ann", "query": "Who moved to Lisbon?"})
        tracer.active = False
        if found["data"]["text_mem"][0]["memories"][0]["memory"] != TEXT:
            raise SystemExit(f"the memory was not found: {found}")  # noqa: TRY301  the main thread raises it
    except BaseException as error:  # noqa: BLE001  the main thread raises it
        problems.append(error)
    finally:
        tracer.active = False
        os.kill(os.getpid(), signal.SIGTERM)


def _ask(address: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    return found
