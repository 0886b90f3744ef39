"""The process that submits to a neighbour: `python -m benchmarks.redis.client NAME`.

It prints `ready`. It answers `submit COUNT` with `submitted SECONDS`, and `probe COUNT` with `probed` and the
milliseconds from before each submit to its task's start.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ours import probe_now_and_then
from benchmarks.redis.apps.surroundings import ENTRY, RECORD

LOOK_S = 0.002
"""The pause between two looks at the record; it does not matter, because the record has the moment itself."""
PATIENCE_S = 30.0


def main() -> None:
    app: Any = importlib.import_module(f"benchmarks.redis.apps.{sys.argv[1]}")
    record = Path(os.environ[RECORD])
    record.touch()
    print("ready", flush=True)
    for line in sys.stdin:
        command, count = line.split()
        if command == "submit":
            began = time.perf_counter()
            app.submit(int(count))
            print(f"submitted {time.perf_counter() - began}", flush=True)
        else:
            latencies = probe_now_and_then(lambda: probe(app, record), int(count))
            print("probed", *latencies, flush=True)


def probe(app: Any, record: Path) -> float:
    known = record.stat().st_size
    began = time.monotonic()
    app.submit(1)
    while record.stat().st_size < known + ENTRY.size:
        if time.monotonic() > began + PATIENCE_S:
            raise SystemExit(f"a probe was not handled within {PATIENCE_S} s")
        time.sleep(LOOK_S)
    (started,) = ENTRY.unpack(record.read_bytes()[known : known + ENTRY.size])
    return float(started) - began


if __name__ == "__main__":
    main()
