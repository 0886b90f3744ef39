"""A program on a file system of its own that is soon full."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CANNOT_MOUNT = 77
SCRIPT = f'mount -t tmpfs -o size="$1" tmpfs "$2" || exit {CANNOT_MOUNT}; shift 2; exec "$@"'


def run_on_small_disk(
    size: str,
    folder: Path,
    *command: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 100,
) -> str:
    """What a command prints that finds so much room in a folder, in a name space where everybody may mount.

    Skips the test where that cannot be.
    """
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a small file system cannot be mounted")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", size, str(folder), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode == CANNOT_MOUNT or "unshare" in done.stderr:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout
