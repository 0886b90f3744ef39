"""The servers that are measured, each in a process of its own."""

from __future__ import annotations

import json
import os
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
    command = [sys.executable, "-m", "reverie"]
    with _running([*command, "serve"], environment) as process:
        assert process.stderr is not None
        words = (word for line in process.stderr for word in line.split())
        address = next((word for word in words if word.startswith("http://")), None)
        if address is None:
            raise SystemExit("the server did not start")
        _until_ready(address)
        if worker == "inside":
            yield address
        else:
            with _running([*command, "worker"], environment):
                _until_worker_lives(address)
                yield address


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def _until_ready(address: str) -> None:
    """Wait until the server answers that it has all it depends on."""
    _until(lambda: _get(address, "/health") is not None, "the server did not answer")


def _until_worker_lives(address: str) -> None:
    _until(lambda: (_get(address, "/health") or {}).get("workers", 0) > 0, "the worker did not start")


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
