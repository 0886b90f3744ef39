"""Load on a server: wrk sends requests over some connections at once, for some seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Measured", "find_wrk", "send"]

SCRIPT = Path(__file__).with_name("requests.lua")


@dataclass(frozen=True)
class Measured:
    """What wrk saw."""

    rps: float
    p50_ms: float
    p99_ms: float


def find_wrk() -> str:
    """The program wrk."""
    if found := shutil.which("wrk"):
        return found
    raise SystemExit("wrk is missing: install it (Debian: apt-get install wrk), or run make bench as root")


def send(address: str, path: str, bodies: Path, *, connections: int, seconds: float) -> Measured:
    """Send the bodies of a file in turn; ends the program if an answer is no success."""
    command = [find_wrk(), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    shown = subprocess.run(
        [*command, "-s", str(SCRIPT), address, "--", path, str(bodies)],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise SystemExit(f"wrk failed: {shown.stderr or shown.stdout}")
    seen = json.loads(shown.stdout.splitlines()[-1])
    if seen["refused"] or seen["broken"] or not seen["requests"]:
        raise SystemExit(f"{path} at {connections} connections: not all requests succeeded: {seen}")
    return Measured(seen["requests"] / seen["duration_s"], seen["p50_ms"], seen["p99_ms"])
