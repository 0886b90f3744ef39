"""MemOS's published Python client, in an environment of its own, as a process that a test talks to."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MemosClient", "RefusedError", "memos_client"]

PYTHON = Path(__file__).parents[2] / ".venv-memos" / "bin" / "python"
DRIVER = Path(__file__).with_name("memos_driver.py")
MISSING = "no client of MemOS: make .venv-memos/.done"


class RefusedError(Exception):
    """The client has raised an error."""

    def __init__(self, words: str, status: int | None) -> None:
        super().__init__(words)
        self.status = status


class MemosClient:
    """Calls methods of the client in its process, by their names and arguments."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, method: str, **arguments: Any) -> Any:
        """What a method answers, as JSON; `RefusedError` if it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        if "error" in told:
            raise RefusedError(told["error"], told["status"])
        return told["answer"]


@contextmanager
def memos_client(address: str, api_key: str, folder: Path) -> Iterator[MemosClient]:
    """A client of the server at `address`, until the context ends. Missing: skipped here, an error in CI."""
    if not PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    process = subprocess.Popen(
        [PYTHON, DRIVER, f"{address}/api/openmem/v1", api_key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MEMOS_BASE_PATH": str(folder), "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""},
        cwd=folder,
        text=True,
    )
    with process:
        yield MemosClient(process)
