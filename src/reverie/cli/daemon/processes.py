"""Other processes: identify one by its number and its start, and send signals only to that one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

__all__ = ["send_signal", "start_of", "wait_for_end"]

LOOK_EVERY_S = 0.05


def start_of(pid: int) -> str | None:
    """When a process began, which identifies it together with its number; None if no such process runs."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            return None
        return None if fields[0] in {"Z", "X"} else fields[19]
    shown = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def send_signal(pid: int, start: str, number: signal.Signals) -> bool:
    """Send a signal to the process with this number and start; False if it is gone."""
    try:
        if not hasattr(os, "pidfd_open"):
            if start_of(pid) != start:
                return False
            os.kill(pid, number)
            return True
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:  # the handle means one process, even if its number is reused between the check and the signal
        if start_of(pid) != start:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_for_end(pid: int, start: str, seconds: float) -> bool:
    """Wait until the process with this number and start ends; False if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while start_of(pid) == start:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
