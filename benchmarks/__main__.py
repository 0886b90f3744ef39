"""Run one benchmark; the last line it prints is one JSON object."""

from __future__ import annotations

import argparse
import json

from benchmarks import queue


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="what")
    one = commands.add_parser("queue", help="submit, drain and latency of one backend")
    one.add_argument("--backend", choices=["sqlite", "memory"], default="sqlite")
    one.add_argument("--messages", type=int, default=50_000, help="how many to drain (default 50,000)")
    one.add_argument("--lanes", type=int, default=10_000, help="over how many lanes (default 10,000)")
    one.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    figures = queue.measure(arguments.backend, arguments.messages, arguments.lanes)
    if not arguments.json:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
