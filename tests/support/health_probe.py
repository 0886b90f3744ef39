"""Ask a server for its health and readiness, again and again, until standard input ends.

Run as a process of its own: python health_probe.py PORT PID. It prints how many seconds of processor time the
server, the process PID, has used until each answer of `/health`. A busy machine lets the server wait, and
that is not the fault of the server.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import sys
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(port: int, pid: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    took = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = cpu_seconds(pid)
        connection.request("GET", "/health")
        health = connection.getresponse()
        took.append(cpu_seconds(pid) - begin)
        health.read()
        assert health.status == 200
        connection.request("GET", "/ready")
        ready = connection.getresponse()
        ready.read()
        assert ready.status == 200
    print(json.dumps(took))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
