"""Dramatiq: lists and hashes, acknowledged."""

from __future__ import annotations

import os

from benchmarks.extras import require
from benchmarks.redis.apps.surroundings import SOCKET, ran

_dramatiq = require("dramatiq", "dramatiq")
broker = require("dramatiq.brokers.redis", "dramatiq").RedisBroker(url=f"unix://{os.environ[SOCKET]}")
_dramatiq.set_broker(broker)


@_dramatiq.actor  # type: ignore[untyped-decorator]
def noop() -> None:
    ran()


def submit(times: int) -> None:
    for _ in range(times):
        noop.send()
