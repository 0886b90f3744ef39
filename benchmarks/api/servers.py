"""The servers that are measured, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from benchmarks.defaults import shipped_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["bare_server", "server"]

PATIENCE_S = 60.0
ADDRESS = re.compile(r"http://\S+")


@contextmanager
def bare_server() -> Iterator[str]:
    """Start the server that does nothing, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.api.bare"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)


@contextmanager
def server(url: str, folder: Path, *, worker: str) -> Iterator[str]:
    """Start Reverie at the shipped defaults, with its worker `inside` or `outside`, and yield its address."""
    shipped_settings(url)  # refuses other settings
    environment = os.environ | {
        "REVERIE_QUEUE__URL": url,
        "REVERIE_DATA_DIR": str(folder),
        "REVERIE_SERVER__PORT": "0",
        "REVERIE_SERVER__RUN_WORKER": "true" if worker == "inside" else "false",
    }
    log = folder / "serve.log"
    with _running("serve", environment, log):
        _until(lambda: ADDRESS.search(log.read_text()) is not None, "the server did not start")
        address = ADDRESS.findall(log.read_text())[0]
        _until(lambda: _get(address, "/health") is not None, "the server did not answer")
        if worker == "inside":
            yield address
        else:
            with _running("worker", environment, folder / "worker.log"):
                _until(
                    lambda: (_get(address, "/health") or {}).get("workers", 0) > 0, "no worker has started"
                )
                yield address


@contextmanager
def _running(command: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run a command of Reverie; it writes its log into a file, because nobody would read a pipe."""
    arguments = [sys.executable, "-m", "reverie", command]
    with log.open("w") as lines, subprocess.Popen(arguments, env=environment, stderr=lines) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _until(holds: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(problem)
        time.sleep(0.05)


def _get(address: str, path: str) -> dict[str, Any] | None:
    """The answer to a GET request; None if there is none."""
    try:
        with urlopen(address + path, timeout=PATIENCE_S) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except OSError:
        return None
