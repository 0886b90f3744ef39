"""Load on a server: wrk sends requests over some connections at once, for some seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

__all__ = ["Measured", "ask_once", "find_wrk", "send"]

PATIENCE_S = 60.0
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


def ask_once(address: str, path: str, bodies: Path) -> None:
    """Send the first body, and wait for the answer, which may need a model that is loaded only now."""
    with bodies.open("rb") as lines:
        request = Request(address + path, next(lines), {"content-type": "application/json"})
    urlopen(request, timeout=PATIENCE_S).close()


def send(address: str, path: str, bodies: Path, *, connections: int, seconds: float) -> Measured:
    """Send the bodies of a file in turn; ends the program if an answer is no success."""
    seen = {"requests": 0}
    while not seen["requests"] and seconds < PATIENCE_S:  # a busy machine may answer none in a second
        seen = _run_wrk(address, path, bodies, connections, max(1, round(seconds)))
        seconds *= 2
    if seen["refused"] or seen["broken"] or not seen["requests"]:
        raise SystemExit(f"{path} at {connections} connections: not all requests succeeded: {seen}")
    return Measured(seen["requests"] / seen["duration_s"], seen["p50_ms"], seen["p99_ms"])


def _run_wrk(address: str, path: str, bodies: Path, connections: int, seconds: int) -> dict[str, Any]:
    """What the script of wrk prints at its end."""
    command = [find_wrk(), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{PATIENCE_S:g}s"]
    shown = subprocess.run(
        [*command, "-s", str(SCRIPT), address, "--", path, str(bodies)],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise SystemExit(f"wrk failed: {shown.stderr or shown.stdout}")
    seen: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return seen
